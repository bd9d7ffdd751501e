"""Text from messages, made fit to be shown and searched: nothing in it is trusted."""

from __future__ import annotations

from typing import Any

from ..core.text import escape

#: Characters of arguments that are searched, and of any one text that is shown.
SEARCHED, SHOWN = 1000, 10_000


def printable(value: Any, limit: int = SHOWN) -> str:
    """Return a value's text with what cannot be seen spelled out, and cut to `limit` characters and a note."""
    text = value if isinstance(value, str) else str(value)
    cut = escape(text[:limit])
    return cut if len(text) <= limit else f"{cut}… ({len(text) - limit:,} more characters)"


def body_text(body: bytes, limit: int = SHOWN) -> str:
    """Return what a message's body says, as far as it is text, cut to `limit` characters."""
    shown = printable(body[: limit * 4].decode(errors="replace")[:limit], limit)
    return shown if len(body) <= limit else f"{shown}… ({len(body):,} bytes)"


def reason(exc: Exception) -> str:
    """Return what an error says, or at least what it is."""
    return str(exc) or type(exc).__name__


def pattern(text: str) -> str:
    """Return the pattern of LIKE, with `\\` to escape, for what contains a text."""
    for char in "\\%_":
        text = text.replace(char, f"\\{char}")
    return f"%{text}%"

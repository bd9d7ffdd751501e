"""Prepares untrusted text from messages for display and search."""

from __future__ import annotations

from typing import Any

from ..text import escape

#: The maximum number of characters of arguments for search, and of a text for display.
SEARCHED, SHOWN = 1000, 10_000


def printable(value: Any, limit: int = SHOWN) -> str:
    """Return a value's text with invisible characters spelled out, truncated to `limit` characters with a note."""
    text = value if isinstance(value, str) else str(value)
    cut = escape(text[:limit])
    return cut if len(text) <= limit else f"{cut}… ({len(text) - limit:,} more characters)"


def body_text(body: bytes, limit: int = SHOWN) -> str:
    """Return a message's body as text, truncated to `limit` characters."""
    shown = printable(body[: limit * 4].decode(errors="replace")[:limit], limit)
    return shown if len(body) <= limit else f"{shown}… ({len(body):,} bytes)"


def reason(exc: Exception) -> str:
    """Return the message of an error, or else its class."""
    return str(exc) or type(exc).__name__


def clean(text: str) -> str:
    """Return text that can be written as UTF-8."""
    return text.encode(errors="replace").decode()

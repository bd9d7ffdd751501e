"""Text from messages, which anybody may have written."""

from __future__ import annotations


def escape(text: str) -> str:
    """Return text with what cannot be seen, or would control a terminal, spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

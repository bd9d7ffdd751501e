"""Escapes text from messages, which any publisher may have written."""

from __future__ import annotations


def escape(text: str) -> str:
    """Return text with invisible and control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

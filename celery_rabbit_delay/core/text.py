"""Text for people: escaped, because any publisher may have written it; and durations in units that they can read."""

from __future__ import annotations

import math

_DAY = 86_400


def duration(seconds: float) -> str:
    """Return a duration in days, rounded up, or if it is less than two of them in seconds."""
    if seconds < 2 * _DAY:
        return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"
    return f"{math.ceil(100 * seconds / _DAY) / 100:,.2f}".rstrip("0").rstrip(".") + " days"


def escape(text: str) -> str:
    """Return text with invisible and control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

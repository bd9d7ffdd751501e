"""Text for people: escaped, because any publisher may have written it; and durations in units that they can read."""

from __future__ import annotations

import math
import re

_DAY = 86_400

#: A plural at the beginning of a text.
_PLURAL = re.compile(r"^([a-z]+?)(?:(?<=x)es|s)\b")


def counted(amount: int, what: str) -> str:
    """Return an amount of what a text begins with in the plural, if with a noun: 1 task moved, 2,000 tasks moved."""
    return f"{amount:,} " + (_PLURAL.sub(r"\1", what) if amount == 1 else what)


def duration(seconds: float) -> str:
    """Return a duration in days, rounded up, or if it is less than two of them in seconds."""
    if seconds < 2 * _DAY:
        return f"{seconds:.6f}".rstrip("0").rstrip(".") + " s"
    return f"{math.ceil(100 * seconds / _DAY) / 100:,.2f}".rstrip("0").rstrip(".") + " days"


def span(milliseconds: int) -> str:
    """Return a duration in at most two units: 90 ms, 1 h 30 min."""
    if 0 < milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds, parts = milliseconds // 1000, []
    for unit, size in (("d", _DAY), ("h", 3600), ("min", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount} {unit}")
        if (parts and not amount) or len(parts) == 2:
            break
    return " ".join(parts) or "0 s"


def escape(text: str) -> str:
    """Return text with invisible and control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

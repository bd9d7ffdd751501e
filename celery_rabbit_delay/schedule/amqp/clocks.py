"""The clock of due times."""

from __future__ import annotations

import time


def utc_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000

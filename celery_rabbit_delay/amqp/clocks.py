"""The two clocks: a monotonic one for delays, and UTC for due times."""

from __future__ import annotations

import time


def monotonic_us() -> int:
    """Return microseconds of a monotonic clock: a delay must not change with the wall clock."""
    return time.monotonic_ns() // 1000


def utc_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000

"""The clock of due times, and the clock of what was sent."""

from __future__ import annotations

import hashlib
import platform
import time
import uuid
from pathlib import Path

from ..core.sent import Sent


def _name_of_clock() -> str:
    """Return what all processes of this host have in common, also those in containers, and no other host has."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:  # not on Linux
        name = f"{platform.node()} {uuid.getnode()}"
    return hashlib.blake2b(name.encode(), digest_size=4).hexdigest()


CLOCK = _name_of_clock()


def utc_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def sent_now() -> Sent:
    """Return the moment of what is sent now."""
    return Sent(time.time_ns() // 1000, CLOCK)

"""The clock and the time zone of due times, and the clock of what was sent."""

from __future__ import annotations

import hashlib
import logging
import platform
import time
import uuid
from datetime import tzinfo
from pathlib import Path
from typing import Any

from ..core.headers import Headers
from ..core.sent import Sent

logger = logging.getLogger(__name__)

#: The names of tasks about whose naive eta this process has warned.
_told: set[Any] = set()
_MOST_TOLD = 1000


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


def tell_of_naive_eta(naive: Headers, aware: Headers, zone: tzinfo) -> None:
    """Warn, once of each task, that its naive eta was read in a time zone other than UTC, Celery's own."""
    task = naive.get("task")
    if str(zone) == "UTC" or task in _told or len(_told) >= _MOST_TOLD:
        return
    _told.add(task)
    logger.warning(
        "The eta %s of the task %s is naive: it is read in the time zone of the app, %s, as %s, while Celery alone "
        "reads it in UTC. Write an aware one, such as datetime.now(timezone.utc) + timedelta(hours=3)",
        naive["eta"],
        task,
        zone,
        aware["eta"],
    )

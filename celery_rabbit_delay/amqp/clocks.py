"""The clock and the time zone of due times."""

from __future__ import annotations

import logging
import time
from datetime import tzinfo
from typing import Any

from ..core.headers import Headers

logger = logging.getLogger(__name__)

#: The names of tasks about whose naive eta this process has warned.
_told: set[Any] = set()
_MOST_TOLD = 1000


def utc_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


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

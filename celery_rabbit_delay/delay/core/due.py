"""When a message is due: whether its headers ask for a delay, and for how long. Pure: `now` is an argument.

Celery makes an eta of a countdown. All arithmetic is on integers: no rounding makes a message early.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone, tzinfo

from dateutil.parser import isoparse  # Celery's worker parses an eta with it

from .errors import InvalidDelay

X_DELAY = "x-delay"

_CELERY_FORMAT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?([+-]\d\d:\d\d)?", re.ASCII).fullmatch

MICROSECOND = timedelta(microseconds=1)


def delay_of(headers: Mapping[str, object] | None, now: datetime) -> int:
    """Return the delay that headers ask for, in microseconds, ≤ 0 if past; 0 if they ask for none.

    They do with an eta, of Celery's task protocol 2, or an `x-delay`; with both, the later one applies. Raises
    `InvalidDelay`.
    """
    headers, delays = headers or {}, []
    if headers.get("eta") and "task" in headers:
        delays.append((eta_in_utc(headers["eta"]) - now) // MICROSECOND)
    if headers.get(X_DELAY) is not None:
        delays.append(parse_x_delay(headers[X_DELAY]))
    return max(delays, default=0)


def has_eta(headers: Mapping[str, object], due: datetime) -> bool:
    """Return whether headers have an eta that is less than a second before a due time."""
    try:
        return "task" in headers and due - eta_in_utc(headers["eta"]) < timedelta(seconds=1)
    except (KeyError, InvalidDelay):
        return False


def eta_in_utc(eta: object, naive_timezone: tzinfo = timezone.utc, name: str = "the eta") -> datetime:
    """Return the moment of a datetime or an ISO 8601 string; a naive one is in UTC, as Celery's worker reads it.

    Raises `InvalidDelay`, which calls the eta `name`: also where it is in UTC before the year 1, or after 9999.
    """
    try:
        if isinstance(eta, datetime):
            due = eta
        elif isinstance(eta, str) and _CELERY_FORMAT(eta):
            due = datetime.fromisoformat(eta)  # ten times as fast
        else:
            due = isoparse(eta)  # type: ignore[arg-type]
        return (due if due.tzinfo else due.replace(tzinfo=naive_timezone)).astimezone(timezone.utc)
    except (TypeError, ValueError, OverflowError):
        example = "2030-01-31T12:00:00+00:00"
        raise InvalidDelay(
            f"cannot read {name} {eta!r}: use an aware datetime, or an ISO 8601 string such as {example}"
        ) from None


def parse_x_delay(x_delay: object) -> int:
    """Return the microseconds in an `x-delay` header, a number of milliseconds. Raises `InvalidDelay`.

    A negative one means no delay: the delayed-message-exchange plug-in marks messages that it has delayed in this way.
    """
    try:
        if isinstance(x_delay, bool):
            raise ValueError
        return max(0, math.ceil(float(x_delay) * 1000))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InvalidDelay(f"cannot read the header x-delay={x_delay!r}: use a number of milliseconds") from None


def to_ticks(delay: int, tick: int) -> int:
    """Return the whole ticks that a `delay` > 0 takes, rounded up; both have the same unit."""
    return -(-delay // tick)

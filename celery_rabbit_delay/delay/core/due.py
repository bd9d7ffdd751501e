"""The time until a message is due, in microseconds. Pure: `now` is an argument.

`eta`, `countdown` and `x-delay` are converted here. All arithmetic is on integers: no rounding makes a message early.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone, tzinfo

from dateutil.parser import isoparse  # Celery's worker parses an eta with it

from .errors import InvalidDelay

_CELERY_FORMAT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?([+-]\d\d:\d\d)?", re.ASCII).fullmatch

_MICROSECOND = timedelta(microseconds=1)


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
        raise _unreadable(eta, name) from None


def microseconds_until(due: datetime, now: datetime) -> int:
    """Return the time from `now` until `due`, both in UTC; negative if it has passed."""
    return (due - now) // _MICROSECOND


def _unreadable(eta: object, name: str = "the eta") -> InvalidDelay:
    example = "2030-01-31T12:00:00+00:00"
    return InvalidDelay(f"cannot read {name} {eta!r}: use an aware datetime, or an ISO 8601 string such as {example}")


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

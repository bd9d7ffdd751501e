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

_MICROSECOND, _MILLISECOND = timedelta(microseconds=1), timedelta(milliseconds=1)


def parse_eta(eta: object, name: str = "the eta") -> datetime:
    """Return a datetime, naive or aware as written, from an ISO 8601 string or a datetime. Raises `InvalidDelay`."""
    if isinstance(eta, datetime):
        return eta
    try:
        if isinstance(eta, str) and _CELERY_FORMAT(eta):
            return datetime.fromisoformat(eta)  # ten times as fast
        return isoparse(eta)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise _unreadable(eta, name) from None


def microseconds_until(due: datetime, now: datetime) -> int:
    """Return the time from `now`, in UTC, until `due`, aware; negative if it has passed. Raises `InvalidDelay`."""
    try:
        return (due - now) // _MICROSECOND
    except (ValueError, OverflowError):  # some zones know no offset for years far away
        raise _unreadable(due.replace(tzinfo=None).isoformat()) from None


def aware(eta: datetime, naive_timezone: tzinfo = timezone.utc) -> datetime:
    """Return an eta with a time zone: a naive one is in UTC, as Celery's worker reads it."""
    return eta if eta.tzinfo else eta.replace(tzinfo=naive_timezone)


def eta_in_utc(eta: object, naive_timezone: tzinfo = timezone.utc, name: str = "the eta") -> datetime:
    """Return the moment that an eta means. Raises `InvalidDelay`, which calls the eta `name`."""
    due = parse_eta(eta, name)
    try:
        return aware(due, naive_timezone).astimezone(timezone.utc)
    except (ValueError, OverflowError):  # it is in UTC before the year 1, or after 9999
        raise _unreadable(eta, name) from None


def due_at(eta: object, countdown: object, now: datetime, naive_timezone: tzinfo = timezone.utc) -> datetime:
    """Return the moment, in UTC, that either an eta or a number of seconds from `now` means. Raises `InvalidDelay`."""
    if (eta is None) == (countdown is None):
        raise InvalidDelay("give either eta or countdown")
    if eta is not None:
        return eta_in_utc(eta, naive_timezone)
    try:
        if isinstance(countdown, bool) or not (seconds := float(countdown)) >= 0:  # type: ignore[arg-type]
            raise ValueError
        return now + timedelta(seconds=seconds)
    except (TypeError, ValueError, OverflowError):
        raise InvalidDelay(f"cannot read the countdown {countdown!r}: use a number of seconds, 0 or more") from None


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

"""How long until a message is due, in microseconds and then in ticks. Pure: `now` is an argument.

Inside the package a delay is an integer number of ticks; `eta`, `countdown` and `x-delay` end here. All arithmetic
is on integers, so that no rounding error makes a message early.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from dateutil.parser import isoparse  # what Celery's worker reads an eta with

from .exceptions import InvalidDelay

_AS_CELERY_WRITES_IT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?([+-]\d\d:\d\d)?", re.ASCII).fullmatch

_MICROSECOND = timedelta(microseconds=1)


def parse_eta(eta: object) -> datetime:
    """A datetime, naive or aware as it was written, from an ISO 8601 string or a datetime. Raises `InvalidDelay`."""
    if isinstance(eta, datetime):
        return eta
    try:
        if isinstance(eta, str) and _AS_CELERY_WRITES_IT(eta):
            return datetime.fromisoformat(eta)  # ten times as fast
        return isoparse(eta)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as exc:
        raise _unreadable(eta) from exc


def microseconds_until(due: datetime, now: datetime) -> int:
    """From `now` in UTC until `due`, aware; negative if it is past. Raises `InvalidDelay`."""
    try:
        return (due - now) // _MICROSECOND
    except (ValueError, OverflowError) as exc:  # some zones know no offset for years far away
        raise _unreadable(due.replace(tzinfo=None).isoformat()) from exc


def _unreadable(eta: object) -> InvalidDelay:
    example = "2030-01-31T12:00:00+00:00"
    return InvalidDelay(f"cannot read the eta {eta!r}: use an aware datetime, or an ISO 8601 string such as {example}")


def parse_x_delay(x_delay: object) -> int:
    """Microseconds in the header `x-delay`, a number of milliseconds ≥ 0. Raises `InvalidDelay`."""
    try:
        if isinstance(x_delay, bool) or not (milliseconds := float(x_delay)) >= 0:  # type: ignore[arg-type]
            raise ValueError
        return math.ceil(milliseconds * 1000)
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidDelay(
            f"cannot read the header x-delay={x_delay!r}: use a number of milliseconds, 0 or more"
        ) from exc


def ticks_in(delay: int, tick: int, slack: int, max_ticks: int) -> int:
    """Ticks for a `delay` > 0, rounded up to a whole tick, then to the fewest hops within `slack`.

    Delay, tick and slack are microseconds; the result is at least 1. It exceeds `max_ticks` only where the delay does.
    """
    ticks = -(-delay // tick)
    return fewest_set_bits(ticks, max(0, min(slack // tick, max_ticks - ticks)))


def fewest_set_bits(start: int, slack: int) -> int:
    """The number in [start, start + slack] with the fewest set bits, each a hop; the smallest of these if several."""
    free = (start ^ (start + slack)).bit_length()  # start and start + slack agree above these bits
    low = start & ((1 << free) - 1)
    return start if low == 0 else start - low + (1 << (low - 1).bit_length())

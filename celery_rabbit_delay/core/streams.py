"""The streams beside the cascades of a prefix: what was sent, and what was changed afterwards. Pure.

    {streams_root}.journal.600    a copy of each delayed message whose delay is at most 600 s, and so on up to `max`
    {streams_root}.changes        what was cancelled, restored and moved, and paused queues

A stream keeps its messages for a limited time (https://www.rabbitmq.com/docs/streams#retention). Messages with delays
of different lengths go to different streams, so that none is kept much longer than it waits.

What the messages contain is in the modules `journal` and `changes`. The first byte of a message tells its kind.
"""

from __future__ import annotations

import math
import os
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache, wraps
from typing import Any, TypeVar

from .errors import DelayError
from .topology import Cascade, Stream

_DAY = 24 * 3600
YEAR = 365 * _DAY

#: Seconds after its due time for which a moved message may lie in its queue, and is dropped when it is taken.
VOID_KEPT = 30 * _DAY

#: For each stream: the longest delay in seconds, the retention in seconds, the size of a segment in bytes.
#: RabbitMQ deletes a segment when its youngest message is old enough, so streams for short delays have small segments.
_HORIZONS = (
    (600, 900, 500_000),
    (3600, 75 * 60, 1_000_000),
    (6 * 3600, 7 * 3600, 2_000_000),
    (36 * 3600, 40 * 3600, 4_000_000),
    (9 * _DAY, 10 * _DAY, 8_000_000),
    (54 * _DAY, 56 * _DAY, 16_000_000),
    (YEAR, 370 * _DAY, 32_000_000),
    (math.inf, 10 * YEAR + 7 * _DAY, 32_000_000),  # ten years is the longest `max_delay`
)

_SECONDS = [seconds for seconds, *_ in _HORIZONS[:-1]]

#: The size of the number in the package's header that identifies a copy of a message.
NUMBER_BITS = 53

#: Hosts of Amazon MQ, where "creating a stream will result in data loss" (its developer guide, version management).
#: Nothing that is documented in what such a broker says of itself tells it from others.
_AMAZON_MQ = re.compile(r"[.]mq[.][a-z0-9-]+[.](amazonaws[.]|on[.]aws\b)", re.ASCII | re.IGNORECASE).search

F = TypeVar("F", bound=Callable[..., Any])

_MALFORMED = (
    *(struct.error, zlib.error),
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
)


class Unreadable(DelayError):
    """A message of a stream is malformed: any user who may publish to ingest can write it."""


def reading(function: F) -> F:
    """Raise `Unreadable` instead of the errors that malformed bytes cause in a function."""

    @wraps(function)
    def wrapper(*args: Any) -> Any:
        try:
            return function(*args)
        except _MALFORMED as exc:
            raise Unreadable(f"it is not what this package writes ({exc})") from exc

    return wrapper  # type: ignore[return-value]


def lose_data(host: str) -> bool:
    """Return whether a broker, by its host or URL, is one where a stream loses data."""
    return _AMAZON_MQ(host) is not None


def _stream(cascade: Cascade, name: str, max_age: int, segment: int) -> Stream:
    return Stream(f"{cascade.streams_root}.{name}", f"@.{name}", max_age, segment)


def journals(cascade: Cascade, max_delay: float = math.inf) -> list[Stream]:
    """Return the journal's streams for delays up to `max_delay` seconds, the one for the shortest delays first."""
    return _all_journals(cascade)[: bisect_left(_SECONDS, max_delay) + 1]


@lru_cache(maxsize=16)
def _all_journals(cascade: Cascade) -> list[Stream]:
    return [_stream(cascade, f"journal.{'max' if at == math.inf else at}", *kept) for at, *kept in _HORIZONS]


def journal_for(cascade: Cascade, delay: float) -> Stream:
    """Return the stream that a message with a delay in seconds is recorded in."""
    return _all_journals(cascade)[bisect_left(_SECONDS, delay)]


def changes(cascade: Cascade) -> Stream:
    """Return the stream of changes, which it keeps as long as a message may wait.

    So all cascades of a prefix declare the same one, unless some have a `max_delay` beyond a year and others have not.
    """
    longest = YEAR if cascade.powers <= levels_for_a_year(cascade.tick) else 10 * YEAR
    return _stream(cascade, "changes", longest + VOID_KEPT, 2_000_000)


def all_streams(cascade: Cascade) -> list[Stream]:
    """Return all streams that may stand beside a cascade."""
    return [changes(cascade), *journals(cascade)]


def levels_for_a_year(tick: timedelta) -> int:
    """Return the number of levels of a cascade whose `max_delay` is a year."""
    return (-(-timedelta(seconds=YEAR) // tick)).bit_length()


def new_number() -> int:
    """Return a random number for a message."""
    return int.from_bytes(os.urandom(7), "big") >> (56 - NUMBER_BITS)

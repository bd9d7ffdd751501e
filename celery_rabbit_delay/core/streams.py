"""The streams beside a cascade: what was sent, and what was changed afterwards. Pure.

    {root}.journal.600    a copy of each delayed message whose delay is at most 600 s, and so on up to `max`
    {root}.changes        the cancelled ids, and the copies of messages that were replaced by other copies
    {root}.keys           for each `x-delay-key`, the message that was sent last

A stream keeps its messages for a limited time (https://www.rabbitmq.com/docs/streams#retention). Messages with delays
of different lengths go to different streams, so that none is kept much longer than it waits.

`journal` says what the messages of the first kind contain, `changes` those of the others. The first byte of a message
tells its kind.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from .errors import DelayError
from .topology import Cascade, Stream

_DAY = 24 * 3600
_TEN_YEARS = 10 * 365 * _DAY

#: For each stream: the longest delay in seconds, the retention in seconds, the size of a segment in bytes.
#: RabbitMQ deletes a segment when its youngest message is old enough, so streams for short delays have small segments.
_HORIZONS = (
    (600, 900, 500_000),
    (3600, 75 * 60, 1_000_000),
    (6 * 3600, 7 * 3600, 2_000_000),
    (36 * 3600, 40 * 3600, 4_000_000),
    (9 * _DAY, 10 * _DAY, 8_000_000),
    (54 * _DAY, 56 * _DAY, 16_000_000),
    (365 * _DAY, 370 * _DAY, 32_000_000),
    # Not `max_delay`: apps that share a cascade may have different ones, and would declare the same stream differently.
    (_TEN_YEARS, _TEN_YEARS + 7 * _DAY, 32_000_000),
)

#: The longest delay, in seconds, of a message with a key.
MAX_KEYED_DELAY = _DAY

#: The size of the number in the package's header that identifies a copy of a message.
NUMBER_BITS = 53

_MARKER, _MARKER_LENGTH = b"m", 16

F = TypeVar("F", bound=Callable[..., Any])

_MALFORMED = (struct.error, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


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


def _stream(cascade: Cascade, name: str, max_age: int, segment: int) -> Stream:
    return Stream(f"{cascade.root}.{name}", f"@.{name}", max_age, segment)


def _journal(cascade: Cascade, horizon: tuple[int, int, int]) -> Stream:
    seconds, max_age, segment = horizon
    return _stream(cascade, f"journal.{'max' if seconds == _TEN_YEARS else seconds}", max_age, segment)


def journals(cascade: Cascade, max_delay: float = _TEN_YEARS) -> list[Stream]:
    """Return the journal's streams for delays up to `max_delay` seconds, the one for the shortest delays first."""
    longest = next(number for number, (seconds, *_) in enumerate(_HORIZONS) if max_delay <= seconds)
    return [_journal(cascade, horizon) for horizon in _HORIZONS[: longest + 1]]


def journal_for(cascade: Cascade, delay: float) -> Stream:
    """Return the stream that a message with a delay in seconds is recorded in."""
    return _journal(cascade, next(horizon for horizon in _HORIZONS if delay <= horizon[0]))


def changes(cascade: Cascade) -> Stream:
    """Return the stream of cancelled ids and moved messages."""
    return _stream(cascade, "changes", _TEN_YEARS + 7 * _DAY, 2_000_000)


def keys(cascade: Cascade) -> Stream:
    """Return the stream of the last messages of each key."""
    return _stream(cascade, "keys", 2 * MAX_KEYED_DELAY, 2_000_000)


def all_streams(cascade: Cascade) -> list[Stream]:
    """Return all streams that a cascade may have."""
    return [changes(cascade), keys(cascade), *journals(cascade)]


def new_number() -> int:
    """Return a random number for a message."""
    return int.from_bytes(os.urandom(7), "big") >> (56 - NUMBER_BITS)


def marker() -> bytes:
    """Return a unique message: a reader that has reached it has read all earlier messages of the stream."""
    return _MARKER + os.urandom(_MARKER_LENGTH)

"""The streams beside a cascade and their contents: the waiting messages, and the changes made to them. Pure.

    {root}.journal.600    a copy of each delayed message whose delay is at most 600 s, and so on up to `max`
    {root}.changes        the cancelled ids, and the copies of messages that were replaced by other copies
    {root}.keys           for each `x-delay-key`, the message that was sent last

A stream keeps its messages for a limited time (https://www.rabbitmq.com/docs/streams#retention). Messages with delays
of different lengths go to different streams, so that none is kept much longer than it waits.
"""

from __future__ import annotations

import json
import math
import os
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from .errors import DelayError, InvalidDelay
from .headers import X_DELAY_SENT
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

#: Seconds after its due time for which a moved message may lie in its queue, and is dropped when it is taken.
VOID_KEPT = 30 * _DAY

_FEW_VOIDS = 1000

#: Seconds by which the clocks of two publishers may differ.
CLOCKS_DIFFER = 60

#: The size of the number in the package's header that identifies a copy of a message.
NUMBER_BITS = 53

_RECORD, _MARKER, _FILLER, _UUIDS, _IDS, _STAMPS, _VOID, _KEY = b"r", b"m", b"f", b"u", b"c", b"s", b"v", b"k"
_HEAD = struct.Struct(">QQHHII")  # due, number, length of id, of key, of properties, of body
_TIME, _PAIR = struct.Struct(">Q"), struct.Struct(">QQ")
_MARKER_LENGTH = 16
_DATED = (_RECORD, _FILLER)

#: Bytes of a filler, and ids in a message that cancels them. RabbitMQ 4 takes no message of more than 16 MiB.
_MAX_FILLER, _MAX_IDS = 1_000_000, 10_000

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


def check_keyed_delay(delay: int) -> None:
    """Raise `InvalidDelay` if a delay in microseconds is too long for a message with a key."""
    if delay > MAX_KEYED_DELAY * 1_000_000:
        raise InvalidDelay(
            f"a message with an x-delay-key may wait for {MAX_KEYED_DELAY} s at most, but this one has a delay of "
            f"{delay / 1_000_000:.3f} s: choose an earlier eta, or leave the key out"
        )


def new_number() -> int:
    """Return a random number for a message."""
    return int.from_bytes(os.urandom(7), "big") >> (56 - NUMBER_BITS)


class Record(NamedTuple):
    """A delayed message as it is stored in the journal."""

    due: int  # milliseconds since 1970
    number: int
    id: str  # Celery's task id, or another message's correlation id or message id
    key: str  # of x-delay-key, or ""
    properties: bytes  # of the message in the cascade, as AMQP writes them
    body: bytes

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return _HEAD.size + len(self.id) + len(self.key) + len(self.properties) + len(self.body)


def pack_records(records: Iterable[Record], now: int) -> bytes:
    """Return a message for a journal; `now` is in milliseconds since 1970."""
    parts = [_RECORD, _TIME.pack(now)]
    for due, number, id_, key, properties, body in records:
        name, key_ = id_.encode(errors="replace")[:1024], key.encode()
        parts += [_HEAD.pack(due, number, len(name), len(key_), len(properties), len(body)), name, key_]
        parts += [properties, body]
    return b"".join(parts)


@reading
def unpack_records(message: bytes) -> list[Record]:
    """Return the records in a message of a journal; none if the message has another kind. Raises `Unreadable`."""
    records: list[Record] = []
    if message[:1] != _RECORD:
        return records
    at = 1 + _TIME.size
    while at < len(message):
        due, number, *lengths = _HEAD.unpack_from(message, at)
        at += _HEAD.size
        parts = []
        for length in lengths:
            parts.append(message[at : at + length])
            at += length
        id_, key, properties, body = parts
        records.append(
            Record(due, number, id_.decode(errors="replace"), key.decode(errors="replace"), properties, body)
        )
    if at > len(message):
        raise ValueError(f"it ends {at - len(message)} bytes too soon")
    return records


def published(message: bytes) -> int | None:
    """Return when records or a filler were published, in milliseconds since 1970; None if a message does not say."""
    return _TIME.unpack_from(message, 1)[0] if message[:1] in _DATED and len(message) > _TIME.size else None


def marker() -> bytes:
    """Return a unique message: a reader that has reached it has read all earlier messages of the stream."""
    return _MARKER + os.urandom(_MARKER_LENGTH)


def fillers(size: int, now: int) -> list[bytes]:
    """Return messages that contain only their time of publishing, of a total size in bytes, or a few bytes more."""
    head = _FILLER + _TIME.pack(now)
    return [head.ljust(min(_MAX_FILLER, size - at), b"\0") for at in range(0, size, _MAX_FILLER)]


class TooOld:
    """How much of a stream is older than it keeps, as far as it has been read.

    RabbitMQ deletes segments that are too old only when it begins another, which `fillers` make it do.
    """

    def __init__(self, stream: Stream, now: int) -> None:
        """`now` is in milliseconds since 1970."""
        self._since = now - stream.max_age * 1000
        self._left = 2 * stream.segment  # bytes: so many have a whole segment among them
        self._was_filled = False

    def add(self, message: bytes) -> None:
        """Take note of a message of the stream."""
        sent = published(message)
        if sent is None:
            return
        is_record = message[:1] == _RECORD
        if sent >= self._since:
            self._was_filled |= not is_record
        elif is_record:
            self._left -= len(message)

    @property
    def is_much(self) -> bool:
        """Whether another segment frees more than it takes, and nobody has begun one within the time that is kept."""
        return self._left <= 0 and not self._was_filled


def cancelled(ids: Iterable[str]) -> Iterator[bytes]:
    """Yield messages that cancel tasks."""
    uuids: list[bytes] = []
    others: list[str] = []
    for id_ in ids:
        short = _uuid(id_)
        if short is None:
            others.append(id_)
        else:
            uuids.append(short)
    for at in range(0, len(uuids), _MAX_IDS):
        yield _UUIDS + b"".join(uuids[at : at + _MAX_IDS])
    for at in range(0, len(others), _MAX_IDS):
        yield _IDS + json.dumps(others[at : at + _MAX_IDS]).encode()


def cancelled_stamps(stamps: Mapping[str, Any], clock: Callable[[], float] = time.time) -> bytes:
    """Return a message that cancels all tasks sent until now with one of the given values of a stamp.

    `clock` returns seconds since 1970.
    """
    now = _TIME.pack(int(clock() * 1000))
    return _STAMPS + now + json.dumps({name: _items(value) for name, value in stamps.items()}, default=str).encode()


def is_sent_before(headers: Mapping[str, Any], cancelled: int) -> bool:
    """Return whether a task may have been sent before it was cancelled by a stamp, in milliseconds since 1970.

    One that does not say when it was sent may: it comes from an earlier release, or was sent without a delay at first.
    """
    sent = headers.get(X_DELAY_SENT)
    return not isinstance(sent, int) or sent <= cancelled + CLOCKS_DIFFER * 1000


def void(number: int, due: int) -> bytes:
    """Return a message that marks a copy of a message as void, so that it is not delivered.

    `due` is the due time of the copy, in milliseconds since 1970.
    """
    return _VOID + _TIME.pack(number) + _TIME.pack(due)


def last_of_key(key: str, number: int) -> bytes:
    """Return a message that names the last message of a key."""
    return _KEY + _TIME.pack(number) + key.encode()


class Changes:
    """The state that the stream `changes` describes, as far as it has been read.

    Void copies are forgotten `VOID_KEPT` seconds after they were due.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns seconds since 1970."""
        self._clock = clock
        self._uuids: set[bytes] = set()
        self._ids: set[str] = set()
        self._stamps: dict[str, dict[str, int]] = {}
        self._voids: dict[int, float] = {}  # when each is due, in milliseconds
        self._enough = _FEW_VOIDS  # as many as make it look for those that can be forgotten

    @reading
    def apply(self, message: bytes) -> list[str]:
        """Apply a message of the stream; return the ids that are cancelled from now on. Raises `Unreadable`."""
        kind, content = message[:1], message[1:]
        if kind == _UUIDS:
            whole = [content[at : at + 16] for at in range(0, len(content), 16)]
            ids = {one: str(uuid.UUID(bytes=one)) for one in whole if one not in self._uuids}
            self._uuids.update(ids)
            return list(ids.values())
        if kind == _IDS:
            texts = dict.fromkeys(str(id_) for id_ in json.loads(content))
            new = [id_ for id_ in texts if id_ not in self._ids]
            self._ids.update(new)
            return new
        if kind == _STAMPS:
            now, stamps = *_TIME.unpack_from(content), json.loads(content[_TIME.size :])
            for name, values in {name: list(map(str, values)) for name, values in stamps.items()}.items():
                known = self._stamps.setdefault(name, {})
                known.update((value, max(now, known.get(value, 0))) for value in values)
        elif kind == _VOID:
            number, due = _PAIR.unpack(content) if len(content) == _PAIR.size else (*_TIME.unpack(content), math.inf)
            self._add_void(number, due)
        return []

    def _add_void(self, number: int, due: float) -> None:
        earliest = (self._clock() - VOID_KEPT) * 1000
        if due >= earliest:
            self._voids[number] = due
        if len(self._voids) >= self._enough:
            self._voids = {number: due for number, due in self._voids.items() if due >= earliest}
            self._enough = max(_FEW_VOIDS, 2 * len(self._voids))

    def cancels(self, id_: str, headers: Mapping[str, Any] | None = None) -> bool:
        """Return whether a task was cancelled, by its id or by a stamp in its headers."""
        if not (self._uuids or self._ids or self._stamps):  # the common case; `list` calls this for each record
            return False
        short = _uuid(id_)
        if (id_ in self._ids) if short is None else (short in self._uuids):
            return True
        stamps = headers.get("stamps") if headers and self._stamps else None
        if headers is None or not isinstance(stamps, Mapping):
            return False
        return any(
            (at := values.get(str(value))) is not None and is_sent_before(headers, at)
            for name, values in self._stamps.items()
            for value in _items(stamps.get(name))
        )

    @property
    def has_stamps(self) -> bool:
        return bool(self._stamps)

    @property
    def stamps(self) -> Mapping[str, Mapping[str, int]]:
        """The values of each stamp by which tasks were cancelled, and when, in milliseconds since 1970."""
        return self._stamps

    @property
    def void(self) -> Iterable[int]:
        """The numbers of the void copies."""
        return self._voids

    def voids(self, number: object) -> bool:
        """Return whether a copy of a message is void."""
        return number in self._voids


class Keys:
    """The state that the stream `keys` describes, as far as it has been read.

    Entries are kept at least as long as the stream keeps them, from the time of reading: the stream does not contain
    the time of writing. A message of which nothing was read yet does not count as replaced, because it may be due
    before its entry is read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Use `clock`, a monotonic clock in seconds."""
        self._clock = clock
        self._since = clock()
        self._last: dict[str, int] = {}
        self._replaced: set[int] = set()
        self._before: tuple[dict[str, int], set[int]] = ({}, set())  # entries from before `_since`

    @reading
    def apply(self, message: bytes) -> None:
        """Apply a message of the stream. Raises `Unreadable`."""
        if message[:1] == _KEY:
            key, number = message[1 + _TIME.size :].decode(), _TIME.unpack_from(message, 1)[0]
            now = self._clock()
            if now - self._since >= 2 * MAX_KEYED_DELAY:
                self._since, self._before = now, (self._last, self._replaced)
                self._last, self._replaced = {}, set()
            last, replaced = self._before
            previous = self._last.get(key, last.get(key, number))
            if previous != number:
                self._replaced.add(previous)
            for numbers in (self._replaced, replaced):
                numbers.discard(number)  # a message that is published again after an error is the last one again
            self._last[key] = number

    @property
    def last(self) -> Mapping[str, int]:
        """The number of the message that was sent last, by key."""
        last, _ = self._before
        return {**last, **self._last}

    @property
    def replaced(self) -> Set[int]:
        """The numbers of messages that a later message with the same key replaces."""
        _, replaced = self._before
        return self._replaced | replaced

    def replaces(self, number: int) -> bool:
        """Return whether a later message with the same key replaces a message."""
        _, replaced = self._before
        return number in self._replaced or number in replaced


def _uuid(id_: str) -> bytes | None:
    """Return an id in 16 bytes if it is a UUID as Celery writes it."""
    if len(id_) != 36:
        return None
    try:
        value = uuid.UUID(id_)
    except ValueError:
        return None
    return value.bytes if str(value) == id_ else None


def _items(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]

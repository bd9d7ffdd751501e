"""What the stream `changes` contains, and what a reader remembers of it, such as so many cancelled ids. Pure."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from typing import Any, NamedTuple

from ...delay.core.errors import DelayError
from ...unreadable import reading
from .streams import VOID_KEPT

_FEW_VOIDS = 1000

_UUIDS, _IDS, _STAMPS, _VOID, _PAUSE, _RESTORED = b"u", b"c", b"s", b"v", b"p", b"b"
_COPY = struct.Struct(">QQ")

#: Ids in a message that cancels them.
_MAX_IDS = 10_000

#: Bytes of a message, and of an id in it.
MAX_BYTES, _MAX_ID = 2_000_000, 255

#: Of each kind of ids, and of void copies, at least so many are known, the last ones, and at most twice as many.
KEPT = 500_000

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Pause(NamedTuple):
    """A queue from which no worker takes messages, until a time in milliseconds since 1970."""

    queue: str
    until: int | None = None  # None: until it is resumed, by another one for the queue that is over

    @property
    def end(self) -> datetime | None:
        """When it ends, in UTC; None: when it is resumed."""
        return None if self.until is None else _EPOCH + timedelta(milliseconds=self.until)

    def is_over(self, now: int) -> bool:
        return self.until is not None and self.until <= now


def cancelled(ids: Iterable[str]) -> Iterator[bytes]:
    """Yield messages that cancel the tasks with some ids."""
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
    yield from _texts(_IDS, others)


def restored(ids: Iterable[str]) -> Iterator[bytes]:
    """Yield messages that take back what cancelled some ids before them in the stream."""
    return _texts(_RESTORED, list(ids))


def _texts(kind: bytes, ids: list[str]) -> Iterator[bytes]:
    several = min(_MAX_IDS, MAX_BYTES // (6 * _MAX_ID + 4))  # JSON escapes a character with up to 6 bytes per byte
    for at in range(0, len(ids), several):
        yield kind + json.dumps(ids[at : at + several]).encode()


def cancelled_stamps(stamps: Mapping[str, Any]) -> bytes:
    """Return a message that cancels all tasks with one of the given values of a stamp."""
    values = {name: _items(value) for name, value in stamps.items()}
    message = _STAMPS + json.dumps(values, default=str).encode()
    if len(message) > MAX_BYTES:
        raise DelayError(
            f"these stamps take {len(message):,} bytes: revoke at most {MAX_BYTES:,} bytes of them at a time"
        )
    return message


def void(number: int, due: int) -> bytes:
    """Return a message that marks a copy of a message as void, so that it is not delivered.

    `due` is the due time of the copy, in milliseconds since 1970.
    """
    return _VOID + _COPY.pack(number, due)


def pause(one: Pause) -> bytes:
    """Return a message that pauses a queue, or resumes it: the last one for a queue counts."""
    return _PAUSE + json.dumps(one).encode()


@dataclass
class _Newest:
    """The ids that were cancelled last, at least `KEPT` and at most twice as many."""

    items: set[bytes | str] = field(default_factory=set)
    before: set[bytes | str] = field(default_factory=set)

    def __contains__(self, item: bytes | str) -> bool:
        return item in self.items or item in self.before

    def add(self, item: bytes | str) -> bool:
        """Add an item; return whether others were forgotten for it."""
        forgets = len(self.items) >= KEPT and bool(self.before)
        if len(self.items) >= KEPT:
            self.before, self.items = self.items, set()
        self.items.add(item)
        return forgets

    def discard(self, item: bytes | str) -> None:
        self.items.discard(item)
        self.before.discard(item)


class Changes:
    """The state that the stream `changes` describes, as far as it has been read.

    Void copies are forgotten `VOID_KEPT` seconds after they were due, and whatever is old if there is too much. A copy
    that is void remains so, because a consumer may have dropped it.
    """

    #: Whether cancelled ids were forgotten, because there were too many.
    has_forgotten = False

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since 1970."""
        self._clock = clock
        self._uuids = _Newest()
        self._ids = _Newest()
        #: The values of each stamp by which tasks were cancelled.
        self.stamps: dict[str, set[str]] = {}
        self._pauses: dict[str, Pause] = {}
        #: By the number of a void copy, when it is due, in milliseconds.
        self._voids: dict[int, int] = {}
        self._enough = _FEW_VOIDS  # as many as make it look for those that can be forgotten
        #: Is called with the number of each copy that becomes void.
        self.on_void: Callable[[int], object] = lambda number: None

    @reading
    def apply(self, message: bytes) -> list[str]:
        """Apply a message of the stream; return the ids that it cancels anew, or restores. Raises `Unreadable`."""
        kind, content = message[:1], message[1:]
        if kind == _UUIDS:
            whole = [content[at : at + 16] for at in range(0, len(content), 16)]
            ids = {one: str(uuid.UUID(bytes=one)) for one in whole if one not in self._uuids}
            self._add(self._uuids, ids)
            return list(ids.values())
        if kind in (_IDS, _RESTORED):
            texts = list(dict.fromkeys(map(str, json.loads(content))))
            if kind == _RESTORED:
                for id_ in texts:
                    self._uuids.discard(_uuid(id_) or b"")
                    self._ids.discard(id_)
                return texts
            new = [id_ for id_ in texts if id_ not in self._ids]
            self._add(self._ids, new)
            return new
        if kind == _STAMPS:
            stamps = json.loads(content)
            for name, values in {name: list(map(str, values)) for name, values in stamps.items()}.items():
                self.stamps.setdefault(name, set()).update(values)
        elif kind == _VOID:
            self._void(*_COPY.unpack(content))
        elif kind == _PAUSE:
            queue, until = json.loads(content)
            self._add_pause(Pause(str(queue), None if until is None else int(until)))
        return []

    def _add(self, known: _Newest, ids: Iterable[bytes | str]) -> None:
        for id_ in ids:
            self.has_forgotten |= known.add(id_)

    def _void(self, number: int, due: int) -> None:
        earliest = (self._clock() - VOID_KEPT) * 1000
        if number not in self._voids and due >= earliest:
            self._voids[number] = due
            self.on_void(number)
        if len(self._voids) >= self._enough:
            latest = sorted(self._voids.items(), key=itemgetter(1))[-KEPT:]
            self._voids = {number: due for number, due in latest if due >= earliest}
            self._enough = max(_FEW_VOIDS, 2 * len(self._voids))

    def _add_pause(self, one: Pause) -> None:
        self._pauses.pop(one.queue, None)
        if not one.is_over(int(self._clock() * 1000)):
            self._pauses[one.queue] = one

    def has_cancelled(self, id_: str) -> bool:
        """Return whether an id was cancelled. Messages without one are not cancelled by it."""
        short = _uuid(id_)
        return bool(id_) and (id_ in self._ids if short is None else short in self._uuids)

    def cancels(self, id_: str, headers: Mapping[str, Any] | None = None) -> bool:
        """Return whether a task was cancelled, by its id or by a stamp in its headers."""
        stamps = (headers or {}).get("stamps")
        return self.has_cancelled(id_) or (
            isinstance(stamps, Mapping)
            and any(str(value) in values for name, values in self.stamps.items() for value in _items(stamps.get(name)))
        )

    def paused(self, now: int) -> dict[str, Pause]:
        """Return the queues that are paused, by their names, `now` in milliseconds since 1970."""
        return {one.queue: one for one in list(self._pauses.values()) if not one.is_over(now)}

    def voids(self, number: object) -> bool:
        """Return whether a copy of a message is void."""
        return number in self._voids


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

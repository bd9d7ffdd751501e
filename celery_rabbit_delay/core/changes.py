"""What the stream `changes` contains, and what it adds up to. Pure."""

from __future__ import annotations

import itertools
import json
import math
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import DelayError
from .headers import X_DELAY_SENT, own
from .streams import VOID_KEPT, reading

_FEW_VOIDS = 1000

#: Seconds by which the clocks of two publishers may differ.
CLOCKS_DIFFER = 60

_UUIDS, _IDS, _STAMPS, _VOID = b"u", b"c", b"s", b"v"
_CHANGES = (_UUIDS, _IDS, _STAMPS, _VOID)
_TIME, _PAIR = struct.Struct(">Q"), struct.Struct(">QQ")

#: Ids in a message that cancels them.
_MAX_IDS = 10_000

#: Bytes of a message, of an id in it, and of all stamps, each of which takes some itself. Whoever may write to ingest
#: may make up others, and every worker would take them into its memory.
MAX_BYTES, _MAX_ID, _MAX_STAMPS, _STAMP = 2_000_000, 255, 10_000_000, 100

#: Of each kind of ids, and of void copies, at least so many are known, the last ones, and at most twice as many. Of
#: messages with keys, at least half.
KEPT = 500_000


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
    several = min(_MAX_IDS, MAX_BYTES // (6 * _MAX_ID + 4))  # JSON escapes a character with up to 6 bytes per byte
    for at in range(0, len(others), several):
        yield _IDS + json.dumps(others[at : at + several]).encode()


def cancelled_stamps(stamps: Mapping[str, Any], now: int) -> bytes:
    """Return a message that cancels all tasks sent until now with one of the given values of a stamp.

    `now` is in milliseconds since 1970.
    """
    values = {name: _items(value) for name, value in stamps.items()}
    message = _STAMPS + _TIME.pack(now) + json.dumps(values, default=str).encode()
    if len(message) > MAX_BYTES:
        raise DelayError(
            f"these stamps take {len(message):,} bytes: revoke at most {MAX_BYTES:,} bytes of them at a time"
        )
    return message


def is_sent_before(headers: Mapping[str, Any], cancelled: int) -> bool:
    """Return whether a task may have been sent before it was cancelled by a stamp, in milliseconds since 1970.

    One that does not say when it was sent may: it comes from an earlier release, or was sent without a delay at first.
    """
    sent = own(headers).get(X_DELAY_SENT)
    return not isinstance(sent, int) or sent <= cancelled + CLOCKS_DIFFER * 1000


def void(number: int, due: int) -> bytes:
    """Return a message that marks a copy of a message as void, so that it is not delivered.

    `due` is the due time of the copy, in milliseconds since 1970.
    """
    return _VOID + _TIME.pack(number) + _TIME.pack(due)


def check_size(message: bytes) -> None:
    """Raise `ValueError` if a message is longer than any of ours."""
    if len(message) > MAX_BYTES:
        raise ValueError(f"it has {len(message):,} bytes")


@dataclass
class _Newest:
    """The items of a set that were added last: at least `KEPT`, and at most twice as many."""

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


class Changes:
    """The state that the stream `changes` describes, as far as it has been read.

    Void copies are forgotten `VOID_KEPT` seconds after they were due, and whatever is old if there is too much.
    """

    #: Whether cancelled ids were forgotten, because there were too many.
    has_forgotten = False

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since 1970."""
        self._clock = clock
        self._uuids = _Newest()
        self._ids = _Newest()
        self._stamps: dict[str, dict[str, int]] = {}
        self._stamped = 0  # bytes in them
        self._voids: dict[int, float] = {}  # when each is due, in milliseconds
        self._enough = _FEW_VOIDS  # as many as make it look for those that can be forgotten

    @reading
    def apply(self, message: bytes) -> list[str]:
        """Apply a message of the stream; return the ids that are cancelled from now on. Raises `Unreadable`."""
        kind, content = message[:1], message[1:]
        if kind in _CHANGES:  # and not a record of the journal, which may be as large as a message
            check_size(message)
        if kind == _UUIDS:
            whole = [content[at : at + 16] for at in range(0, len(content), 16)]
            ids = {one: str(uuid.UUID(bytes=one)) for one in whole if one not in self._uuids}
            self._add(self._uuids, ids)
            return list(ids.values())
        if kind == _IDS:
            texts = dict.fromkeys(str(id_) for id_ in json.loads(content))
            new = [id_ for id_ in texts if id_ not in self._ids and len(id_) <= _MAX_ID]
            self._add(self._ids, new)
            return new
        if kind == _STAMPS:
            now, stamps = *_TIME.unpack_from(content), json.loads(content[_TIME.size :])
            for name, values in {name: list(map(str, values)) for name, values in stamps.items()}.items():
                self._add_stamp(name, values, now)
        elif kind == _VOID:
            number, due = _PAIR.unpack(content) if len(content) == _PAIR.size else (*_TIME.unpack(content), math.inf)
            self._add_void(number, due)
        return []

    def _add(self, known: _Newest, ids: Iterable[bytes | str]) -> None:
        for id_ in ids:
            self.has_forgotten |= known.add(id_)

    def _add_stamp(self, name: str, values: Iterable[str], now: int) -> None:
        for value in values:
            known = self._stamps.setdefault(name, {})
            self._stamped += 0 if value in known else len(name) + len(value) + _STAMP
            known[value] = max(now, known.get(value, 0))
        if self._stamped > _MAX_STAMPS:
            newest = sorted(((at, name, one) for name, ones in self._stamps.items() for one, at in ones.items()))
            self._stamps, self._stamped = {}, 0
            while self._stamped <= _MAX_STAMPS // 2:
                at, of, one = newest.pop()
                self._add_stamp(of, [one], at)

    def _add_void(self, number: int, due: float) -> None:
        earliest = (self._clock() - VOID_KEPT) * 1000
        if due >= earliest:
            self._voids[number] = due
        if len(self._voids) >= self._enough:
            latest = itertools.islice(reversed(self._voids.items()), KEPT)
            self._voids = {number: due for number, due in reversed(list(latest)) if due >= earliest}
            self._enough = max(_FEW_VOIDS, 2 * len(self._voids))

    def cancels(self, id_: str, headers: Mapping[str, Any] | None = None) -> bool:
        """Return whether a task was cancelled, by its id or by a stamp in its headers."""
        if not (self._uuids.items or self._ids.items or self._stamps):  # the common case: `list` asks for each record
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

"""What the streams of the journal contain: a record of each delayed message. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from .streams import reading
from .topology import Stream

_RECORD, _FILLER = b"r", b"f"
_DATED = (_RECORD, _FILLER)
_TIME = struct.Struct(">Q")
_HEAD = struct.Struct(">QQHHII")  # due, number, length of id, of key, of properties, of body

#: Bytes of a filler. RabbitMQ 4 takes no message of more than 16 MiB.
_MAX_FILLER = 1_000_000


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

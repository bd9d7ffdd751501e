"""What the streams of the journal contain: records of delayed messages, and how many of them one message has. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...delay.core.topology import Stream
from ...unreadable import reading

_RECORD = b"r"
_HEAD = struct.Struct(">QQHII")  # due, number, length of id, of properties, of body

#: The maximum number of records, and of their bytes, in one message of a stream. Fewer messages are faster to read.
_MAX_RECORDS, _MAX_BYTES = 100, 100_000


class Record(NamedTuple):
    """A delayed message as it is stored in the journal."""

    due: int  # milliseconds since 1970
    number: int
    id: str  # Celery's task id, or another message's correlation id or message id
    properties: bytes  # of the message in the cascade, as AMQP writes them
    body: bytes

    @property
    def identity(self) -> object:
        """What tells the message from others, also if it was published again after an error, with another number."""
        return (self.id, self.due) if self.id else self.number

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return _HEAD.size + len(self.id) + len(self.properties) + len(self.body)


def packs(records: Iterable[tuple[Stream, Record]]) -> Iterator[tuple[Stream, list[Record]]]:
    """Yield records of the same stream together, as many as one message of it holds."""
    open_: dict[Stream, list[Record]] = {}
    for stream, record in records:
        pack = open_.setdefault(stream, [])
        if len(pack) >= _MAX_RECORDS or (pack and sum(one.size for one in pack) + record.size > _MAX_BYTES):
            yield stream, pack
            pack = open_[stream] = []
        pack.append(record)
    yield from open_.items()


def pack_records(records: Iterable[Record]) -> bytes:
    """Return a message for a journal."""
    parts = [_RECORD]
    for due, number, id_, properties, body in records:
        name = id_.encode(errors="replace")[:1024]
        parts += [_HEAD.pack(due, number, len(name), len(properties), len(body)), name, properties, body]
    return b"".join(parts)


@reading
def unpack_records(message: bytes) -> list[Record]:
    """Return the records in a message of a journal; none if the message has another kind. Raises `Unreadable`."""
    records: list[Record] = []
    if message[:1] != _RECORD:
        return records
    at = len(_RECORD)
    while at < len(message):
        due, number, *lengths = _HEAD.unpack_from(message, at)
        at += _HEAD.size
        parts = []
        for length in lengths:
            parts.append(message[at : at + length])
            at += length
        id_, properties, body = parts
        records.append(Record(due, number, id_.decode(errors="replace"), properties, body))
    if at > len(message):
        raise ValueError(f"it ends {at - len(message)} bytes too soon")
    return records

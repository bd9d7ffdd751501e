"""What became of the messages that were recorded: the streams of records and changes, added up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from .changes import Changes
from .journal import Record, unpack_records


class Fate(Enum):
    """What became of a message."""

    WAITS = "waits"  # or, once it has arrived, is to be delivered
    CANCELLED = "cancelled"
    MOVED = "moved"


class Fates:
    """What streams have said so far, in any order, of the messages that were recorded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds since 1970."""
        self.changes = Changes(clock)

    def apply(self, message: bytes) -> list[Record]:
        """Apply a message of any of the streams; return the records in it. Raises `Unreadable`."""
        self.changes.apply(message)
        return unpack_records(message)

    def of(self, record: Record, now: int, headers: Callable[[Record], Mapping[str, Any]]) -> Fate | None:
        """Return what became of a message; None if it is due, `now` in milliseconds since 1970.

        Raises what `headers` raises, which returns the message's headers.
        """
        if record.due <= now:
            return None
        return fate(self.changes, record.number, record.id, lambda: headers(record))


def fate(changes: Changes, number: int | None, id_: str, headers: Callable[[], Mapping[str, Any]]) -> Fate:
    """Return what became of a message, by its number, if it has one, its id, and its headers."""
    if changes.voids(number):
        return Fate.MOVED
    known = headers() if changes.stamps else None  # reading them takes time
    return Fate.CANCELLED if changes.cancels(id_, known) else Fate.WAITS

"""What became of the messages that were recorded: the streams of records, changes and keys, added up. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from .changes import Changes
from .journal import Record, unpack_records
from .keys import Keys
from .sent import Sent


class Fate(Enum):
    """What became of a message that is not due yet."""

    WAITS = "waits"
    CANCELLED = "cancelled"
    MOVED = "moved"
    REPLACED = "replaced"


class Fates:
    """What streams have said so far, in any order, of the messages that were recorded."""

    def __init__(self, clock: Callable[[], float], before: Sent | None = None) -> None:
        """`clock` returns seconds since 1970. With `before`, cancellations from that moment on do not count."""
        self.changes, self.keys = Changes(clock, before), Keys(clock)

    def apply(self, message: bytes) -> list[Record]:
        """Apply a message of any of the streams; return the records in it. Raises `Unreadable`."""
        self.changes.apply(message)
        self.keys.apply(message)
        return unpack_records(message)

    def of(self, record: Record, now: int, headers: Callable[[Record], Mapping[str, Any]]) -> Fate | None:
        """Return what became of a message; None if it is due, `now` in milliseconds since 1970.

        Raises what `headers` raises, which returns the message's headers.
        """
        if record.due <= now:
            return None
        if self.changes.voids(record.number):
            return Fate.MOVED
        if self.keys.replaces(record.number):
            return Fate.REPLACED
        known = self.changes
        may_be = known.stamps or known.workflows or known.cancelled_at(record.id)  # else headers, which take time
        return Fate.CANCELLED if may_be and known.cancels(record.id, headers(record)) else Fate.WAITS

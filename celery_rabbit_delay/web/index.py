"""The index: for each message that waits or is cancelled a `Row` in memory, with what the page's table shows of it.

One thread applies what streams say. Others read `Index.view`, which is replaced by another one and never changed.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..operate.queue_names import QueueNames
from ..schedule.amqp import waiting_tasks
from ..schedule.amqp.stream_consumer import StreamMessage
from ..schedule.core import streams
from ..schedule.core.changes import Pause
from ..schedule.core.fates import Fate, Fates
from ..schedule.core.journal import Record, unpack_records
from ..unreadable import Unreadable, reading
from .printing import SEARCHED, body_text, clean, printable

#: The messages that are kept: those that are due first. When half of them are left, the journal is read again.
MOST = 500_000

#: The end of the year 9999, in milliseconds: the latest due time.
_LATEST = 253_402_300_799_999

#: The limit of the messages' numbers.
NUMBERS = 1 << streams.NUMBER_BITS

#: Milliseconds that a message stays after its due time, so that it does not vanish from a page that was just shown.
_KEEP = 2000


class Row(NamedTuple):
    """A message that waits or is cancelled. Rows are sorted by their first two fields, which no other has."""

    due: int  # milliseconds since 1970
    number: int
    id: str
    task: str  # "" for a message that is not a Celery task
    queue: str
    retries: int
    arguments: str  # truncated
    stream: str
    offset: int


class View(NamedTuple):
    """What the index has at a moment, the soonest first."""

    waiting: list[Row]
    cancelled: list[Row]
    later: Mapping[str, int] = {}  # messages that wait, are due after these, and are not kept, by queue


class Index:
    """The rows for some queues. Only one thread may call what changes it."""

    def __init__(self, queues: QueueNames) -> None:
        self.view = View([], [])
        self._queues = queues
        self._now = 0
        self._fates = Fates(lambda: self._now / 1000)
        self._void: list[int] = []  # numbers of copies that became void since the view was made
        self._fates.changes.on_void = self._void.append
        self._told: set[str] = set()  # ids that were cancelled or restored since then
        self._new: list[Row] = []  # since then
        self._sorted: list[Row] = []
        self._rows: dict[int, Row] = {}
        self._cancelled: set[int] = set()  # numbers
        self._marks: dict[int, Mapping[str, Any]] = {}  # headers by which a message may be cancelled
        self._until = math.inf  # messages that are due after this are not kept
        self._later = Counter[str]()  # those that wait, by queue

    def paused(self, now: int) -> dict[str, Pause]:
        """Return the paused queues by their names, as far as the streams were read. Any thread may ask."""
        return self._fates.changes.paused(now)

    @property
    def is_exhausted(self) -> bool:
        """Whether so many messages became due that those which were not kept are among the first ones soon."""
        return bool(self._later) and len(self._rows) < MOST // 2

    def expect_all(self) -> None:
        """Keep what is due first of all messages, which are applied once more from now on."""
        self._until, self._later = math.inf, Counter()

    def apply(self, entry: StreamMessage, now: int) -> None:
        """Take a message of a stream, in any order of the journal's; `now` is in milliseconds since 1970."""
        self._now = now
        with suppress(Unreadable):
            self._told.update(map(clean, self._fates.changes.apply(entry.body)))
            for record in unpack_records(entry.body):
                with suppress(Unreadable):
                    self._add(record, entry)

    @reading
    def _add(self, record: Record, entry: StreamMessage) -> None:
        """Add a row for a record that is about one of the queues."""
        if record.number in self._rows or record.number >= NUMBERS or record.due > _LATEST:
            return  # a stream may have a record twice
        headers = waiting_tasks.headers_in(record)
        fate = self._fates.of(record, self._now, lambda record: headers)
        if fate in (None, Fate.MOVED) or not waiting_tasks.concerns(headers, self._queues):
            return
        shown = waiting_tasks.describe(record, headers, self._queues)
        if record.due > self._until:
            self._later[_name(shown.queue)] += fate is Fate.WAITS
            return
        if shown.task is None:
            arguments = body_text(record.body, SEARCHED)
        else:
            parts = [text for text in (shown.args, shown.kwargs) if text not in (None, "()", "{}")]
            arguments = printable(" ".join(map(str, parts)), SEARCHED)
        row = self._rows[record.number] = Row(
            record.due,
            record.number,
            clean(record.id),
            _name(shown.task or ""),
            _name(shown.queue),
            shown.retries,
            clean(arguments),
            entry.stream,
            entry.offset,
        )
        self._new.append(row)
        if fate is Fate.CANCELLED:
            self._cancelled.add(record.number)
        if headers.get("stamps"):
            self._marks[record.number] = {"stamps": headers["stamps"]}

    def settle(self, now: int) -> None:
        """Make a new view: of what was applied, without what is due; `now` is in milliseconds since 1970."""
        rows, changes = self._rows, self._fates.changes
        self._forget(rows[number] for number in self._void if number in rows)
        told = [row for row in rows.values() if row.id in self._told] if self._told else []
        if changes.stamps:
            told += [rows[number] for number in self._marks]
        for row in told:
            is_cancelled = changes.cancels(row.id, self._marks.get(row.number))
            (self._cancelled.add if is_cancelled else self._cancelled.discard)(row.number)
        found = [row for row in (*self._sorted, *self._new) if rows.get(row.number) is row]
        found.sort()
        due = bisect_right(found, now - _KEEP, key=_due)
        self._forget(found[:due])
        if len(found) - due > MOST + MOST // 10:
            dropped = found[due + MOST :]
            self._until = found[due + MOST - 1].due
            self._later.update(row.queue for row in dropped if row.number not in self._cancelled)
            self._forget(dropped)
            del found[due + MOST :]
        del found[:due]
        self._void.clear()
        self._told.clear()
        self._sorted, self._new = found, []
        parts: tuple[list[Row], list[Row]] = [], []
        for row in found:
            parts[row.number in self._cancelled].append(row)
        self.view = View(*parts, dict(self._later))

    def _forget(self, gone: Iterable[Row]) -> None:
        for row in gone:
            del self._rows[row.number]
            self._cancelled.discard(row.number)
            self._marks.pop(row.number, None)


def _due(row: Row) -> int:
    return row.due


def _name(text: str) -> str:
    """Return a name, which many rows share."""
    return sys.intern(clean(text)[:255])

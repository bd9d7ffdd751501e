"""An index of waiting messages in an SQLite file: fed from the journal's streams, read by the page and the metrics.

The file grows with the journal, but the memory of the process does not. After a restart the index continues where it
stopped, because it stores the contents of a stream together with the position in it. What was said of messages, such as
that they are cancelled, it reads anew at each start and keeps in memory, as a worker does.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..amqp import schedule as schedule_
from ..amqp.destinations import QueueNames
from ..amqp.stream_consumer import Place, StreamMessage
from ..core import streams
from ..core.changes import Pause
from ..core.fates import Fates
from ..core.headers import X_DELAY_SENT, own
from ..core.journal import Record
from ..core.streams import Unreadable
from .database import (
    STATES,
    TABLES,
    VERSION,
    IndexDamaged,
    IndexUnusable,
    clean,
    connect,
    create,
    delete,
    lock,
    noticing_damage,
)
from .printing import SEARCHED, body_text, printable

logger = logging.getLogger(__name__)

#: The end of the year 9999, in milliseconds: the latest due time.
_LATEST = 253_402_300_799_999

#: The limit of the messages' numbers.
NUMBERS = 1 << streams.NUMBER_BITS

#: The maximum number of past rows to remove at a time.
_PRUNED = 5000

_INSERT = """INSERT OR IGNORE INTO message
    (number, due, state, id, task, queue, key, retries, sent, marks, arguments, stream, offset)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_JUDGED = "number, due, id, sent, marks"

#: The endings of the names of streams that are read from their beginning at each start.
_READ_ANEW = (".changes",)

#: The position of `retries` in a row.
_RETRIES = 7


class Counts(NamedTuple):
    """Numbers of messages in the journal."""

    delayed: int = 0  # copies of moved ones included
    cancelled: int = 0
    moved: int = 0


class Index:
    """Writes the index. Only one thread of one process may write it; others use `connect`."""

    def __init__(self, path: Path, about: str, scope: str = "") -> None:
        """`about` names the cascade and its broker, `scope` the queues that it is about. Raises `IndexUnusable`."""
        self.path = path
        self._about, self._scope = about, scope
        self._names: dict[str, int] = {}  # the numbers of those in the messages that are being stored
        with ExitStack() as failing:
            self._lock = failing.enter_context(lock(path))
            try:
                self._check()
                self._open()
            except IndexDamaged as exc:
                logger.warning("A new index is begun: %s", exc)
                delete(path)
                create(path)
                self._open()
            except sqlite3.Error as exc:
                raise IndexUnusable(
                    f"{path} cannot be used as an index: {exc}: delete it if it was one, or name another file"
                ) from exc
            failing.pop_all()

    def _check(self) -> None:
        """Check that the file is an index or empty, before anything is written to it."""
        with closing(connect(self.path)) as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if tables and not (version and {"about", "message", "place"} <= tables):
            raise IndexUnusable(f"{self.path} is a file of another program: name another file")
        if version not in (0, VERSION):
            raise IndexUnusable(f"{self.path} was made by another release: delete it, or name another file")

    def _open(self) -> None:
        """Open the file, or begin an index in an empty one. Raises `IndexUnusable`, `IndexDamaged`."""
        with ExitStack() as failing:
            self._db = failing.enter_context(closing(connect(self.path, writable=True)))
            with noticing_damage(self.path):
                self._prepare()
            failing.pop_all()

    def _prepare(self) -> None:
        db = self._db
        # In one transaction, because tables without a version count as those of another program.
        db.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        with db:
            db.execute("INSERT OR IGNORE INTO about VALUES ('of', ?)", [self._about])
        found = db.execute("SELECT value FROM about WHERE name = 'of'").fetchone()[0]
        if found != self._about:
            raise IndexUnusable(f"{self.path} is the index of {found}, but this is {self._about}: name another file")

        before = db.execute("SELECT value FROM about WHERE name = 'queues'").fetchone()
        if before is not None and before[0] != clean(self._scope):
            logger.info("The index is built again, because the queues of the app are others than before")
            self.clear()
        with db:
            db.execute("INSERT OR REPLACE INTO about VALUES ('queues', ?)", [clean(self._scope)])
        self._begin()

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    def places(self) -> dict[str, Place]:
        """Return the last message that was read of each stream, by the stream's name."""
        return dict(self._places)

    def paused(self, now: int) -> dict[str, Pause]:
        """Return the paused queues by their names, as far as the streams were read. Any thread may ask."""
        return self._fates.changes.paused(now)

    def _begin(self) -> None:
        """Go on where the file stops; what was said of messages is read anew, for it is kept in memory."""
        self._now = 0
        self._fates = Fates(lambda: self._now / 1000)
        self._void: list[int] = []  # numbers of copies that became void since the last transaction
        self._fates.changes.on_void = self._void.append
        rows = self._db.execute("SELECT stream, offset, digest FROM place")
        self._places = {stream: Place(offset, digest) for stream, offset, digest in rows}

    def clear(self) -> None:
        """Delete all contents, to build the index again."""
        with self._db as db:
            db.execute("DROP TRIGGER message_removed")  # it would take minutes, because it runs for each row
            db.execute("INSERT INTO search (search) VALUES ('delete-all')")
            for table in ("message", "name", "place"):
                db.execute(f"DELETE FROM {table}")
        self._db.executescript(TABLES)
        self._begin()

    def apply(self, entries: Iterable[StreamMessage], queues: QueueNames, now: int) -> Counts:
        """Store some messages of streams; `now` is in milliseconds since 1970."""
        self._now = now
        said = Fates(lambda: now / 1000)
        places: dict[str, Place] = {}
        told: list[str] = []  # ids that were cancelled or restored
        rows: list[tuple[Any, ...]] = []
        self._names.clear()
        with self._db as db:
            for entry in entries:
                places[entry.stream] = Place.of(entry)
                with suppress(Unreadable):
                    told += said.changes.apply(entry.body)
                    rows += self._rows(self._fates.apply(entry.body), queues, entry)
            # The retry of a message with a key keeps its number, and that message may not be pruned yet.
            again = [(row[0], row[1]) for row in rows if row[_RETRIES]]
            db.executemany("DELETE FROM message WHERE number = ? AND due < ?", again)
            rows = list({row[0]: row for row in rows}.values())
            newest = db.execute("SELECT max(row) FROM message").fetchone()[0] or 0
            db.executemany(_INSERT, rows)
            db.execute(
                "INSERT INTO search (rowid, arguments) SELECT row, arguments FROM message WHERE row > ?", [newest]
            )
            self._settle(said, told)
            kept = [(name, *place) for name, place in places.items() if not name.endswith(_READ_ANEW)]
            db.executemany("INSERT OR REPLACE INTO place VALUES (?, ?, ?)", kept)
        self._places |= places
        cancelled = sum(said.changes.cancelled_at(id_) is not None for id_ in told)
        moved = len(self._void)
        self._void.clear()
        return Counts(len(rows), cancelled, moved)

    def prune(self, now: int) -> int:
        """Remove some messages that are due before `now`, in milliseconds since 1970; return their number."""
        removed = 0
        with self._db as db:
            for state in STATES.values():
                removed += db.execute(
                    "DELETE FROM message WHERE row IN "
                    "(SELECT row FROM message WHERE state = ? AND due <= ? ORDER BY due LIMIT ?)",
                    [state, now, _PRUNED],
                ).rowcount
        return removed

    def _rows(self, records: Iterable[Record], queues: QueueNames, entry: StreamMessage) -> Iterator[tuple[Any, ...]]:
        for record in records:
            if record.due <= _LATEST and record.number < NUMBERS:
                with suppress(Unreadable):
                    yield from self._row(record, queues, entry.stream, entry.offset)

    @streams.reading
    def _row(self, record: Record, queues: QueueNames, stream: str, offset: int) -> list[tuple[Any, ...]]:
        """Return a record's row, if it is for one of the queues that the index is about."""
        headers = schedule_.headers_in(record)
        shown = schedule_.describe(record, headers, queues)
        state = STATES.get(self._fates.of(record, self._now, lambda record: headers))
        if state is None or not schedule_.concerns(headers, queues):
            return []
        if shown.task is None:
            arguments = body_text(record.body, SEARCHED)
        else:
            parts = [text for text in (shown.args, shown.kwargs) if text not in (None, "()", "{}")]
            arguments = printable(" ".join(map(str, parts)), SEARCHED)
        sent = own(headers).get(X_DELAY_SENT)
        marks = {"stamps": headers["stamps"]} if headers.get("stamps") else {}
        row = (
            record.number,
            record.due,
            state,
            clean(record.id),
            self._name(shown.task or ""),
            self._name(shown.queue),
            None,
            shown.retries,
            clean(sent) if isinstance(sent, str) else None,
            json.dumps(marks, default=str) if marks else None,
            clean(arguments),
            self._name(stream),
            offset,
        )
        return [row]

    def _name(self, text: str) -> int:
        """Return the number of a name. Names are stored once, because many messages share them."""
        number = self._names.get(text)
        if number is None:
            shown = clean(text)[:255]
            self._db.execute("INSERT OR IGNORE INTO name (text) VALUES (?)", [shown])
            number = int(self._db.execute("SELECT id FROM name WHERE text = ?", [shown]).fetchone()[0])
            self._names[text] = number
        return number

    def _settle(self, said: Fates, ids: Iterable[str]) -> None:
        """Note what became of messages in the index of which the streams have just said something."""
        db = self._db
        db.executemany("DELETE FROM message WHERE number = ?", [(number,) for number in self._void if number < NUMBERS])
        told = [("id = ?", [clean(id_)]) for id_ in dict.fromkeys(ids)]
        told += [("marks IS NOT NULL", [])] if said.changes.stamps else []
        for condition, values in told:
            for row, *message in db.execute(f"SELECT row, {_JUDGED} FROM message WHERE {condition}", values).fetchall():
                if (state := self._state(*message)) is not None:
                    db.execute("UPDATE message SET state = ? WHERE row = ?", [state, row])

    def _state(self, number: int, due: int, id_: str, sent: str | None, marks: str | None) -> int | None:
        """Return the state of a message; None if it is moved or due."""
        headers = {X_DELAY_SENT: sent, **json.loads(marks or "{}")}
        return STATES.get(self._fates.of(Record(due, number, id_, b"", b""), self._now, lambda record: headers))

"""An index of waiting messages in an SQLite file: fed from the journal's streams, read by the page and the metrics.

The file grows with the journal, but the memory of the process does not. After a restart the index continues where it
stopped, because it stores the contents of a stream together with the position in it.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import operate
from ..core import changes, journal, streams
from ..core.changes import Changes
from ..core.headers import X_DELAY_SENT
from ..core.keys import Keys
from ..core.sent import Sent
from ..core.streams import Unreadable
from ..operate import Place, QueueNames, Record, StreamMessage
from .damage import IndexDamaged, noticing_damage
from .database import CANCELLED, REPLACED, TABLES, VERSION, WAITING, IndexUnusable, clean, connect, create, gate, lock
from .printing import SEARCHED, body_text, printable

logger = logging.getLogger(__name__)

#: The end of the year 9999, in milliseconds: the latest due time.
_LATEST = 253_402_300_799_999

#: The limit of the messages' numbers.
NUMBERS = 1 << streams.NUMBER_BITS

#: The maximum number of past rows to remove at a time.
_PRUNED = 5000

_INSERT = """INSERT OR IGNORE INTO message
    (number, due, state, id, task, queue, key, retries, sent, stamps, arguments, error, stream, offset)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_IF_LATER = "DO UPDATE SET at = excluded.at, clock = excluded.clock WHERE excluded.at > at"

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
                self.renew(exc)
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

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    def renew(self, damage: IndexDamaged) -> None:
        """Begin a new index in place of a damaged one."""
        logger.warning("A new index is begun: %s", damage)
        self._db.close()
        with gate.alone():
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
            create(self.path)
            self._open()

    def places(self) -> dict[str, Place]:
        """Return the last message that was read of each stream, by the stream's name."""
        rows = self._db.execute("SELECT stream, offset, digest FROM place")
        return {stream: Place(offset, digest) for stream, offset, digest in rows}

    def clear(self) -> None:
        """Delete all contents, to build the index again."""
        with self._db as db:
            db.execute("DROP TRIGGER message_removed")  # it would take minutes, because it runs for each row
            db.execute("INSERT INTO search (search) VALUES ('delete-all')")
            for table in ("message", "name", "place", "cancelled", "stamp", "void", "last", "replaced"):
                db.execute(f"DELETE FROM {table}")
        self._db.executescript(TABLES)

    def apply(self, entries: Iterable[tuple[str, StreamMessage]], queues: QueueNames, now: int) -> Counts:
        """Store some messages, each with the name of its stream; `now` is in milliseconds since 1970."""
        changes, keys = Changes(lambda: now / 1000), Keys(lambda: now / 1000)
        places: dict[str, Place] = {}
        cancelled: list[str] = []
        rows: list[tuple[Any, ...]] = []
        self._names.clear()
        with self._db as db:
            for stream, entry in entries:
                places[stream] = Place.of(entry)
                with suppress(Unreadable):
                    cancelled += changes.apply(entry.body)
                    keys.apply(entry.body)
                    rows += self._rows(stream, entry, queues, now)
            # The retry of a message with a key keeps its number, and that message may not be pruned yet.
            again = [(row[0], row[1]) for row in rows if row[_RETRIES]]
            db.executemany("DELETE FROM message WHERE number = ? AND due < ?", again)
            rows = list({row[0]: row for row in rows}.values())
            newest = db.execute("SELECT max(row) FROM message").fetchone()[0] or 0
            db.executemany(_INSERT, rows)
            db.execute(
                "INSERT INTO search (rowid, arguments) SELECT row, arguments FROM message WHERE row > ?", [newest]
            )
            self._change(changes, cancelled)
            self._replace(keys, now)
            if rows:
                self._settle(newest)
            db.executemany(
                "INSERT OR REPLACE INTO place VALUES (?, ?, ?)", [(name, *place) for name, place in places.items()]
            )
        return Counts(len(rows), len(cancelled), sum(1 for _ in changes.void))

    def prune(self, now: int) -> int:
        """Remove some messages that are due before `now`, in milliseconds since 1970; return their number."""
        removed = 0
        with self._db as db:
            for state in (WAITING, CANCELLED, REPLACED):
                removed += db.execute(
                    "DELETE FROM message WHERE row IN "
                    "(SELECT row FROM message WHERE state = ? AND due <= ? ORDER BY due LIMIT ?)",
                    [state, now, _PRUNED],
                ).rowcount
            for table in ("last", "replaced"):
                db.execute(f"DELETE FROM {table} WHERE seen < ?", [now - 2000 * streams.MAX_KEYED_DELAY])
        return removed

    def _rows(self, stream: str, entry: StreamMessage, queues: QueueNames, now: int) -> Iterator[tuple[Any, ...]]:
        for record in journal.unpack_records(entry.body):
            if now < record.due <= _LATEST and record.number < NUMBERS:
                with suppress(Unreadable):
                    yield from self._row(record, queues, stream, entry.offset)

    @streams.reading
    def _row(self, record: Record, queues: QueueNames, stream: str, offset: int) -> list[tuple[Any, ...]]:
        """Return a record's row, if it is for one of the queues that the index is about."""
        headers: Mapping[str, Any] = operate.to_message(record).headers
        shown = operate.describe(record, headers, queues)
        if not operate.concerns(headers, queues):
            return []
        if shown.task is None:
            arguments = body_text(record.body, SEARCHED)
        else:
            parts = [text for text in (shown.args, shown.kwargs) if text not in (None, "()", "{}")]
            arguments = printable(" ".join(map(str, parts)), SEARCHED)
        sent, stamps = headers.get(X_DELAY_SENT), headers.get("stamps")
        row = (
            record.number,
            record.due,
            WAITING,
            clean(record.id),
            self._name(shown.task or ""),
            self._name(shown.queue),
            clean(record.key) or None,
            shown.retries,
            clean(sent) if isinstance(sent, str) else None,
            json.dumps(stamps, default=str) if isinstance(stamps, dict) and stamps else None,
            clean(arguments),
            shown.error and printable(shown.error, SEARCHED),
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

    def _change(self, changes: Changes, cancelled: list[str]) -> None:
        """Apply changes to the messages in the index, and store them for later messages."""
        db = self._db
        void = [(number,) for number in changes.void if number < NUMBERS]
        db.executemany("INSERT OR IGNORE INTO void VALUES (?)", void)
        db.executemany("DELETE FROM message WHERE number = ?", void)
        moments = ((id_, changes.cancelled_at(id_)) for id_ in dict.fromkeys(cancelled))
        ids = [(clean(id_), *_storable(sent)) for id_, sent in moments if sent]
        db.executemany(f"INSERT INTO cancelled VALUES (?, ?, ?) ON CONFLICT (id) {_IF_LATER}", ids)
        db.executemany(
            f"UPDATE message SET state = {CANCELLED} WHERE id = ? AND is_sent_before(sent, ?, ?)",
            ids,
        )
        stamps = [
            (clean(name), clean(value), *_storable(sent))
            for name, values in changes.stamps.items()
            for value, sent in values.items()
        ]
        db.executemany(f"INSERT INTO stamp VALUES (?, ?, ?, ?) ON CONFLICT (name, value) {_IF_LATER}", stamps)
        if stamps:
            self._cancel_by_stamps(0)

    def _replace(self, keys: Keys, now: int) -> None:
        """Mark messages as replaced by the last one of their key. A message whose key was never stored still waits."""
        db = self._db
        last = [(clean(key), number) for key, number in keys.last.items() if number < NUMBERS]
        replaced = {number for number in keys.replaced if number < NUMBERS}
        for key, number in last:
            before = db.execute("SELECT number FROM last WHERE key = ? AND number != ?", [key, number]).fetchone()
            replaced.update(before or ())
        db.executemany("INSERT OR REPLACE INTO last VALUES (?, ?, ?)", [(*one, now) for one in last])
        db.executemany("INSERT OR REPLACE INTO replaced VALUES (?, ?)", [(number, now) for number in replaced])
        db.executemany(
            f"UPDATE message SET state = {REPLACED} WHERE number = ? AND state = {WAITING}",
            [(number,) for number in replaced],
        )
        again = [(number,) for _, number in last]  # a message that is published again after an error is the last again
        db.executemany("DELETE FROM replaced WHERE number = ?", again)
        db.executemany(f"UPDATE message SET state = {WAITING} WHERE number = ? AND state = {REPLACED}", again)

    def _settle(self, after: int) -> None:
        """Apply earlier changes to the rows after a row."""
        db = self._db
        db.execute("DELETE FROM message WHERE row > ? AND number IN (SELECT number FROM void)", [after])
        db.execute(
            f"UPDATE message SET state = {REPLACED} WHERE row > ? AND number IN (SELECT number FROM replaced)", [after]
        )
        db.execute(
            f"UPDATE message SET state = {CANCELLED} WHERE row > ? AND EXISTS "
            "(SELECT 1 FROM cancelled WHERE cancelled.id = message.id AND is_sent_before(message.sent, at, clock))",
            [after],
        )
        self._cancel_by_stamps(after)

    def _cancel_by_stamps(self, after: int) -> None:
        db = self._db
        known = {
            (name, value): Sent(*at) for name, value, *at in db.execute("SELECT name, value, at, clock FROM stamp")
        }
        if not known:
            return
        rows = db.execute("SELECT row, sent, stamps FROM message WHERE row > ? AND stamps IS NOT NULL", [after])
        found = [(row,) for row, sent, stamps in rows.fetchall() if _is_cancelled(sent, json.loads(stamps), known)]
        db.executemany(f"UPDATE message SET state = {CANCELLED} WHERE row = ?", found)


def _storable(sent: Sent) -> tuple[int, str]:
    return min(sent.at, 1000 * _LATEST), clean(sent.clock)


def _is_cancelled(sent: str | None, stamps: Mapping[str, Any], known: Mapping[tuple[str, str], Sent]) -> bool:
    times = [known[pair] for pair in _pairs(stamps) if pair in known]
    return any(changes.is_sent_before(sent, at) for at in times)


def _pairs(stamps: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in stamps.items():
        for one in value if isinstance(value, list) else [value]:
            yield name, str(one)

"""The page's queries to the index: waiting messages, the soonest first, their number and their due times."""

from __future__ import annotations

import itertools
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ..core.search import FIELDS, Word, parse
from .database import WAITING
from .printing import pattern

#: Rows per page; the number of soonest rows to scan before the full-text index is used; the limit for counting the
#: matches of a text.
PAGE, _NEAR, MOST = 50, 20_000, 10_000

#: The most task or queue names that are searched one by one; more are searched together.
_NAMES = 50

_COLUMNS = """message.row, number, due, id, (SELECT text FROM name WHERE name.id = task),
    (SELECT text FROM name WHERE name.id = queue), key, retries, message.arguments,
    (SELECT text FROM name WHERE name.id = stream), offset, state"""

#: The names that contain a text, and what tells whether a message's id begins with it, or its arguments contain it.
_NAMED = r"SELECT id FROM name WHERE text LIKE ? ESCAPE '\'"
_BEGINS = "(message.id >= ? AND message.id < ?)"
_CONTAINS = r"message.arguments LIKE ? ESCAPE '\'"


class Row(NamedTuple):
    """A waiting message."""

    row: int
    number: int
    due: int  # milliseconds since 1970
    id: str
    task: str  # "" for a message that is not a Celery task
    queue: str
    key: str | None
    retries: int
    arguments: str  # truncated
    stream: str
    offset: int
    state: int

    @property
    def place(self) -> tuple[int, int]:
        """The sort key of the row."""
        return self.due, self.row


class Filter(NamedTuple):
    """The filter of a search. Times are milliseconds since 1970."""

    text: str = ""
    task: str = ""
    queue: str = ""
    since: int | None = None
    until: int | None = None  # exclusive
    state: int = WAITING


class Share(NamedTuple):
    """The messages of one task, or for one queue, that wait or are cancelled."""

    name: str
    amount: int
    soonest: int


class _Where:
    """An SQL condition with its values."""

    def __init__(self, wanted: Filter, now: int) -> None:
        self.conditions = [f"state = {wanted.state}", "due > ?"]
        self.values: list[Any] = [now if wanted.since is None else max(now, wanted.since - 1)]
        if wanted.until is not None:
            self.add("due < ?", wanted.until)
        for column, name in (("task", wanted.task), ("queue", wanted.queue)):
            if name:
                self.add(f"{column} = (SELECT id FROM name WHERE text = ?)", name if name != NONE else "")

        #: The words to find. The longest, which fewest have, is looked for first.
        self.words = sorted(parse(wanted.text), key=lambda word: -len(word.text))

    def add(self, condition: str, *values: Any) -> None:
        self.conditions.append(condition)
        self.values += values

    def and_(self, condition: str = "1", *values: Any) -> tuple[str, list[Any]]:
        return " AND ".join([*self.conditions, condition]), [*self.values, *values]


#: The task name in a filter for messages that are not Celery tasks.
NONE = "-"


def page(
    db: sqlite3.Connection, wanted: Filter, now: int, after: tuple[int, int] | None = None, back: bool = False
) -> list[Row]:
    """Return the page after a place or, with `back`, before it; with one more row if another page follows."""
    where = _Where(wanted, now)
    if after is not None:
        where.add(f"(due, message.row) {'<' if back else '>'} (?, ?)", *after)
    order = "ORDER BY due DESC, message.row DESC" if back else "ORDER BY due, message.row"
    if not where.words:
        condition, values = where.and_()
        rows = _rows(db, f"message WHERE {condition} {order} LIMIT {PAGE + 1}", values)
    else:
        rows = _near(db, where, order) or _far(db, where, order, back)
    return rows[::-1] if back else rows


#: The keys of orders other than that of the due times.
ORDERS: dict[str, Callable[[Row], Any]] = {
    "task": lambda row: row.task,
    "queue": lambda row: row.queue,
    "retries": lambda row: -row.retries,
}


def ordered(db: sqlite3.Connection, wanted: Filter, now: int, order: str) -> list[Row]:
    """Return all matches of a filter, `MOST` at most, in one of `ORDERS`, and equal ones by their due times."""
    sources = _sources(db, _Where(wanted, now))
    found = {row.row: row for rest, values in sources for row in _rows(db, f"{rest} LIMIT {MOST}", values)}
    return sorted(found.values(), key=lambda row: (ORDERS[order](row), row.place))


def _rows(db: sqlite3.Connection, rest: str, values: list[Any]) -> list[Row]:
    return [Row(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM {rest}", values)]


def _near(db: sqlite3.Connection, where: _Where, order: str) -> list[Row]:
    """Return a page of matches of words from the soonest rows; nothing if they do not fill a page."""
    condition, values = where.and_()
    source = f"(SELECT * FROM message WHERE {condition} {order} LIMIT {_NEAR}) AS message"
    test, more = _all(where.words)
    rows = _rows(db, f"{source} WHERE {test} {order} LIMIT {PAGE + 1}", [*values, *more])
    return rows if len(rows) > PAGE else []


def _far(db: sqlite3.Connection, where: _Where, order: str, back: bool) -> list[Row]:
    """Return a page of matches of words, found with the database's indexes."""
    found: dict[int, Row] = {}
    for rest, values in _sources(db, where):
        found |= {row.row: row for row in _rows(db, f"{rest} {order} LIMIT {PAGE + 1}", values)}
    return sorted(found.values(), key=lambda row: row.place, reverse=back)[: PAGE + 1]


def _sources(db: sqlite3.Connection, where: _Where) -> Iterator[tuple[str, list[Any]]]:
    """Yield what to select from, with its values: together all that match a filter and its words, some of it twice."""
    test, tested = _all(where.words[1:])
    for table, condition, values in _tables(db, where.words[0]) if where.words else [("message", "1", ())]:
        conditions, more = where.and_(f"{condition} AND {test}", *values, *tested)
        yield f"{table} WHERE {conditions}", more


def _all(words: Sequence[Word]) -> tuple[str, list[Any]]:
    """Return the condition that a message has all of some words, with its values."""
    conditions, values = ["1"], []
    for field, text in words:
        like = [pattern(text)]
        tests = {
            "id": (_BEGINS, [text, _after(text)]),
            "task": (f"task IN ({_NAMED})", like),
            "queue": (f"queue IN ({_NAMED})", like),
            "args": (_CONTAINS, like),
        }
        chosen = [tests[name] for name in FIELDS if field in ("", name)]
        conditions.append(f"({' OR '.join(test for test, _ in chosen)})")
        values += [value for _, some in chosen for value in some]
    return " AND ".join(conditions), values


def _tables(db: sqlite3.Connection, word: Word) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """Yield the tables to search for a word, each by an index of its own, with a condition and its values."""
    field, text = word
    if field in ("", "id"):
        yield "message INDEXED BY message_id", _BEGINS, (text, _after(text))
    for column in ("task", "queue"):
        if field not in ("", column):
            continue
        table, names = f"message INDEXED BY message_{column}", _names(db, column, text)
        if len(names) > _NAMES:
            yield table, f"{column} IN ({_NAMED})", [pattern(text)]
        else:
            yield from ((table, f"{column} = ?", [name]) for name in names)
    if field not in ("", "args"):
        return
    # The full-text index consists of trigrams, and SQLite does not use it for a LIKE with ESCAPE.
    parts = [f"%{part}%" for part in re.split(r"[%_\\]+", text) if len(part) >= 3]
    table = "search CROSS JOIN message ON message.row = search.rowid" if parts else "message"
    yield table, " AND ".join([*("search.arguments LIKE ?" for _ in parts), _CONTAINS]), [*parts, pattern(text)]


def _after(text: str) -> str:
    """Return an upper bound of all texts that begin with a text."""
    return text + chr(0x10FFFF)


def _names(db: sqlite3.Connection, column: str, text: str) -> list[int]:
    """Return the names in use in a column that contain a text; one more than `_NAMES` at most."""
    used = f"EXISTS (SELECT 1 FROM message WHERE {column} = name.id)"
    rows = db.execute(f"{_NAMED} AND {used} LIMIT {_NAMES + 1}", [pattern(text)])
    return [id_ for (id_,) in rows]


def count(db: sqlite3.Connection, wanted: Filter, now: int) -> int:
    """Return the number of matches of a filter; with a text, at most `MOST` + 1."""
    where = _Where(wanted, now)
    sources = _sources(db, where)
    if not where.words:
        [(rest, values)] = sources
        return int(db.execute(f"SELECT count(*) FROM {rest}", values).fetchone()[0])
    found: set[int] = set()
    for rest, values in sources:
        found.update(row for (row,) in db.execute(f"SELECT message.row FROM {rest} LIMIT {MOST + 1}", values))
        if len(found) > MOST:
            return MOST + 1
    return len(found)


def find(db: sqlite3.Connection, numbers: Iterable[int]) -> list[Row]:
    """Return the messages with some numbers, in any state."""
    found = []
    for number in numbers:
        found += _rows(db, "message WHERE number = ?", [number])
    return found


def soonest(db: sqlite3.Connection, wanted: Filter, now: int) -> list[tuple[int, int]]:
    """Return due time and number of all matches of a filter, the soonest first; `MOST` + 1 at most."""
    found: set[tuple[int, int]] = set()
    for rest, values in _sources(db, _Where(wanted, now)):
        found.update(db.execute(f"SELECT due, number FROM {rest} ORDER BY due LIMIT {MOST + 1}", values))
    return sorted(found)[: MOST + 1]


def copies(db: sqlite3.Connection, row: Row, now: int) -> list[Row]:
    """Return all waiting copies of a message: an interrupted move leaves two."""
    if not row.id:
        return [row]
    return _rows(db, f"message WHERE id = ? AND state = {WAITING} AND due > ?", [row.id, now]) or [row]


def bars(db: sqlite3.Connection, wanted: Filter, now: int, edges: list[int]) -> list[int]:
    """Return the number of due messages between each two consecutive times; with a text, `MOST` + 1 in all at most."""
    if wanted.text:
        counts = [0] * (len(edges) - 1)
        for due, _ in soonest(db, wanted._replace(since=edges[0], until=edges[-1]), now):
            counts[bisect_right(edges, due) - 1] += 1
        return counts
    return [count(db, wanted._replace(since=since, until=until), now) for since, until in itertools.pairwise(edges)]


def extent(db: sqlite3.Connection, now: int) -> tuple[int | None, int | None]:
    """Return the due times of the soonest and the latest waiting message."""
    one = f"(SELECT {{}}(due) FROM message WHERE state = {WAITING} AND due > :now)"  # each by the index
    soonest, latest = db.execute(f"SELECT {one.format('min')}, {one.format('max')}", {"now": now}).fetchone()
    return soonest, latest


def shares(db: sqlite3.Connection, column: str, now: int, state: int = WAITING) -> list[Share]:
    """Return the messages in a state by "task" or by "queue", the largest number first."""
    rows = db.execute(
        f"SELECT (SELECT text FROM name WHERE name.id = {column}), count(*), min(due) FROM message "
        f"INDEXED BY message_{column} WHERE state = {state} AND due > ? GROUP BY {column}",
        [now],
    )
    return sorted((Share(*row) for row in rows), key=lambda share: (-share.amount, share.name))

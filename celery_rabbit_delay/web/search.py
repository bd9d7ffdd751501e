"""What the page asks the index: the messages that match a filter, in an order, and their numbers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from ..schedule.core.search import matching, parse
from .index import Row, View

#: Rows per page, and the most messages to change at once.
PAGE, MOST = 50, 10_000

#: The name in a filter for messages that are not Celery tasks.
NONE = "-"


class Filter(NamedTuple):
    """The filter of a search. Times are milliseconds since 1970."""

    text: str = ""
    task: str = ""
    queue: str = ""
    since: int | None = None
    until: int | None = None  # exclusive
    is_cancelled: bool = False


class Share(NamedTuple):
    """The messages of one task, or for one queue, that wait or are cancelled."""

    name: str
    amount: int


def found(view: View, wanted: Filter, now: int) -> list[Row]:
    """Return the matches of a filter that are not due, the soonest first."""
    rows = view.cancelled if wanted.is_cancelled else view.waiting
    rows = between(rows, max(now + 1, wanted.since or 0), wanted.until)
    for column, name in (("task", wanted.task), ("queue", wanted.queue)):
        if name:
            rows = [row for row in rows if getattr(row, column) == ("" if name == NONE else name)]
    words = parse(wanted.text)
    return list(matching(words, rows, _text)) if words else rows


def _text(row: Row) -> str:
    return f"{row.id} {row.task} {row.queue} {row.arguments}"


def between(rows: list[Row], since: int, until: int | None = None) -> list[Row]:
    """Return those of some rows, the soonest of which is first, that are due since one time and before another."""
    end = len(rows) if until is None else bisect_left(rows, until, key=lambda row: row.due)
    return rows[bisect_left(rows, since, key=lambda row: row.due) : end]


def begin(rows: list[Row], place: tuple[int, int] | None, back: bool, falls: bool) -> int:
    """Return at which of some rows the page after a place begins, or the one before it with `back`.

    The rows are in the order of their due times, with `falls` the latest first.
    """
    if place is None:
        return 0
    sign = -1 if falls else 1
    find = bisect_left if back else bisect_right
    at = find(rows, (sign * place[0], sign * place[1]), key=lambda row: (sign * row.due, sign * row.number))
    return max(0, at - PAGE) if back else at


def bars(rows: list[Row], edges: list[int], names: Collection[str]) -> dict[str, list[int]]:
    """Return the numbers of due messages between each two consecutive times, by queue; "" is all others."""
    counts = {name: [0] * (len(edges) - 1) for name in (*names, "")}
    for row in between(rows, edges[0], edges[-1]):
        counts.get(row.queue, counts[""])[bisect_right(edges, row.due) - 1] += 1
    return counts if any(counts[""]) or not names else {name: counts[name] for name in names}


def shares(rows: list[Row], column: str) -> list[Share]:
    """Return the numbers of some messages by "task" or by "queue", the largest first."""
    counts = Counter(getattr(row, column) for row in rows)
    return sorted((Share(*one) for one in counts.items()), key=lambda share: (-share.amount, share.name))

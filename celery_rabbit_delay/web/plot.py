"""The plot of due tasks over time, as data that a template draws. Pure: the clock and the counts are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta, tzinfo
from typing import NamedTuple

from ..delay.core import headers
from ..text import span

#: The height of the highest bar, in pixels.
HEIGHT = 88

#: The number of queues that have a colour of their own.
COLOURS = 5


class Range(NamedTuple):
    """The time range of a plot. `step` and `label` are seconds: from bar to bar, and from label to label."""

    name: str
    bars: int
    step: int
    label: int
    format: str


#: By their names, the shortest first.
RANGES = {
    one.name: one
    for one in (
        Range("minute", 60, 1, 10, "%H:%M:%S"),
        Range("hour", 60, 60, 600, "%H:%M"),
        Range("day", 96, 900, 4 * 3600, "%H:%M"),
        Range("week", 84, 7200, 86_400, "%a %d %b"),
        Range("month", 60, 43_200, 5 * 86_400, "%d %b"),
    )
}


class Part(NamedTuple):
    """What a queue contributes to a bar. Lengths are pixels from the top."""

    queue: str
    y: float
    height: float


class Bar(NamedTuple):
    x: float  # percent of the plot's width
    width: float
    parts: list[Part]
    since: int  # milliseconds since 1970
    until: int
    due: int
    title: str


class Line(NamedTuple):
    """A line of the grid, in pixels from the top, or a label, in percent of the plot's width."""

    at: float
    label: str


class Plot(NamedTuple):
    bars: list[Bar]
    lines: list[Line]  # horizontal, from the bottom to the top
    labels: list[Line]  # below the axis
    total: int


def edges(range_: Range, now: int, zone: tzinfo) -> list[int]:
    """Return the times between the bars, in milliseconds since 1970. `now` lies in the first bar."""
    step = range_.step * 1000
    offset = _offset(now, zone)
    first = (now + offset) // step * step - offset
    return [first + number * step for number in range(range_.bars + 1)]


def plot(range_: Range, moments: Sequence[int], counts: Mapping[str, Sequence[int]], zone: tzinfo) -> Plot:
    """Return the plot of each queue's counts between some times; the queue "" is all others."""
    totals = [sum(found) for found in zip(*counts.values(), strict=True)]
    most = nice(max(totals, default=0))
    width = 100 / max(1, len(totals))
    bars = []
    for number, total in enumerate(totals):
        scale = max(HEIGHT / most, 2 / max(1, total))  # a bar is always visible
        parts, y = [], float(HEIGHT)
        for queue, found in counts.items():
            if found[number]:
                y -= scale * found[number]
                parts.append(Part(queue, y, scale * found[number]))
        since, until = moments[number], moments[number + 1]
        title = f"{total:,} due {text(since, zone, '%a %d %b %H:%M:%S')} – {text(until, zone, '%H:%M:%S')}"
        if any(counts):
            shares = (f"{found[number]:,} {queue or 'others'}" for queue, found in counts.items() if found[number])
            title = f"{title}: {', '.join(shares)}"
        bars.append(Bar(number * width, width - 0.15, parts, since, until, total, title))
    lines = [Line(HEIGHT * (1 - part / 2), f"{most * part // 2:,}") for part in range(3)]
    labels = []
    # At the first bar of each step by the clock on the wall, which may go forward or back in between.
    passed = [(moment + _offset(moment, zone)) // (range_.label * 1000) for moment in moments]
    for number in range(1, len(totals) - 1):
        if passed[number] != passed[number - 1]:
            labels.append(Line(number * width, text(moments[number], zone, range_.format)))
    return Plot(bars, lines, labels, sum(totals))


def nice(most: int) -> int:
    """Return the next round number, at least 4."""
    size = 1
    while True:
        for factor in (4, 6, 8, 10, 12, 16, 20):
            if most <= factor * size:
                return factor * size
        size *= 10


def text(moment: int, zone: tzinfo, format_: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return the text of a time in a time zone, from milliseconds since 1970."""
    try:
        return headers.moment(moment).astimezone(zone).strftime(format_)
    except OverflowError:
        return f"{moment} ms"


def until(milliseconds: int) -> str:
    """Return a time span until or since an event as text."""
    words = span(abs(milliseconds) // 1000 * 1000)
    return f"in {words}" if milliseconds >= 0 else f"{words} ago"


def _offset(moment: int, zone: tzinfo) -> int:
    """Return the UTC offset of a time zone at a time; both are milliseconds."""
    try:
        at = headers.moment(moment).astimezone(zone)
    except OverflowError:
        return 0
    return (at.utcoffset() or timedelta()) // timedelta(milliseconds=1)

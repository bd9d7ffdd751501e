"""The plot of due tasks over time, as data that a template draws. Pure: the clock and the counts are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 960, 240, 44, 26, 12


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


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    since: int  # milliseconds since 1970
    until: int
    due: int
    title: str


class Line(NamedTuple):
    """A line of the grid, or a label."""

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


def plot(range_: Range, moments: Sequence[int], counts: Sequence[int], zone: tzinfo) -> Plot:
    """Return the plot of the counts between some times."""
    most = nice(max(counts, default=0))
    room = HEIGHT - BOTTOM - TOP
    width = (WIDTH - LEFT) / max(1, len(counts))
    bars = []
    for number, count in enumerate(counts):
        height = room * count / most
        if count:
            height = max(height, 2)  # a bar is always visible
        since, until = moments[number], moments[number + 1]
        title = f"{count:,} due {text(since, zone, '%a %d %b %H:%M:%S')} – {text(until, zone, '%H:%M:%S')}"
        bar = Bar(LEFT + number * width + 0.75, TOP + room - height, width - 1.5, height, since, until, count, title)
        bars.append(bar)
    lines = [Line(TOP + room * (1 - part / 4), f"{most * part // 4:,}") for part in range(5) if most * part % 4 == 0]
    labels = []
    # At the first bar of each step by the clock on the wall, which may go forward or back in between.
    passed = [(moment + _offset(moment, zone)) // (range_.label * 1000) for moment in moments]
    for number in range(1, len(counts) - 1):
        if passed[number] != passed[number - 1]:
            labels.append(Line(LEFT + number * width, text(moments[number], zone, range_.format)))
    return Plot(bars, lines, labels, sum(counts))


def nice(most: int) -> int:
    """Return the next round number, at least 4."""
    size = 1
    while True:
        for factor in (4, 8, 12, 20):
            if most <= factor * size:
                return factor * size
        size *= 10


def text(moment: int, zone: tzinfo, format_: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return the text of a time in a time zone, from milliseconds since 1970."""
    try:
        return (
            (datetime.fromtimestamp(0, timezone.utc) + timedelta(milliseconds=moment))
            .astimezone(zone)
            .strftime(format_)
        )
    except OverflowError:
        return f"{moment} ms"


def until(milliseconds: int) -> str:
    """Return a time span until or since an event as text, in at most two units."""
    seconds = abs(milliseconds) // 1000
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, seconds = divmod(seconds, size)
        if amount:
            parts.append(f"{amount} {unit}")
        if (parts and not amount) or len(parts) == 2:
            break
    words = " ".join(parts) or "0 s"
    return f"in {words}" if milliseconds >= 0 else f"{words} ago"


def _offset(moment: int, zone: tzinfo) -> int:
    """Return the UTC offset of a time zone at a time; both are milliseconds."""
    try:
        at = datetime.fromtimestamp(moment / 1000, timezone.utc).astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return 0
    return int((at.utcoffset() or timedelta()).total_seconds() * 1000)

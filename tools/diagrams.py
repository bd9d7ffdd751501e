"""Draws docs/diagrams/*.svg, from the topology and from what was measured: `make diagrams`. A test checks them."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from celery_rabbit_delay.core.destination import Destination, is_match
from celery_rabbit_delay.core.levels import Route
from celery_rabbit_delay.core.options import Options
from celery_rabbit_delay.core.topology import Binding, Cascade, Topology
from tools.svg import HEIGHT, Box, Picture

DIRECTORY = Path(__file__).parents[1] / "docs" / "diagrams"
BENCHMARKS = Path(__file__).parents[1] / "evidence" / "benchmarks" / "results.json"

DEFAULT = Options()
#: Small enough to look at, with the names of the default options.
CASCADE = Cascade(DEFAULT.prefix, timedelta(seconds=DEFAULT.tick), powers=4)
MINUTE = 480  # ticks
QUEUE = Destination("", ("celery",))
SHORT_LIVED = Destination("", ("",), short_lived=True)


class Stop(NamedTuple):
    """A part of the broker that a message comes to."""

    kind: str  # "exchange", "queue"
    name: str
    note: str
    seconds: float = 0.0  # that it waits there


def journey(cascade: Cascade, route: Route) -> tuple[tuple[str, ...], list[Stop]]:
    """Return the keys of one message for the queue `celery`, and its stops, from binding to binding."""
    start, keys = cascade.entry(route, QUEUE)
    topology = Topology.of([cascade], [QUEUE], outboxes=[route.outbox] if route.outbox else [])
    notes = {
        cascade.ingest: "where publishers send delayed tasks to",
        cascade.behind_ingest: "leads to the first level",
        cascade.outbox_ingest: "where publishers send tasks to whose delay is that of an outbox",
        cascade.done: "all levels are behind it",
        cascade.exit: "passed on at once",
        "celery": "the destination, from which the worker receives the task",
    }
    stops = [Stop("exchange", start, notes[start])]
    exchange = start
    while True:
        [binding] = [
            binding
            for binding in topology.bindings
            if binding.source == exchange
            and any(is_match(topology.exchanges[exchange].type, binding.routing_key, key) for key in keys)
        ]
        name = binding.destination
        stops[-1] = stops[-1]._replace(note=stops[-1].note or f"leads on by {binding.routing_key}")
        if binding.destination_type == "exchange":
            stops.append(Stop("exchange", name, notes.get(name, "")))
            exchange = name
            continue
        if name not in topology.queues:
            return keys, [*stops, Stop("queue", name, notes[name])]
        seconds = topology.queues[name].seconds
        note = f"waits {seconds:g} s, then is dead-lettered" if seconds else "dead-lettered at once"
        if cascade.outbox_of(name):
            note = f"the outbox of the destination: {note}"
        stops.append(Stop("queue", name, note, seconds))
        exchange = str(topology.queues[name].arguments["x-dead-letter-exchange"])
        stops.append(Stop("exchange", exchange, notes.get(exchange, "")))


def draw_journey(cascade: Cascade, route: Route) -> str:
    """Draw the stops of one message, from top to bottom."""
    (first, *others), stops = journey(cascade, route)
    seconds = (sum(level.ticks for level in route.levels) + route.outbox) * cascade.tick.total_seconds()
    picture = Picture()
    top = 78
    picture.note(20, 28, f"A task that is due in {seconds:g} s, for the queue celery")
    picture.note(20, 48, f"routing key {first} · CC: celery, {', '.join(others)}", code=True)
    above: Box | None = None
    for number, stop in enumerate(stops):
        box = picture.box(stop.kind, short(cascade, stop.name), 20, top + number * 46, 190)
        picture.note(230, box.y + 19, stop.note)
        if above:
            picture.arrow([above.bottom, box.top])
        above = box
    height = top + (len(stops) - 1) * 46 + HEIGHT + 44
    picture.note(
        20, height - 18, f"round: exchange · with a bar: queue · names, but for celery, begin with {cascade.root}."
    )
    return picture.svg(f"The way of a task with a delay of {seconds:g} s", 640, height)


def default_journey(seconds: int) -> str:
    """Draw the stops of a message with the default options."""
    return draw_journey(DEFAULT.cascade, DEFAULT.route(DEFAULT.cascade, DEFAULT.ticks(seconds * 1_000_000)))


def topology() -> str:
    """Draw all exchanges, queues and bindings of a cascade of four levels, and one destination with two outboxes."""
    picture = Picture()
    levels = CASCADE.levels[::-1]
    left, column = 250, 215
    boxes: dict[str, Box] = {
        CASCADE.ingest: picture.box("exchange", "ingest", 20, 40, 80),
        CASCADE.behind_ingest: picture.box("exchange", "route", 130, 40, 80),
    }
    for number, level in enumerate(levels):
        x = left + number * column
        boxes[level.queue] = picture.box("queue", short(CASCADE, level.queue), x, 96, 120)
        boxes[level.done] = picture.box("exchange", short(CASCADE, level.done), x, 226, 120)
        picture.arrow([boxes[level.queue].bottom, boxes[level.done].top])
        picture.note(x + 64, 144, f"{level.ttl / 1000:g} s")
    outboxes = [CASCADE.outbox(SHORT_LIVED), CASCADE.outbox(QUEUE), CASCADE.outbox(QUEUE, MINUTE)]
    places = [
        ("exchange", CASCADE.done, 20, 330, 90),
        *(("queue", outbox.name, 260, 330 + 50 * number, 150) for number, outbox in enumerate(outboxes)),
        ("exchange", CASCADE.outbox_ingest, 20, 480, 130),
        ("exchange", CASCADE.short_lived_exit, 520, 330, 140),
        ("exchange", CASCADE.exit, 520, 380, 100),
        ("queue", "celery", 800, 380, 100),
        ("exchange", CASCADE.lost, 520, 480, 100),
        ("queue", CASCADE.orphans, 800, 480, 100),
    ]
    boxes |= {name: picture.box(kind, short(CASCADE, name), x, y, w) for kind, name, x, y, w in places}
    of_levels = {level.done: number for number, level in enumerate(levels)}
    for binding in Topology.of([CASCADE], [QUEUE], outboxes=[MINUTE]).bindings:
        draw_binding(picture, binding, boxes[binding.source], boxes[binding.destination], of_levels)
    for outbox in outboxes:
        source, target = boxes[outbox.name].right, boxes[str(outbox.arguments["x-dead-letter-exchange"])].left
        bend = [(source[0] + 65, source[1]), (source[0] + 65, target[1])] if source[1] != target[1] else []
        picture.arrow([source, *bend, target])
        picture.note(source[0] + 8, source[1] - 6, f"{outbox.seconds:g} s" if outbox.seconds else "at once")
    picture.note(672, 349, "leads to short-lived queues")
    picture.note(520, 530, "lost takes what no binding takes. It is the alternate exchange of all exchanges")
    picture.note(520, 546, "but ingest, route and ingest.outboxes, from which a message returns to its publisher.")
    picture.note(20, 566, f"round: exchange · with a bar: queue · names, but for celery, begin with {CASCADE.root}.")
    return picture.svg("All exchanges, queues and bindings of a cascade of four levels", 1060, 584)


def draw_binding(picture: Picture, binding: Binding, source: Box, target: Box, of_levels: dict[str, int]) -> None:
    """Draw a binding, and its key beside it, along the rows and columns of `topology`."""
    x, y = target.top
    if binding.source == CASCADE.behind_ingest:
        picture.arrow([source.right, (x, source.right[1]), target.top])
        picture.note(x + 4, 82, binding.routing_key, code=True)
    elif binding.source in of_levels and binding.destination == CASCADE.done:
        picture.arrow([source.bottom, (source.bottom[0], 300), (x, 300), target.top])
        picture.note(source.bottom[0] + 4, 280, binding.routing_key, code=True)
    elif binding.source in of_levels:
        number = of_levels[binding.source]
        height = 162 + 20 * number  # each exchange has a height of its own to pass the others at
        start, end = source.right[0] + 12, target.left[0] - 12 - 10 * number
        picture.arrow(
            [source.right, (start, source.right[1]), (start, height), (end, height), (end, y + 15), target.left]
        )
        picture.note(end - 4, height - 3, binding.routing_key, code=True, anchor="end")
    elif binding.source == CASCADE.outbox_ingest:
        middle, below = source.right[0] + 20, target.left[1] + 9
        picture.arrow([source.right, (middle, source.right[1]), (middle, below), (target.left[0], below)])
        picture.note(target.left[0] - 10, below + 14, binding.routing_key, code=True, anchor="end")
    else:
        middle = source.right[0] + 20
        points = [source.right, target.left]
        if source.right[1] != target.left[1]:
            points[1:1] = [(middle, source.right[1]), (middle, target.left[1])]
        picture.arrow(points)
        picture.note(target.left[0] - 10, target.left[1] - 6, binding.routing_key, code=True, anchor="end")


OURS = "celery-rabbit-delay"

#: Questions, in the order in which they decide, and what to use if the answer is yes.
CHOICES = (
    ("Is the broker not RabbitMQ?", "what it has, or a database scheduler"),
    ("Does the same task run periodically?", "celery beat, with this package's scheduler"),
    ("Do people edit the schedule?", "a table: django-celery-beat"),
    ("Are the delays a handful of fixed ones?", "one queue per delay"),
    ("Few tasks, classic queues, RabbitMQ 3?", "plain eta"),
    ("Must you cancel, list or move tasks?", OURS),
    ("Direct exchanges, fractions of a second?", OURS),
)


def choice() -> str:
    """Draw the questions, from top to bottom, and the answers beside them."""
    picture = Picture()
    step, width, right = 54, 270, 356
    boxes = [picture.box("other", question, 20, 20 + row * step, width) for row, (question, _) in enumerate(CHOICES)]
    last = picture.box("exchange", "Celery's native delayed delivery", 20, 20 + len(CHOICES) * step, width)
    for row, (box, below) in enumerate(zip(boxes, [*boxes[1:], last], strict=True)):
        answer = picture.box("queue" if OURS in CHOICES[row] else "exchange", CHOICES[row][1], right, box.y, 280)
        picture.arrow([box.right, answer.left])
        picture.arrow([box.bottom, below.top])
        picture.note((box.right[0] + right) / 2, box.y + 10, "yes", anchor="middle")
        picture.note(box.bottom[0] + 8, box.bottom[1] + 16, "no")
    return picture.svg("Which way to delay tasks", right + 300, last.bottom[1] + 20)


#: The kinds of their bars.
CONTENDERS = {
    "celery-rabbit-delay": "exchange",
    "native delayed delivery": "queue",
    "no delay": "other",
}


def cpu() -> str:
    """Draw the broker's CPU for a message, against that of native delayed delivery in the same run."""

    def of(row: dict[str, Any], kind: str) -> dict[str, tuple[float, str]]:
        medians = {one: row[f"{one}{kind}"]["median"] for one in CONTENDERS if f"{one}{kind}" in row}
        parts = {one: 100 * median / medians["native delayed delivery"] for one, median in medians.items()}
        return {one: (part, f"{part:.0f} %") for one, part in parts.items()}

    lanes = {
        f"RabbitMQ {release}, {how}": of(found["rows"][row], kind)
        for how, row, kind in (
            ("delays of 5, 10 or 15 s, confirmed one by one", "everyday_cpu_confirmed", ""),
            ("delays of 1 to 15 s, confirmed one by one", "broker_cpu_confirmed", ""),
            ("delays of 1 to 15 s in a burst, unconfirmed", "broker_cpu", ", quorum"),
        )
        for release, found in json.loads(BENCHMARKS.read_text()).items()
    }
    return lanes_of_bars("The broker's CPU for a message, against native delayed delivery", lanes, 60)


def lanes_of_bars(title: str, lanes: dict[str, dict[str, tuple[float, str]]], margin: float) -> str:
    """Draw a lane for each name, with a bar for each contender: its figure, and the words behind the bar."""
    picture, left, width, y = Picture(), 20, 480, 28
    shown = [one for one in CONTENDERS if any(one in lane for lane in lanes.values())]
    for x, one in zip((left, left + 190, left + 390), shown, strict=True):
        picture.bar(CONTENDERS[one], x, y - 10, 20, 12)
        picture.note(x + 28, y, one)
    most = max(figure for lane in lanes.values() for figure, _ in lane.values())
    for name, lane in lanes.items():
        y += 34
        picture.note(left, y, name)
        for one, (figure, words) in lane.items():
            y += 17
            length = max(1, width * figure / most)
            picture.bar(CONTENDERS[one], left, y - 10, length, 12)
            picture.note(left + length + 8, y, words)
    return picture.svg(title, left + width + margin, y + 20)


def short(cascade: Cascade, name: str) -> str:
    """Return a name without what all names begin with."""
    return name.removeprefix(f"{cascade.root}.")


DIAGRAMS = {
    "choice.svg": choice,
    "cpu.svg": cpu,
    "journey.svg": lambda: default_journey(70),
    "round.svg": lambda: default_journey(60),
    "topology.svg": topology,
}


def main() -> int:
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (DIRECTORY / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())

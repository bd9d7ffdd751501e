"""Draws docs/diagrams/*.svg from the topology: `make diagrams`. A test checks that they are current."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from celery_rabbit_delay.core import headers, routing_key
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.topology import Binding, Cascade, Topology
from tools.svg import HEIGHT, Box, Picture

DIRECTORY = Path(__file__).parents[1] / "docs" / "diagrams"

#: Small enough to look at, with the names of the default options.
CASCADE = Cascade("celery-rabbit-delay", timedelta(milliseconds=125), powers=4)
WITH_LANES = Cascade("celery-rabbit-delay", timedelta(milliseconds=125), powers=10, lanes=(120, 480))
QUEUE = Destination("", ("celery",))


class Stop(NamedTuple):
    """A part of the broker that a message comes to."""

    kind: str  # "exchange", "queue"
    name: str
    note: str
    seconds: float = 0.0  # that it waits there


def journey(cascade: Cascade, ticks: int) -> tuple[tuple[str, ...], list[Stop]]:
    """Return the routing keys of one message for the queue `celery`, and its stops, from binding to binding."""
    first, *later = routing_key.steps(cascade.route(ticks, 0))
    keys = (first, *headers.addressed({"CC": ["celery"]}, QUEUE, later)["CC"])
    bindings = [*cascade.bindings(), *cascade.destination_bindings(QUEUE)]
    queues = {queue.name: queue for queue in [*cascade.queues(), cascade.outbox(QUEUE)]}
    notes = {
        cascade.done: "all levels are behind it",
        cascade.outbox_name(QUEUE): "the outbox of the destination",
        cascade.exit: "passed on at once",
        "celery": "the destination, from which the worker receives the task",
    }
    stops = [Stop("exchange", cascade.ingest, "where publishers send delayed tasks to")]
    exchange = cascade.ingest
    while True:
        [binding] = [b for b in bindings if b.source == exchange and b.routing_key in keys]
        stops[-1] = stops[-1]._replace(note=stops[-1].note or f"leads on by {binding.routing_key}")
        name = binding.destination
        if name not in queues:
            stops.append(Stop(binding.destination_type, name, notes.get(name, "")))
            if binding.destination_type == "queue":
                return keys, stops
            exchange = name
            continue
        seconds = queues[name].seconds
        stops.append(Stop("queue", name, notes.get(name, f"waits {seconds:g} s, then is dead-lettered"), seconds))
        exchange = str(queues[name].arguments["x-dead-letter-exchange"])
        stops.append(Stop("exchange", exchange, notes.get(exchange, "")))


def draw_journey(cascade: Cascade, ticks: int) -> str:
    """Draw the stops of one message, from top to bottom."""
    (first, *others), stops = journey(cascade, ticks)
    picture = Picture()
    top = 78
    picture.note(20, 28, f"A task that is due in {ticks * cascade.tick.total_seconds():g} s, for the queue celery")
    picture.note(20, 48, f"routing key {first} · CC: {', '.join(others)}", code=True)
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
    seconds = ticks * cascade.tick.total_seconds()
    return picture.svg(f"The way of a task with a delay of {seconds:g} s", 640, height)


def topology() -> str:
    """Draw all exchanges, queues and bindings of a cascade of four levels, and one destination."""
    picture = Picture()
    levels = CASCADE.levels[::-1]
    left, column = 150, 205
    boxes: dict[str, Box] = {CASCADE.ingest: picture.box("exchange", "ingest", 20, 40, 90)}
    for number, level in enumerate(levels):
        x = left + number * column
        boxes[level.queue] = picture.box("queue", short(CASCADE, level.queue), x, 96, 120)
        boxes[level.done] = picture.box("exchange", short(CASCADE, level.done), x, 226, 120)
        picture.arrow([boxes[level.queue].bottom, boxes[level.done].top])
        picture.note(x + 64, 144, f"{level.ttl / 1000:g} s")
    outboxes = [CASCADE.outbox(QUEUE).name, CASCADE.outbox_name(Destination("", ("",), short_lived=True))]
    places = [
        ("exchange", CASCADE.done, 20, 330, 90),
        *(("queue", name, 240, 330 + 50 * number, 130) for number, name in enumerate(outboxes)),
        ("exchange", CASCADE.exit, 490, 330, 100),
        ("exchange", CASCADE.short_lived_exit, 490, 380, 170),
        ("queue", "celery", 720, 330, 100),
        ("exchange", CASCADE.lost, 490, 430, 100),
        ("queue", CASCADE.orphans, 720, 430, 100),
        ("exchange", CASCADE.record, 20, 430, 90),
        ("queue", CASCADE.records, 240, 430, 130),
    ]
    boxes |= {name: picture.box(kind, short(CASCADE, name), x, y, w) for kind, name, x, y, w in places}
    of_levels = {level.done: number for number, level in enumerate(levels)}
    for binding in Topology.of([CASCADE], [QUEUE]).bindings:
        draw_binding(picture, binding, boxes[binding.source], boxes[binding.destination], of_levels)
    for name, exit_ in zip(outboxes, CASCADE.exits, strict=True):
        picture.arrow([boxes[name].right, boxes[exit_].left])
    picture.note(392, 338, "at once")
    picture.note(672, 399, "leads to short-lived queues")
    picture.note(490, 480, "lost is the alternate exchange of all but ingest: it takes what no binding takes.")
    picture.note(20, 510, f"round: exchange · with a bar: queue · names, but for celery, begin with {CASCADE.root}.")
    return picture.svg("All exchanges, queues and bindings of a cascade of four levels", 980, 528)


def draw_binding(picture: Picture, binding: Binding, source: Box, target: Box, of_levels: dict[str, int]) -> None:
    """Draw a binding, and its key beside it, along the rows and columns of `topology`."""
    x, y = target.top
    step = ">" in binding.routing_key  # not the one key of a message with a single level, which has a line of its own
    if binding.source == CASCADE.ingest:
        picture.arrow([source.right, (x, source.right[1]), target.top])
        picture.note(x + 4, 88 if step else 74, binding.routing_key, code=True)
    elif binding.source in of_levels and binding.destination == CASCADE.done:
        picture.arrow([source.bottom, (source.bottom[0], 300), (x, 300), target.top])
        picture.note(source.bottom[0] + 4, 286 if step else 272, binding.routing_key, code=True)
    elif binding.source in of_levels:
        number = of_levels[binding.source]
        lane = 162 + 20 * number  # each exchange has a height of its own to pass the others at
        start, end = source.right[0] + 12, target.left[0] - 12 - 10 * number
        picture.arrow([source.right, (start, source.right[1]), (start, lane), (end, lane), (end, y + 15), target.left])
        picture.note(end - 4, lane - 3, binding.routing_key, code=True, anchor="end")
    else:
        middle = source.right[0] + 20
        points = [source.right, target.left]
        if source.right[1] != target.left[1]:
            points[1:1] = [(middle, source.right[1]), (middle, target.left[1])]
        picture.arrow(points)
        picture.note(target.left[0] - 10, target.left[1] - 6, binding.routing_key, code=True, anchor="end")


def short(cascade: Cascade, name: str) -> str:
    """Return a name without what all names begin with."""
    return name.removeprefix(f"{cascade.root}.")


DIAGRAMS = {
    "journey.svg": lambda: draw_journey(CASCADE, 10),
    "lanes.svg": lambda: draw_journey(WITH_LANES, 604),
    "topology.svg": topology,
}


def main() -> int:
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (DIRECTORY / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Draws docs/diagrams/*.svg, from the topology and from what was measured: `make diagrams`. A test checks them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery_rabbit_delay.core.destination import Destination, is_match
from celery_rabbit_delay.core.options import Options
from celery_rabbit_delay.core.topology import Topology
from tools.svg import Box, Picture

DIRECTORY = Path(__file__).parents[1] / "docs" / "diagrams"
BENCHMARKS = Path(__file__).parents[1] / "evidence" / "benchmarks"

OPTIONS = Options()
CASCADE = OPTIONS.cascade
QUEUE = Destination("", ("celery",))
OURS = "celery-rabbit-delay"


def connect(picture: Picture, boxes: Mapping[str, tuple[str, str, float, float, float]], arrows: str) -> dict[str, Box]:
    """Draw named boxes, each with its kind, text, place and width; `arrows` are pairs of names, such as "a>b b>c"."""
    drawn = {name: picture.box(*box) for name, box in boxes.items()}
    for pair in arrows.split():
        start, end = pair.split(">")
        picture.arrow(drawn[start].way(drawn[end]))
    return drawn


def before_after() -> str:
    """Draw what `make demo` shows: where ten tasks with a countdown and three without are after four seconds."""
    picture = Picture()
    for y, height, label in ((24, 72, "Without this package"), (132, 118, "With this package")):
        picture.note(20, y - 8, label, kind="name")
        picture.note(420, y - 8, "RabbitMQ", anchor="end")
        picture.rect("frame", 180, y, 250, height, radius=6)
    before = {
        "app": ("other", "app\nsends ● and ○", 20, 36, 110),
        "queue": ("queue", "●●○○○\nqueue celery: they wait behind", 200, 36, 210),
        "worker": ("other", "●●●●●●●●\nworker: holds eight, runs none", 490, 36, 210),
    }
    after = {
        "app": ("other", "app\nsends ● and ○\n ", 20, 160, 110),
        "delays": ("queue", "●●●●●●●●●●\ndelay queues: they wait until due", 200, 142, 210),
        "queue": ("queue", "queue celery", 200, 210, 210),
        "worker": ("other", "○○○ have run\nworker: holds none", 490, 201, 210),
    }
    connect(picture, before, "app>queue queue>worker")
    connect(picture, after, "app>delays app>queue delays>queue queue>worker")
    picture.note(20, 276, "● sent first, with a countdown of 8 s or more · ○ sent then, without one")
    return picture.svg("Ten tasks with a countdown, then three without, four seconds later", 720, 292)


def hops(seconds: int) -> Iterable[tuple[str, str]]:
    """Yield kind and text of each queue that a task for `celery` passes, as the bindings lead it."""
    route = OPTIONS.route(CASCADE, OPTIONS.ticks(seconds * 1_000_000))
    exchange, keys = CASCADE.entry(route, QUEUE)
    topology = Topology.of([CASCADE], [QUEUE], outboxes=[route.outbox] if route.outbox else [])
    while exchange:
        [binding] = [
            binding
            for binding in topology.bindings
            if binding.source == exchange
            and any(is_match(topology.exchanges[exchange].type, binding.routing_key, key) for key in keys)
        ]
        name = exchange = binding.destination
        if binding.destination_type == "queue":
            queue = topology.queues.get(name)
            kind = "outbox" if CASCADE.outbox_of(name) else "level"
            yield ("queue", f"{kind}\nwaits {queue.seconds:g} s") if queue else ("other", f"{name}\nyour queue")
            exchange = str(queue.arguments["x-dead-letter-exchange"]) if queue else ""


def path() -> str:
    """Draw the queues that two tasks pass, one of a round delay and one of another."""
    picture = Picture()
    for y, seconds in ((0, 60), (84, 70)):
        passed = list(hops(seconds))
        picture.note(20, y + 12, f"due in {seconds} s: {len(passed) - 1} hop{'s'[: len(passed) - 2]}", kind="name")
        boxes = [picture.box("other", "app", 20, y + 31, 60)]
        boxes += [picture.box(*queue, 120 + 145 * number, y + 22, 105) for number, queue in enumerate(passed)]
        for box, after in pairwise(boxes):
            picture.arrow(box.way(after))
    return picture.svg("The queues that a task for the queue celery passes", 700, 172)


def broker() -> str:
    """Draw what appears on the broker, and what of it is whose."""
    picture, exchanges = Picture(), len(Topology.of([CASCADE], []).exchanges)
    boxes = {
        "app": ("other", "your apps", 20, 76, 86),
        "ingest": ("exchange", "….ingest", 140, 26, 130),
        "outboxes": ("exchange", "….ingest.outboxes", 140, 126, 130),
        "levels": ("queue", f"{len(CASCADE.levels)} levels\n1/8 s, 1/4 s … {top_level():.0f} days", 294, 17, 170),
        "out": ("queue", f"1 to {1 + len(OPTIONS.outboxes)} outboxes\nfor each of your queues", 294, 117, 170),
        "streams": ("queue", "up to 10 streams\nwhat waits, what is cancelled", 140, 198, 190),
        "orphans": ("queue", "….orphans\ntasks whose queue is gone", 468, 198, 174),
        "yours": ("other", "your queue", 670, 126, 90),
    }
    connect(picture, boxes, "app>ingest app>outboxes ingest>levels outboxes>out levels>out out>yours out>orphans")
    picture.rect("frame", 124, 4, 526, 256, radius=6)
    picture.note(124, 278, f"All names begin with {CASCADE.root}. · There are {exchanges} exchanges; two are shown")
    return picture.svg("What this package creates on RabbitMQ", 780, 294)


def top_level() -> float:
    """Return the days that a message waits in the longest level."""
    return max(level.ttl for level in CASCADE.levels) / 86_400_000


#: Places of a task, far from the left where it is held up, and what shows it there.
PLACES = (
    (20, "queue", "it waits", "celery -A shop delay show ID"),
    (70, "queue", "due, but its queue is full or down", "celery -A shop delay status --management-url URL"),
    (70, "queue", "due, but its queue was deleted", "celery -A shop delay orphans list"),
    (20, "other", "in its own queue", "rabbitmqctl list_queues name messages consumers"),
    (20, "other", "at a worker", "celery -A shop inspect query_task ID"),
    (20, "other", "it ran, or was dropped", "grep ID in the workers' logs"),
)


def where() -> str:
    """Draw the places of a task, and the command that shows it there."""
    picture = Picture()
    boxes = []
    for row, (x, kind, text, command) in enumerate(PLACES):
        boxes.append(picture.box(kind, text, x, 8 + 46 * row, 300 - x))
        picture.note(320, boxes[-1].middle[1] + 4, command, kind="code")
    waits, *held_up, queued, worker, ended = boxes
    for held in held_up:
        picture.arrow([(45, held.middle[1]), (held.x, held.middle[1])])
    picture.arrow([(45, waits.y), (45, queued.y)])
    picture.arrow(queued.way(worker))
    picture.arrow(worker.way(ended))
    return picture.svg("Where is my task?", 680, 290)


def restart() -> str:
    """Draw when tasks were due around a crash of the node, and when they came."""
    found = json.loads((BENCHMARKS / "restart.json").read_text())
    picture, left, second = Picture(), 90, 22
    (down, up), about = found["down"], found["about"]
    picture.rect("frame", left + second * down, 8, second * (up - down), 132)
    picture.note(left + second * (down + up) / 2, 26, "the node is down", anchor="middle", kind="name")
    for y, name in ((44, "due"), (124, "delivered")):
        picture.note(20, y + 4, name, kind="name")
        for run in found["runs"]:
            picture.rect("exchange", left + second * run[name != "due"] - 3, y - 3, 6, 6, radius=3)
    for due, at in found["runs"]:
        picture.arrow([(left + second * due, 44), (left + second * at, 124)], kind="line thin")
    for at in range(0, 29, 4):
        picture.note(left + second * at, 156, f"{at} s", anchor="middle")
    how = (
        f"RabbitMQ {about['rabbitmq']}, one node, retry interval of ten seconds, {about['date']}. All were sent before."
    )
    picture.note(20, 178, how)
    return picture.svg("Two tasks a second are due, and the only node is killed and started again", 740, 194)


#: Questions, in the order in which they decide, the answer that ends them, and what to use then.
CHOICES = (
    ("Is RabbitMQ the broker?", "no", "its own means, or a database scheduler"),
    ("Does the task repeat?", "yes", "celery beat, with this package's scheduler"),
    ("Do people edit or join the schedule?", "yes", "a table: django-celery-beat"),
    ("Is 1/8 s exact enough?", "no", "one queue per delay, or plain eta"),
    ("Must you list, cancel or move tasks?", "yes", OURS),
    ("Direct exchanges, or fractions of a second?", "yes", OURS),
    ("Only a handful of fixed delays?", "yes", "one queue per delay"),
    ("Few tasks, classic queues, RabbitMQ 3?", "yes", "plain eta"),
)


def choice() -> str:
    """Draw the questions, from top to bottom, and the answers beside them."""
    picture, step = Picture(), 46
    last = picture.box("exchange", "native delayed delivery, or this package", 20, 8 + len(CHOICES) * step, 290)
    questions = [picture.box("other", one[0], 20, 8 + row * step, 290) for row, one in enumerate(CHOICES)]
    for (_, ends, way), box, below in zip(CHOICES, questions, [*questions[1:], last], strict=True):
        answer = picture.box("queue" if way == OURS else "exchange", way, 380, box.y, 280)
        picture.arrow(box.way(answer))
        picture.arrow(box.way(below))
        picture.note(345, box.y + 11, ends, anchor="middle")
        picture.note(box.middle[0] + 8, below.y - 4, {"yes": "no", "no": "yes"}[ends])
    return picture.svg("Which way to delay a task", 680, last.y + 46)


def cpu() -> str:
    """Draw the broker's CPU for a message, against that of native delayed delivery in the same run."""
    kinds = {OURS: "exchange", "native delayed delivery": "queue", "no delay": "other"}
    picture, y = Picture(), 16
    for x, (name, kind) in zip((20, 210, 410), kinds.items(), strict=True):
        picture.rect(kind, x, y - 10, 20, 12)
        picture.note(x + 28, y, name)
    for how, row, suffix in (
        ("delays of 5, 10 or 15 s, confirmed one by one", "everyday_cpu_confirmed", ""),
        ("delays of 1 to 15 s, confirmed one by one", "broker_cpu_confirmed", ""),
        ("delays of 1 to 15 s in a burst, unconfirmed", "broker_cpu", ", quorum"),
    ):
        for release, found in json.loads((BENCHMARKS / "results.json").read_text()).items():
            figures: dict[str, Any] = found["rows"][row]
            y += 34
            picture.note(20, y, f"RabbitMQ {release}, {how}", kind="name")
            for name, kind in kinds.items():
                if f"{name}{suffix}" in figures:
                    part = figures[f"{name}{suffix}"]["median"] / figures[f"native delayed delivery{suffix}"]["median"]
                    y += 17
                    picture.rect(kind, 20, y - 10, max(1, 480 * part), 12)
                    picture.note(28 + 480 * part, y, f"{part:.0%}".replace("%", " %"))
    return picture.svg("The broker's CPU for a message, against native delayed delivery", 560, y + 20)


DIAGRAMS = {
    "before-after.svg": before_after,
    "broker.svg": broker,
    "choice.svg": choice,
    "cpu.svg": cpu,
    "path.svg": path,
    "restart.svg": restart,
    "where.svg": where,
}


def main() -> int:
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (DIRECTORY / name).write_text(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures what `dead_letter_worker_consumer_prefetch` does, and draws docs/contributing/sizing.md.

python -m evidence.benchmarks.sizing                     on RabbitMQ 3.10, 4.0 and 4.3
python -m evidence.benchmarks.sizing --rabbitmq 4.3 --scale 0.1 --out /tmp/sizing.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kombu

import celery_rabbit_delay
from celery_rabbit_delay.amqp import declare
from celery_rabbit_delay.core.topology import LAYOUT
from tests.kit import meter
from tests.kit.node import Node, find_server
from tests.kit.page import fill, listed, machine, markdown

from .__main__ import CONF, log
from .contenders import QUEUE, Ours
from .rows import bodies, drain

RESULTS, AT_LENGTH = (Path(__file__).with_name(name) for name in ("sizing.json", "at_length.json"))
BACKLOG = AT_LENGTH.with_name("backlog.json")
PAGE = Path(__file__).parents[2] / "docs" / "contributing" / "sizing.md"

AGAIN = "{dead_letter_worker_publisher_confirm_timeout, 10000}"

#: Messages on their way out of one queue: RabbitMQ's default, and another.
SETTINGS = {"32": 32, "512": 512}


def amount_at(scale: float) -> int:
    """Return the messages of a run."""
    return max(100, int(5000 * scale))


def handing_on(server: Path, scale: float, repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Measure messages a second that are due in the same moment, with each of `SETTINGS`.

    Also the most MB by which a fresh node's memory grows meanwhile, and how many messages of each thousand come twice
    if it is killed in the middle.
    """
    amount = amount_at(scale)
    grown: dict[str, list[float]] = {name: [] for name in SETTINGS}
    twice: dict[str, list[float]] = {name: [] for name in SETTINGS}

    def run(name: str) -> float:
        # After a crash, RabbitMQ tries again after ten seconds instead of three minutes.
        settings = f"{{dead_letter_worker_consumer_prefetch, {SETTINGS[name]}}}, {AGAIN}"
        advanced = f"[{{rabbit, [{settings}]}}]."
        with Node(server, ("rabbitmq_management",), CONF, advanced) as fresh:
            with meter.peak_memory(meter.pid(fresh)) as peak:
                rate = drain([fresh], Ours, amount, 2500).rate
            grown[name].append(peak.grown / 1e6)
            twice[name].append(1000 * doubled(fresh, amount) / amount)
        return rate

    found = meter.interleaved({name: partial(run, name) for name in SETTINGS}, repeats, log)
    for name in SETTINGS:
        found[name]["grown"] = meter.spread(grown[name])
        found[name]["twice"] = meter.spread(twice[name])
        log(f"  {name}: {found[name]}")
    return found


def doubled(node: Node, amount: int) -> int:
    """Return how many messages come twice, the node being killed while it hands on what is due in the same moment."""
    contender = Ours(node.url(), confirm=True)
    with celery_rabbit_delay.batch(contender.producer, max_size=500):
        due = time.monotonic() + 4 + amount / 1500
        for number in range(amount):
            contender.publish(due - time.monotonic(), body=str(number))
    channel = contender.connection.channel()
    while channel.queue_declare(QUEUE, passive=True).message_count < amount / 10:
        time.sleep(0.01)
    node.kill()
    node.start()
    with kombu.Connection(node.url()) as connection:
        came: set[str] = set()
        copies = 0
        for body in bodies(connection, 60, lambda: len(came) < amount):
            copies += body in came
            came.add(body)
        queue = contender.connection.transport.delay_options.cascade.orphans
        orphans = declare.message_count(connection.default_channel, queue) or 0
    if len(came) < amount:  # a worker would fetch these when it reconnects: docs/operations.md, "Single nodes"
        print(f"  {orphans} of {amount} are orphans", file=sys.stderr)
    if len(came) + orphans < amount:
        raise RuntimeError(f"{amount - len(came) - orphans} of {amount} are lost")
    return copies


def table(results: dict[str, Any]) -> str:
    """Return the table of what RabbitMQ's setting does to what is due in the same moment."""

    def cell(found: dict[str, Any]) -> str:
        grown, twice = found["grown"]["median"], found["twice"]["median"]
        return f"{found['median']:,.0f}; {grown:,.0f} MB; {twice:.1f}"

    lines = [[broker, *(cell(found["settings"][name]) for name in SETTINGS)] for broker, found in results.items()]
    return markdown(["RabbitMQ", *SETTINGS], lines)


def measured(results: dict[str, Any]) -> str:
    """Return when and how each RabbitMQ was measured."""
    how: dict[str, list[str]] = {}
    for broker, found in results.items():
        about = found["about"]
        kind = f"{about['messages']:,} messages, {about['repeats']} run{'s' * (about['repeats'] > 1)}"
        how.setdefault(", ".join(filter(None, [kind, about.get("note")])), []).append(broker)
    kinds = "; ".join(f"on RabbitMQ {listed(brokers)}: {kind}" for kind, brokers in how.items())
    return f"{machine('Measured', [found['about'] for found in results.values()])} {kinds[0].upper()}{kinds[1:]}."


def late(found: dict[str, float]) -> str:
    return f"{found['p50']:.2f} s, {found['p99']:.2f} s, {found['most']:.1f} s; {found['early']} early"


def when(found: dict[str, Any]) -> str:
    """Return when and with what one thing was measured, and what else is to be said of it."""
    note = found["about"].get("note")
    return machine("Measured", [found["about"]]) + (f" {note[0].upper()}{note[1:]}." if note else "")


def minute(found: dict[str, Any]) -> str:
    """Return what many messages that are due in one minute take in a cluster."""
    lines = [
        [
            "CPU of the three nodes",
            f"{found['cpu']:,.0f} s, or {1000 * found['cpu'] / found['amount']:.1f} ms a message",
        ],
        ["late: half, 99 %, the last", late(found["late"])],
    ]
    head = [f"{found['amount']:,} messages of 200 bytes, due in one minute, confirmed", ""]
    return f"{markdown(head, lines)}\n\n{when(found)}"


def month(found: dict[str, Any]) -> str:
    """Return what many messages that wait take."""
    amount = found["amount"]
    lines = [
        ["wait in the end", f"{found['waiting']:,}"],
        ["publishing, without confirms", f"{found['seconds']:,.0f} s, or {amount / found['seconds']:,.0f} a second"],
        ["the node's CPU for that", f"{found['cpu']:,.0f} s, or {1e6 * found['cpu'] / amount:,.0f} µs a message"],
        [
            "its memory more than before",
            f"{found['memory'] / 1e6:,.0f} MB, or {found['memory'] / amount:,.0f} bytes a message",
        ],
        ["on its disk", f"{found['disk'] / 1e6:,.0f} MB, or {found['disk'] / amount:,.0f} bytes a message"],
        ["its CPU while they wait", f"{100 * found['idle']:.0f} % of one"],
        ["how late 4,000 others are, due in 20 s: half, 99 %, the last", late(found["others"])],
        ["until it is up again, if it is killed", f"{found['restart']:.0f} s"],
        ["how late 4,000 others are then", late(found["others after"])],
    ]
    head = [f"{amount:,} messages of 200 bytes, due within a month, one node", ""]
    return f"{markdown(head, lines)}\n\n{when(found)}"


def backlog(results: dict[str, Any]) -> str:
    """Return what a start with a backlog takes."""
    lines = []
    for found in results.values():
        for name, seconds in found["starts"].items():
            shown = [f"{seconds[part]:.1f} s" for part in ("up", "first", "all")]
            lines.append([str(found["nodes"]), f"{found['again']} s", name, *shown])
    head = ["nodes", "retry interval", "", "a node answers after", "the first of these tasks is there", "the last"]
    about = [found["about"] for found in results.values()]
    return f"{markdown(head, lines)}\n\n{machine('Measured', about)}"


def page(text: str) -> str:
    results, at_length = (json.loads(path.read_text()) for path in (RESULTS, AT_LENGTH))
    sections: dict[str, Callable[[], str]] = {
        "measured": partial(measured, results),
        "settings": partial(table, results),
    }
    sections |= {"minute": lambda: minute(at_length["minute"]), "month": lambda: month(at_length["month"])}
    return fill(text, sections | {"backlog": lambda: backlog(json.loads(BACKLOG.read_text()))})


def draw() -> None:
    PAGE.write_text(page(PAGE.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.benchmarks.sizing", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.0", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.rabbitmq:
        server = find_server(name)
        with Node(server) as node:
            about = meter.about(node)
        log(f"RabbitMQ {about['rabbitmq']}")
        about |= {"scale": arguments.scale, "repeats": arguments.repeats, "messages": amount_at(arguments.scale)}
        about["layout"] = LAYOUT
        results[name] = {"settings": handing_on(server, arguments.scale, arguments.repeats, log), "about": about}
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.out == RESULTS:
        draw()


if __name__ == "__main__":
    main()

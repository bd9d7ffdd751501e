"""How long a start with a backlog takes: a million tasks wait, and some become due while no node is up.

    python -m evidence.benchmarks.backlog                    on RabbitMQ 4.3, one node and three; about an hour
    python -m evidence.benchmarks.backlog --again 10         the same with a retry interval of 10 s; half an hour
    python -m evidence.benchmarks.backlog --amount 10000 --nodes 1 --out /tmp/backlog.json

All nodes are killed, or stopped as for an upgrade, before the first of these is due, and started when the last one is.
Writes `backlog.json`, of which docs/sizing.md tells.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kombu
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from celery_rabbit_delay.amqp import declare
from celery_rabbit_delay.core.destination import Destination
from tests.kit import meter
from tests.kit.node import DEFAULT_AGAIN, Node, cluster, dead_letters_again, find_server, start_all

from .at_length import fill, log, send_all
from .contenders import QUEUE, Ours

RESULTS = Path(__file__).with_name("backlog.json")

#: Tasks that are due while no node is up, and how many seconds from the first to the last.
DUE, DOWN = 6000, 30

#: Seconds to wait for them: RabbitMQ tries again every three minutes what it could not dead-letter while it started.
PATIENCE = 1800

#: Of queues of which nothing else is known: 250 with four each.
OUTBOXES, QUEUES = 1000, 250


@contextmanager
def running(server: Path, amount: int, again: int) -> Iterator[list[Node]]:
    if amount == 1:
        with Node(server, advanced=dead_letters_again(again)) as node:
            yield [node]
    else:
        with cluster(amount, server=server, advanced=dead_letters_again(again)) as nodes:
            time.sleep(5)
            yield nodes


def add_outboxes(url: str) -> None:
    contender = Ours(url)
    cascade, channel = contender.connection.transport.delay_options.cascade, contender.connection.default_channel
    for number in range(QUEUES):
        queue = f"other-{number}"
        kombu.Queue(queue, queue_arguments={"x-queue-type": "quorum"})(channel).declare()
        ticks = [8 * seconds for seconds in (10, 60, 300)]
        declare.bind_destination(channel, cascade, Destination("", (queue,)), [0, *ticks])
    contender.close()


def stop(nodes: list[Node], is_planned: bool) -> None:
    with ThreadPoolExecutor() as pool:
        end: Callable[[Node], None] = (lambda node: node.stop(120)) if is_planned else Node.kill
        list(pool.map(end, nodes))


def restart(nodes: list[Node], is_planned: bool) -> dict[str, float]:
    """Return seconds from the start of the nodes until one answers, and until the first and all due tasks are there."""
    chosen, first = random.Random(3), time.time() + 30
    dues = [first, first + DOWN, *(first + chosen.uniform(0, DOWN) for _ in range(DUE - 2))]
    send_all(nodes[0].url(), dues)
    assert time.time() < first, "it took too long to send them"
    stop(nodes, is_planned)
    assert time.time() < first, "it took too long to stop"
    time.sleep(first + DOWN - time.time())
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(start_all, nodes)
        up, times = receive(nodes[0].url(), {repr(due) for due in dues}, started)
        starting.result()
    return {"up": up, "first": min(times.values()), "all": max(times.values())}


def receive(url: str, wanted: set[str], started: float) -> tuple[float, dict[str, float]]:
    """Return the seconds from the start until a node answers, and until each message is there, by when it was due."""
    up, times = 0.0, dict[str, float]()
    while len(times) < len(wanted):
        assert time.monotonic() - started < PATIENCE, f"{len(wanted) - len(times)} did not come"
        try:
            with kombu.Connection(url, connect_timeout=1) as connection:
                channel = connection.default_channel
                up = up or time.monotonic() - started

                def on_message(message: Any) -> None:
                    message.channel.basic_ack(message.delivery_tag)
                    due = message.body.split()[0]
                    if due in wanted:  # not one of before that comes twice
                        times.setdefault(due, time.monotonic() - started)

                channel.basic_consume(QUEUE, callback=on_message)
                while len(times) < len(wanted):
                    connection.drain_events(timeout=60)
        except (AMQPError, OperationalError, OSError):
            time.sleep(0.1)
    return up, times


def measure(server: Path, nodes: int, amount: int, again: int) -> dict[str, Any]:
    with running(server, nodes, again) as started:
        Ours(started[0].url()).close()
        waiting, starts = fill(started[0].url(), amount)[0], dict[str, Any]()
        for outboxes in (0, OUTBOXES):
            if outboxes:
                add_outboxes(started[0].url())
            for is_planned in (False, True):
                while any(meter.is_busy(meter.pid(node)) for node in started):
                    pass
                name = f"{'stopped' if is_planned else 'killed'}, {outboxes:,} more outboxes"
                starts[name] = restart(started, is_planned)
                log(f"{nodes} nodes, {name}: {starts[name]}")
        about = meter.about(started[0])
        return {"nodes": nodes, "again": again, "waiting": waiting, "starts": starts, "about": about}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.benchmarks.backlog", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--amount", type=int, default=1_000_000)
    parser.add_argument("--again", type=int, default=DEFAULT_AGAIN, help="seconds of the retry interval")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    server = find_server(arguments.rabbitmq)
    for nodes in arguments.nodes:
        found = measure(server, nodes, arguments.amount, arguments.again)
        results = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        results[f"{nodes}, {arguments.again}"] = found
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

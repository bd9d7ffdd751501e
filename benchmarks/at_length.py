"""What takes long: a million messages that wait, spread over a month, and 100,000 due in one minute in a cluster.

    python -m benchmarks.at_length --rabbitmq 4.3

Prints what docs/sizing.md says.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections.abc import Sequence
from typing import Any

import kombu

from celery_rabbit_delay import batch
from testkit import meter
from testkit.node import Node, cluster, find_server

from .contenders import QUEUE, Contender, Ours

MONTH = 30 * 86400


class Quiet(Ours):
    """Takes nothing from the queue, where others wait for it."""

    def prepare(self) -> None:
        pass


def send(url: str, dues: Sequence[float], shards: int, size: int) -> None:
    """Publish confirmed, in batches, in a process of its own. A body begins with the moment when it is due."""
    contender = Quiet(url, shards=shards)
    with batch(contender.producer, max_size=500):
        for due in dues:
            contender.publish(due - time.time(), body=f"{due!r} ".ljust(size, "x"))
    contender.close()


def send_all(url: str, dues: Sequence[float], shards: int = 1, processes: int = 3, size: int = 200) -> None:
    """Publish from some processes side by side."""
    context = multiprocessing.get_context("spawn")
    senders = [
        context.Process(target=send, args=(url, dues[number::processes], shards, size)) for number in range(processes)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
        assert not sender.exitcode


def receive(url: str, amount: int, lateness: Any) -> None:
    """Measure, in a process of its own, how late messages are whose bodies begin with when they are due."""
    late: list[float] = []
    with kombu.Connection(url) as connection:
        channel = connection.default_channel

        def on_message(message: Any) -> None:
            late.append(time.time() - float(message.body.split()[0]))

        channel.basic_consume(QUEUE, callback=on_message, no_ack=True)
        while len(late) < amount:
            connection.drain_events(timeout=300)
    lateness.send(late)


def lateness(url: str, dues: Sequence[float], shards: int = 1, processes: int = 3) -> list[float]:
    """Publish messages that are due at some `time.time()`, and return how late they come."""
    receiving, sending = multiprocessing.Pipe(duplex=False)
    consumer = multiprocessing.get_context("spawn").Process(target=receive, args=(url, len(dues), sending))
    consumer.start()
    send_all(url, dues, shards, processes)
    print(f"all sent {min(dues) - time.time():.0f} s before the first is due", flush=True)
    late: list[float] = receiving.recv()
    consumer.join()
    return late


def show(late: Sequence[float]) -> None:
    figures = [meter.percentile(late, percent) for percent in (50, 99)]
    print(f"late: half {figures[0]:.2f} s, 99 % {figures[1]:.2f} s, last {max(late):.2f} s, first {min(late):.2f} s")


def a_month(server: Any, amount: int) -> None:
    """Let a million wait, and print what that takes: memory, disk, what others notice of it, and a restart."""
    chosen = random.Random(1)
    with Node(server) as node:
        Ours(node.url()).close()
        before, used, started = meter.memory(meter.pid(node)), meter.cpu(meter.pid(node)), time.monotonic()
        now = time.time()
        send_all(node.url(), [now + chosen.uniform(3600, MONTH) for _ in range(amount)])
        seconds = time.monotonic() - started
        print(f"{amount:,} sent in {seconds:.0f} s, CPU of the broker {meter.cpu(meter.pid(node)) - used:.0f} s")
        while meter.is_busy(meter.pid(node)):
            time.sleep(1)
        grown = meter.memory(meter.pid(node)) - before
        disk = sum(file.stat().st_size for file in node.data.rglob("*") if file.is_file())
        print(f"memory: {grown / amount:.0f} bytes a message; disk: {disk / amount:.0f}", flush=True)
        used = meter.cpu(meter.pid(node))
        time.sleep(20)
        print(f"CPU of the broker while they wait: {(meter.cpu(meter.pid(node)) - used) / 20:.2f}")
        now = time.time() + 5
        show(lateness(node.url(), [now + chosen.uniform(0, 20) for _ in range(4000)], processes=1))
        started = time.monotonic()
        node.kill()
        node.start()
        contender = Contender(node.url())
        print(f"up {time.monotonic() - started:.1f} s after a kill", flush=True)
        contender.close()
        now = time.time() + 5
        show(lateness(node.url(), [now + chosen.uniform(0, 20) for _ in range(4000)], processes=1))


def a_minute(server: Any, amount: int) -> None:
    """Let 100,000 be due in one minute in a cluster of three nodes, and print how late they are."""
    chosen = random.Random(1)
    shards = 3
    with cluster(3, server=server) as nodes:
        time.sleep(5)
        Ours(nodes[0].url(), shards=shards).close()
        before = [meter.cpu(meter.pid(node)) for node in nodes]
        first = time.time() + 20 + amount / 700
        late = lateness(nodes[0].url(), [first + chosen.uniform(0, 60) for _ in range(amount)], shards)
        used = [meter.cpu(meter.pid(node)) - earlier for node, earlier in zip(nodes, before, strict=True)]
        print(f"{amount:,} in a minute, {shards} shards; CPU of the nodes: {', '.join(f'{n:.0f} s' for n in used)}")
        show(late)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.at_length", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--month", type=int, default=1_000_000, help="messages; 0 leaves it out")
    parser.add_argument("--minute", type=int, default=100_000, help="the same")
    arguments = parser.parse_args()
    server = find_server(arguments.rabbitmq)
    if arguments.minute:
        a_minute(server, arguments.minute)
    if arguments.month:
        a_month(server, arguments.month)


if __name__ == "__main__":
    main()

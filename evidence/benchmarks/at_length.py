"""What takes long: a million messages that wait, spread over a month.

    python -m evidence.benchmarks.at_length                    on RabbitMQ 4.3; about ten minutes on two CPUs
    python -m evidence.benchmarks.at_length --month 10000 --out /tmp/at_length.json

Writes `at_length.json`, of which docs/sizing.md tells.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery_rabbit_delay import batch, operate
from evidence import meter
from tests.kit.node import Node, find_server

from .contenders import Contender, Ours, receiving

RESULTS = Path(__file__).with_name("at_length.json")

MONTH = 30 * 86400


class Quiet(Ours):
    """Takes nothing from the queue, where others wait for it."""

    def prepare(self) -> None:
        pass


def send(url: str, dues: Sequence[float]) -> None:
    """Publish confirmed, in batches, in a process of its own. A body begins with the moment when it is due."""
    contender = Quiet(url)
    with batch(contender.producer, max_size=500):
        for due in dues:
            contender.publish(due - time.time(), body=f"{due!r} ".ljust(200, "x"))
    contender.close()


def lateness(url: str, dues: Sequence[float]) -> list[float]:
    """Publish messages that are due at some `time.time()`, and return how late they come."""
    received = receiving(url, len(dues))
    sender = multiprocessing.get_context("spawn").Process(target=send, args=(url, dues))
    sender.start()
    sender.join()
    assert not sender.exitcode
    log(f"all sent {min(dues) - time.time():.0f} s before the first is due")
    return received()


def spread(late: Sequence[float]) -> dict[str, float]:
    half, nearly = (meter.percentile(late, percent) for percent in (50, 99))
    return {"p50": half, "p99": nearly, "most": max(late), "early": sum(one < 0 for one in late)}


def others(node: Node) -> dict[str, float]:
    """Return how late other messages are, 4,000 that are due within 20 seconds."""
    chosen, soon = random.Random(2), time.time() + 15
    return spread(lateness(node.url(), [soon + chosen.uniform(0, 20) for _ in range(4000)]))


def fill(url: str, amount: int) -> tuple[int, float]:
    """Let so many messages wait, spread over a month, as fast as py-amqp sends.

    Returns how many wait in the end, and after how many seconds.
    """
    started = reached = time.monotonic()
    chosen = random.Random(1)
    delays = [chosen.uniform(3600, MONTH) for _ in range(5000)]  # what each costs Python is not measured
    contender = Ours(url)
    for start in range(0, amount, 50_000):
        contender.burst(chosen.choices(delays, k=min(50_000, amount - start)))
    waits, waited = 0, -1
    while waits != waited:  # until no more come
        time.sleep(5)
        waited, waits = waits, operate.status(contender.connection).waiting
        reached = time.monotonic() if waits != waited else reached
    contender.close()
    return waits, reached - started


def a_month(server: Path, amount: int) -> dict[str, Any]:
    """Let a million wait, and measure what that takes: memory, disk, what others notice of it, and a restart."""
    with Node(server) as node:
        Ours(node.url()).close()
        before, used = meter.memory(meter.pid(node)), meter.cpu(meter.pid(node))
        waiting, seconds = fill(node.url(), amount)
        found: dict[str, Any] = {"amount": amount, "waiting": waiting, "seconds": seconds}
        while meter.is_busy(meter.pid(node)):
            pass
        found["cpu"] = meter.cpu(meter.pid(node)) - used
        found["memory"] = meter.memory(meter.pid(node)) - before
        found["disk"] = sum(file.stat().st_size for file in node.data.rglob("*") if file.is_file())
        log(str(found))
        used = meter.cpu(meter.pid(node))
        time.sleep(20)
        found["idle"] = (meter.cpu(meter.pid(node)) - used) / 20
        found["others"] = others(node)
        started = time.monotonic()
        node.kill()
        node.start(timeout=600)
        contender = Contender(node.url())
        found["restart"] = time.monotonic() - started
        contender.close()
        found["others after"] = others(node)
        log(str(found))
        return {**found, "about": meter.about(node)}


def log(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.benchmarks.at_length", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--month", type=int, default=1_000_000, help="messages")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = {"month": a_month(find_server(arguments.rabbitmq), arguments.month)}
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

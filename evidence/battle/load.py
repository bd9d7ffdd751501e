"""Many tasks at once: what they cost while they wait, and how fast they run when all are due in the same second.

    python -m evidence.battle.load --rabbitmq 4.3 --waiting 100000

Adds to the results that docs/contributing/battle.md shows. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit import ledger
from tests.kit.meter import about, memory, percentile, pid
from tests.kit.node import Node, find_server

from .app import CONTENDERS, OURS
from .arena import Arena, Clocks
from .report import LOAD, add

FILLERS = 4
FILLING = 3600.0  # seconds, at most: those who fill write nothing into their ledger until the end
HOURS = 3600, 7200  # of waiting
NOTHING = "no delay"  # only in a burst: what is due in that second is sent in that second


@contextmanager
def arena_of(node: Node, contender: str) -> Iterator[Arena]:
    """Yield an arena on a node. Its directory stays, with the logs, after an error."""
    arena = Arena(
        contender,
        node.url(),
        Path(tempfile.mkdtemp(prefix="celery-rabbit-delay-load-")),
        Clocks(),
        pools=["prefork"],
        work=0.0,
    )
    try:
        arena.ready()
        yield arena
    finally:
        arena.close()
    shutil.rmtree(arena.directory)


def immediate(arena: Arena) -> list[float]:
    """Return the milliseconds until half and 99 % of undelayed tasks ran, 20 a second; infinite if they did not."""
    before = ledger.count(arena.ran)
    arena.publish(300, 20, 0, 0)
    arena.wait_for_publishers()
    arena.wait(3)
    sent = {entry["id"]: entry["sent"] for entry in ledger.read(arena.published) if "sent" in entry}
    ran = {entry["id"]: entry["at"] for entry in ledger.read(arena.ran)[before:]}
    late = [1000 * (ran[name] - sent[name]) if name in ran else math.inf for name in list(sent)[-300:]]
    return [percentile(late, percent) for percent in (50, 99)]


def rate(arena: Arena, publishers: int, amount: int) -> float:
    """Return how many delayed tasks a second so many processes send, each confirmed before the next."""
    known = ledger.count(arena.published)
    for _ in range(publishers):
        arena.publish(amount // publishers, math.inf, *HOURS)
    arena.wait_for_publishers()
    times: dict[str, list[float]] = {}
    for entry in ledger.read(arena.published)[known:]:
        if "confirmed" in entry:
            times.setdefault(entry["id"].partition("-")[0], []).append(entry["confirmed"])
    begin, end = max(map(min, times.values())), min(map(max, times.values()))  # all of them were at it
    return sum(begin <= time <= end for found in times.values() for time in found) / (end - begin)


def waiting(node: Node, contender: str, amount: int) -> dict[str, Any]:
    """Measure bytes of memory for each waiting task, of broker and worker, and how fast others are sent and run."""
    with arena_of(node, contender) as arena:
        found: dict[str, Any] = {"alone": immediate(arena)}
        found |= {"rate of one": rate(arena, 1, 3000), "rate of eight": rate(arena, 8, 8000)}
        broker, worker = settled(lambda: memory(pid(node))), memory(arena.workers[0].pid)
        began = time.monotonic()
        for _ in range(FILLERS):
            arena.publish(amount // FILLERS, math.inf, *HOURS, mode="batch")
        arena.wait_for_publishers(FILLING)
        found["seconds to send"] = time.monotonic() - began
        if CONTENDERS[contender] is None:
            time.sleep(30)  # a worker that prefetches goes on for a while
        found["broker"] = (settled(lambda: memory(pid(node))) - broker) / amount
        found["worker"] = (memory(arena.workers[0].pid) - worker) / amount
        found["beside"] = immediate(arena)
        return found


def settled(measure: Callable[[], int]) -> int:
    """Return the least of what is measured in ten seconds, after a pause of five."""
    time.sleep(5)
    values = []
    for _ in range(20):
        time.sleep(0.5)
        values.append(measure())
    return min(values)


def burst(node: Node, contender: str, amount: int) -> float:
    """Return the seconds from when `amount` tasks are due until the last has run."""
    with arena_of(node, OURS if contender == NOTHING else contender) as arena:
        due = time.time() + (0 if contender == NOTHING else 60 + amount / 400)
        for _ in range(FILLERS):
            eta = 0 if contender == NOTHING else due
            arena.publish(amount // FILLERS, math.inf, eta, 0, mode="at once")
        arena.wait_for_publishers(FILLING)
        if contender != NOTHING:
            assert time.time() < due, "it took too long to send them"
        arena.wait(max(0.0, due - time.time()))
        arena.until(lambda: ledger.count(arena.ran) >= amount, "all have run", timeout=1800)
        times = [entry["at"] for entry in ledger.read(arena.ran)]
        assert min(times) >= due - 1, "early"
        return float(max(times) - due)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.battle.load", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--contender", nargs="+", default=[OURS, "native delayed delivery", "plain eta"])
    parser.add_argument("--waiting", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--burst", type=int, default=50_000)
    arguments = parser.parse_args()
    for name in arguments.rabbitmq:
        for contender in arguments.contender:
            for amount in arguments.waiting:
                with Node(find_server(name)) as node:
                    keep(name, f"{amount:,} wait", contender, {**waiting(node, contender, amount), **about(node)})
        for contender in [*arguments.contender, NOTHING] if arguments.burst else []:
            with Node(find_server(name)) as node:
                seconds = burst(node, contender, arguments.burst)
                keep(name, f"{arguments.burst:,} due at once", contender, {"seconds": seconds, **about(node)})


def keep(*result: Any) -> None:
    print(*result, file=sys.stderr, flush=True)
    add(LOAD, *result)


if __name__ == "__main__":
    main()

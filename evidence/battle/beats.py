"""Three beats are killed, suspended and cut off at random, and what they send is counted.

python -m evidence.battle.beats                          a minute, on RabbitMQ 3.10 and 4.3
python -m evidence.battle.beats --minutes 10 --rabbitmq 4.3

Exits with 1 if two beats were active at a time, if more runs were sent twice than beats were killed or cut off, or if
nothing was sent for longer than a beat takes to be replaced. Logs are left in .battle/.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import kombu
from celery import Celery

from tests.kit.beats import Beat, Sent, entry
from tests.kit.node import Node, find_server
from tests.kit.proxy import Proxy, proxy
from tests.kit.wait import wait_until

from .arena import PLACE, ROOT

QUEUE = "evidence.battle.beats"

#: Seconds: the setting `beat_heartbeat`, and the longest time without a run, while one beat is left alone.
HEARTBEAT, LONGEST = 6, 6 + 3

app = Celery("battle", broker=os.environ.get("BATTLE_BROKER", "amqp://"))
app.conf.beat_heartbeat = HEARTBEAT
app.conf.task_default_queue = QUEUE
app.conf.beat_schedule = {"run": entry("evidence.battle.beats.run", 1)}


class Verdict(NamedTuple):
    """What was sent. A run is sent twice if its task id is; `at_once` are runs that came too early, from two beats.

    A run is due a second after the one before was, which may have been sent a little later.
    """

    runs: int
    twice: int
    at_once: int
    longest_gap: float  # seconds

    def is_good(self, faults: int) -> bool:
        return self.twice <= faults and not self.at_once and self.longest_gap <= LONGEST


def judge(sent: Sequence[Sent]) -> Verdict:
    """Judge the tasks of an entry that is due each second, in the order of their queue."""
    first = list({one.id: one for one in reversed(sent)}.values())[::-1]
    gaps = [(after.at - one.at).total_seconds() for one, after in itertools.pairwise(first)]
    return Verdict(len(first), len(sent) - len(first), sum(gap < 0.5 for gap in gaps), max(gaps, default=0.0))


class Place:
    """A beat, with a way of its own to RabbitMQ; as under a supervisor, one that has ended is started again."""

    def __init__(self, way: Proxy, url: str, directory: Path) -> None:
        self.way, self.url, self.directory = way, url, directory
        self.beat = self.start()

    def start(self) -> Beat:
        environment = {"BATTLE_BROKER": self.way.url(self.url), "PYTHONPATH": str(ROOT)}
        return Beat("evidence.battle.beats", self.directory, environment)

    def kill(self, seconds: float) -> None:
        self.beat.kill()
        time.sleep(seconds)
        self.beat = self.start()

    def suspend(self, seconds: float) -> None:
        self.beat.signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.beat.signal(signal.SIGCONT)

    def cut(self, seconds: float) -> None:
        self.way.cut()

    def stall(self, seconds: float) -> None:
        self.way.flowing.clear()
        time.sleep(seconds)
        self.way.flowing.set()


def trouble(places: list[Place], end: float, faults: list[str]) -> None:
    """Do something to all places but one at a time, until a time (`time.monotonic`)."""
    chosen = random.Random(len(places))
    last = places[0]
    while time.monotonic() < end:
        spared = chosen.choice([place for place in places if place is not last])
        last = spared
        threads = []
        for place in places:
            if place is not spared:
                do: Callable[[float], None] = chosen.choice([place.kill, place.suspend, place.cut, place.stall])
                faults.append(do.__name__)
                threads.append(threading.Thread(target=do, args=(chosen.uniform(0, 1.5 * HEARTBEAT),)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(chosen.uniform(2, 4))  # those that were troubled are candidates again before the other one is


def fight(server: Path, minutes: float, directory: Path) -> tuple[Verdict, list[str]]:
    """Fight a battle; return what was sent, and the faults."""
    faults: list[str] = []
    with Node(server) as node, ExitStack() as stack:
        places = [Place(stack.enter_context(proxy(node.port)), node.url(), directory) for _ in range(3)]
        try:
            wait_until(lambda: any(place.beat.activations for place in places), "a beat is active")
            trouble(places, time.monotonic() + 60 * minutes, faults)
            time.sleep(3)
        finally:
            for place in places:
                place.way.flowing.set()
                place.beat.kill()
        return judge(list(_take(node.url()))), faults


def _take(url: str) -> Iterator[Sent]:
    with kombu.Connection(url) as connection:
        queue = kombu.Queue(QUEUE)(connection.default_channel)
        while message := queue.get(no_ack=True):
            yield Sent.of(message)


def _empty(name: str) -> Path:
    directory = PLACE.absolute() / f"beats-{name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence.battle.beats", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"], help="names for tools/get-rabbitmq")
    parser.add_argument("--minutes", type=float, default=1)
    arguments = parser.parse_args()
    good = True
    with ThreadPoolExecutor() as pool:
        fights = {
            name: pool.submit(fight, find_server(name), arguments.minutes, _empty(name)) for name in arguments.rabbitmq
        }
        for name, fought in fights.items():
            verdict, faults = fought.result()
            good &= verdict.is_good(sum(fault != "suspend" for fault in faults))
            done = ", ".join(f"{faults.count(what)} times {what}" for what in sorted(set(faults)))
            print(f"RabbitMQ {name}: {verdict}; {done}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""A campaign: millions of tasks of all kinds through hundreds of faults, in pieces that add up.

    python -m evidence.battle.campaign --rabbitmq 4.3 --nodes 3 --minutes 10 --pieces 4

Each piece has brokers of its own and is added to campaign.json when it ends, with its commit, versions and seed. So a
campaign goes on after an interruption, on any machine. Exits with 1 if a piece of this package lost a confirmed task,
or ran an early or cancelled one; its ledgers and logs are left in .battle/.

Publishers with different options send all the time. Storms of faults, chosen by the seed, and quiet follow each other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from celery_rabbit_delay.delay.core.names import LAYOUT
from evidence.meter import about
from tests.kit import ledger
from tests.kit.background import Process, kill
from tests.kit.node import find_server

from . import pieces
from .app import CONTENDERS, OURS
from .arena import PLACE, Arena, Clocks
from .pieces import Piece
from .scenarios import AGAIN, Stage, crash, heal, leave_evidence, staged
from .verdict import Run, Verdict

#: Options of the two apps that send.
APPS: list[dict[str, Any]] = [
    {"schedule": True, "journal": 0},
    {"schedule": True, "journal": 0, "outboxes": [7, 11, 40], "slack": 0.01},
]

#: Each app has a publisher that waits for the confirm of each task, and one that sends most tasks, in batches.
SHARES = {"all kinds": 0.05, "all kinds in batches": 0.95}
PUBLISHERS = list(product(APPS, SHARES))

POOLS = ["prefork", "solo"]  # of the workers

CANCELLED, MOVED = 50, 20  # of so many that wait long enough, one
STEP = 120  # seconds: of the times that tasks are moved to
LONGEST = 90  # seconds of delay
FAULTS = 12  # of a storm
QUIET = 120  # seconds between storms

#: The numbers of tasks that are noted of a piece.
NOTED = (*pieces.COUNTS, "unexplained", "moved")


class Campaigner:
    """What is done to one piece, by chance. The `seed` decides what, and in which order."""

    def __init__(self, stage: Stage, seed: int, rate: float, until: float) -> None:
        self.stage = stage
        self.chosen = random.Random(seed)
        self.rate = rate
        self.until = until  # by the monotonic clock
        self.publishers = [self.publish(number) for number in range(len(PUBLISHERS))]
        self.cancel()

    def publish(self, number: int) -> subprocess.Popen[bytes]:
        """Start one of `PUBLISHERS`, for the time that is left."""
        options, mode = PUBLISHERS[number]
        rate = self.rate * SHARES[mode] / len(APPS)
        amount = int(rate * max(0.0, self.until - time.monotonic()))
        return self.stage.arena.publish(amount, rate, 1, LONGEST, mode, options)

    def stop(self) -> None:
        """End the publishers, which may be behind: what they have not sent is not sent."""
        for publisher in self.publishers:
            kill(publisher)

    def cancel(self) -> None:
        self.stage.arena.cancel(CANCELLED, MOVED, STEP)

    def storm(self) -> None:
        faults: list[Callable[[], None]] = [
            *[self.kill_broker, self.suspend_broker] * 3,
            *[self.cut, self.stall, self.kill_worker, self.suspend_worker],
            *[self.kill_publisher, self.suspend_publisher, self.cancel],
        ]
        if len(self.stage.nodes) > 1:
            faults.append(self.restart_all)
        for fault in self.chosen.sample(faults, FAULTS):
            fault()
            self.stage.arena.wait(self.chosen.uniform(0.5, 6))
        if len(self.stage.nodes) > 1:
            heal(self.stage)

    def kill_broker(self) -> None:
        crash(self.stage, self.chosen.choice(self.stage.nodes))

    def suspend_broker(self) -> None:
        node = self.chosen.choice(self.stage.nodes)
        with self.stage.arena.fault("broker suspended"):
            node.suspend(True)
            self.stage.arena.wait(self.chosen.uniform(2, 15))
            node.suspend(False)

    def restart_all(self) -> None:
        with self.stage.arena.fault("rolling restart"):
            for node in self.stage.nodes:
                node.stop()
                node.start()

    def cut(self) -> None:
        with self.stage.arena.fault("connections cut"):
            self.stage.between.cut()

    def stall(self) -> None:
        with self.stage.arena.fault("network stalled"):
            self.stage.between.flowing.clear()
            self.stage.arena.wait(self.chosen.uniform(2, 10))
            self.stage.between.flowing.set()

    def kill_worker(self) -> None:
        self.stage.arena.kill_worker(self.chosen.randrange(len(self.stage.arena.workers)))

    def suspend_worker(self) -> None:
        self.suspend("worker suspended", self.chosen.choice(self.stage.arena.workers))

    def kill_publisher(self) -> None:
        number = self.chosen.randrange(len(PUBLISHERS))
        self.stage.arena.kill_publisher(self.publishers[number])
        self.publishers[number] = self.publish(number)

    def suspend_publisher(self) -> None:
        self.suspend("publisher suspended", self.chosen.choice(self.publishers))

    def suspend(self, name: str, process: Process) -> None:
        with self.stage.arena.fault(name), contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGSTOP)
            self.stage.arena.wait(self.chosen.uniform(2, 10))
            os.killpg(process.pid, signal.SIGCONT)


def fight(broker: str, amount: int, contender: str, minutes: float, rate: float, seed: int, place: Path) -> Piece:
    """Fight one piece from beginning to end; return its figures."""
    options = {"clocks": Clocks(), "work": 0, "pools": POOLS, "prefetch": 16, "seed": seed}
    with staged(contender, find_server(broker), amount, AGAIN, 1, place, **options) as stage:
        end = time.monotonic() + 60 * minutes
        campaigner = Campaigner(stage, seed, rate, end)
        while time.monotonic() < end:
            stage.arena.wait(QUIET)
            campaigner.storm()
        campaigner.stop()
        verdict = stage.arena.finish(50 + AGAIN)
        if not verdict.good:
            leave_evidence(stage.nodes, place)
        piece = {"nodes": amount, "contender": contender, "seed": seed, "minutes": minutes, "rate": rate}
        piece |= {"release": broker, "layout": LAYOUT}
        return {**piece, **about(stage.node), **figures(verdict, stage.arena)}


def figures(verdict: Verdict, arena: Arena) -> Piece:
    calm: list[Run] = []
    struck: list[Run] = []
    for run in verdict.runs:
        (struck if pieces.is_struck(run, arena.faults) else calm).append(run)
    delayed = sum(entry["due"] > entry["sent"] for entry in ledger.read(arena.published) if "due" in entry)
    return {
        **{name: count for name, count in verdict.figures().items() if name in NOTED},
        "delayed": delayed,
        "faults": dict(Counter(fault.name for fault in arena.faults)),
        "last": max(run.late for run in verdict.runs),
        "calm": pieces.classes(calm),
        "struck": pieces.classes(struck),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence.battle.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--contender", choices=list(CONTENDERS), default=OURS, metavar="NAME")
    parser.add_argument("--minutes", type=float, default=10, help="of publishing, for each piece")
    parser.add_argument("--rate", type=float, default=300, help="tasks a second")
    parser.add_argument("--seed", type=int, help="of the first piece; those that follow count on")
    parser.add_argument("--pieces", type=int, default=1)
    arguments = parser.parse_args()
    first = random.randrange(10**6) if arguments.seed is None else arguments.seed
    good = True
    for seed in range(first, first + arguments.pieces):
        shutil.rmtree(PLACE, ignore_errors=True)
        PLACE.mkdir()
        options = arguments.contender, arguments.minutes, arguments.rate, seed, PLACE.absolute()
        piece = fight(arguments.rabbitmq, arguments.nodes, *options)
        pieces.add(piece)
        shown = {name: value for name, value in piece.items() if name not in ("calm", "struck")}
        print(json.dumps(shown), file=sys.stderr, flush=True)
        if arguments.contender == OURS and any(piece[name] for name in ("lost", "early", "revoked")):
            good = False
            break  # its ledgers stay
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""A broker, workers and publishers that faults are done to. Everything is a real process."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import ledger
from tests.kit.background import kill, start

from .verdict import Fault, Verdict, judge

ROOT = Path(__file__).parents[2]

#: Of ledgers and logs, within the current directory.
PLACE = Path(".battle")


class Clocks(NamedTuple):
    """Seconds that they are ahead."""

    worker: float = 0.0
    publisher: float = 0.0


class Arena:
    """Workers that are killed come back, as under a supervisor. Times in seconds."""

    def __init__(
        self,
        contender: str,
        broker: str,
        directory: Path,
        clocks: Clocks,
        patience: float = math.inf,
        pools: Sequence[str] = ("prefork", "prefork"),
        work: float = 0.02,
        prefetch: int = 4,
        seed: int = 0,
    ) -> None:
        self.contender = contender
        self.patience = patience
        self.clocks = clocks
        self.directory = directory
        self.published, self.ran = directory / "published", directory / "ran"
        self.published.touch()
        self.ran.touch()
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BATTLE_BROKER": broker,
            "BATTLE_CONTENDER": contender,
            "BATTLE_PUBLISHED": str(self.published),
            "BATTLE_RAN": str(self.ran),
            "BATTLE_SEED": str(seed),
            "BATTLE_WORK": str(work),
            "BATTLE_PREFETCH": str(prefetch),
        }
        self.faults: list[Fault] = []
        self.publishers: list[subprocess.Popen[bytes]] = []
        self.canceller: subprocess.Popen[bytes] | None = None
        self.logs: list[Path] = []  # of workers, as they were started
        self.pools = pools  # of each worker
        self.start_workers()

    def start_workers(self) -> None:
        self.workers = [self._start_worker(number) for number in range(len(self.pools))]

    def stop_workers(self) -> None:
        """Stop all workers gracefully: they give back what they hold."""
        stopped, self.workers = self.workers, []
        for worker in stopped:
            worker.terminate()
        for worker in stopped:
            worker.wait()

    def ready(self) -> None:
        """Wait until all workers are ready."""
        logs = self.logs[-len(self.pools) :]
        self.until(lambda: all(" ready." in log.read_text() for log in logs), "all workers are ready")

    def publish(
        self,
        amount: int,
        rate: float,
        shortest: float = 1,
        longest: float = 12,
        mode: str = "plain",
        options: Mapping[str, Any] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a publisher; `options` are for ours only. See `evidence.battle.publisher`."""
        number = len(self.publishers)
        numbers = map(str, (amount, rate, shortest, longest))
        command = [sys.executable, "-m", "evidence.battle.publisher", str(self.published), f"p{number}", *numbers, mode]
        log = self.directory / f"publisher-{number}.log"
        self.publishers.append(self._start(command, log, self.clocks.publisher, options))
        return self.publishers[-1]

    def cancel(self, cancelled: int = 3, moved: int = 12, step: float = 5) -> None:
        """Start a process that cancels tasks, after killing the one before. See `evidence.battle.canceller`."""
        if self.canceller is not None:
            with self.fault("canceller killed"):
                kill(self.canceller)
        numbers = map(str, (cancelled, moved, step))
        command = [sys.executable, "-m", "evidence.battle.canceller", str(self.published), *numbers]
        self.canceller = self._start(command, self.directory / "canceller.log", self.clocks.publisher)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Record a fault, from when the block begins until it ends."""
        began = time.time()
        yield
        self.faults.append(Fault(name, began, time.time()))

    def kill_publisher(self, publisher: subprocess.Popen[bytes]) -> None:
        """Send SIGKILL to a publisher, in the middle of whatever it does."""
        with self.fault("publisher killed"):
            kill(publisher)

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker and its pool, in the middle of whatever they do, and start another."""
        with self.fault("worker killed"):
            kill(self.workers[number])
            self.workers[number] = self._start_worker(number)

    def wait(self, seconds: float) -> None:
        """Let the battle go on for so many seconds; workers that died are started again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._supervise()
            time.sleep(0.05)

    def finish(self, patience: float) -> Verdict:
        """Wait until the publishers end and all that was confirmed has run, or nothing has for `patience` seconds."""
        self.wait_for_publishers()
        published = ledger.read(self.published)
        last_due = max(entry[name] for entry in published for name in ("due", "moving") if name in entry)
        size, last = -1, time.monotonic()
        while time.monotonic() <= last + patience:
            self.wait(1)
            size, before = self.ran.stat().st_size, size
            if size == before and not self.verdict().lost:
                break
            if size != before or time.time() < last_due:
                last = time.monotonic()
        self.wait(3)  # for duplicates
        return self.verdict()

    def verdict(self) -> Verdict:
        """Judge the ledgers as they are now: what is still to come counts as lost."""
        return judge(ledger.read(self.published), ledger.read(self.ran), self.faults, patience=self.patience)

    def wait_for_publishers(self, patience: float = 300) -> None:
        """Wait until all publishers have ended; kill them once nothing has been confirmed for `patience` seconds."""
        size, last = -1, time.monotonic()
        while any(publisher.poll() is None for publisher in self.publishers):
            self.wait(0.2)
            if (now := self.published.stat().st_size) != size:
                size, last = now, time.monotonic()
            elif time.monotonic() > last + patience:
                for publisher in self.publishers:
                    kill(publisher)

    def close(self) -> None:
        for process in (*self.workers, *self.publishers, self.canceller):
            if process is not None:
                kill(process)

    def _supervise(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[number] = self._start_worker(number)

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", "evidence.battle.app", "worker", "-c", "2", "-l", "INFO"]
        command += ["-P", self.pools[number]]
        self.logs.append(self.directory / f"worker-{len(self.logs)}.log")
        return self._start([*command, "-n", f"w{number}@localhost"], self.logs[-1], self.clocks.worker)

    def _start(
        self, command: list[str], log: Path, clock: float, options: Mapping[str, Any] | None = None
    ) -> subprocess.Popen[bytes]:
        settings = {"BATTLE_CLOCK": str(clock), "BATTLE_OPTIONS": json.dumps(options or {})}
        return start(command, log, self.directory, {**self.environment, **settings})

    def until(self, predicate: Callable[[], Any], what: str, timeout: float = 120) -> None:
        """Wait until a predicate is true. Raises `TimeoutError`."""
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {timeout} s; see {self.directory}")
            self.wait(0.5)

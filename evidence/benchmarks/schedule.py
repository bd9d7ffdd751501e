"""What the schedule costs: records of delayed tasks, lists of them, and cancelled ids; as `rows`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import celery_rabbit_delay
from celery_rabbit_delay.schedule.amqp.waiting_tasks import waiting, write_changes
from celery_rabbit_delay.schedule.core import changes, journal, streams
from evidence import meter
from tests.kit.node import Node

from .contenders import SCHEDULE, Contender, Log, Ours, take, vhost, with_streams
from .rows import running_app, running_worker

#: Whole seconds of delay, few of them, so that a turn is short: most of these take one or two hops.
DELAYS = range(1, 6)

LIMIT = 10


def journal_broker_cpu(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure the broker's CPU microseconds for a task, from the first publish until the last is delivered."""
    found = {}
    with vhost(node) as one, vhost(node) as two:
        contenders = {
            "without": Ours(one, confirm=True),
            "with": Ours(with_streams(two), confirm=True, schedule=True, journal=0),
        }

        def turn(name: str, batched: bool) -> float:
            amount = int((4000 if batched else 400) * scale)
            contender, chosen = contenders[name], random.Random(1)
            before = meter.cpu(meter.pid(node))
            with celery_rabbit_delay.batch(contender.producer) if batched else nullcontext():
                for _ in range(amount):
                    contender.publish(chosen.choice(DELAYS))
            came = take(contender.connection, amount)
            return 1e6 * (meter.cpu(meter.pid(node)) - before) / came

        for kind, batched in (("one by one", False), ("batch", True)):
            turns = {name: partial(turn, name, batched) for name in contenders}
            for run in turns.values():
                run()
            found[kind] = meter.interleaved(turns, 2 * repeats, log, "without")
        for contender in contenders.values():
            contender.close()
    return found


def schedule_list(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure seconds, CPU seconds and bytes of `celery-rabbit-delay list` for 100,000 tasks, sent one by one."""
    with vhost(node) as url, running_app(with_streams(url), {"schedule": True}) as app:
        app.send_task("bench.nothing", (1,), countdown=7200)
        _record(app, int(100_000 * scale) - 1)
        kinds: dict[str, list[str]] = {"all": [], "limit": ["--limit", str(LIMIT)]}
        runs = {
            kind: [_run([*_COMMAND, url, "list", *arguments]) for _ in range(repeats)]
            for kind, arguments in kinds.items()
        }
    return {kind: _spreads(of) for kind, of in runs.items()}


def _spreads(runs: list[tuple[float, float, float]]) -> dict[str, Any]:
    names = ("seconds", "cpu", "bytes")
    return {name: meter.spread(values) for name, values in zip(names, zip(*runs, strict=True), strict=True)}


_COMMAND = [str(Path(sys.executable).with_name("celery-rabbit-delay")), "--broker"]


def _run(command: list[str]) -> tuple[float, float, float]:
    """Run a program; return its seconds, CPU seconds and most resident bytes."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} failed")
    kibi = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * kibi


def _record(app: Any, amount: int) -> None:
    """Copy the record of the one task that waits, each copy in a message of its own, due in the next hours."""
    with app.connection_for_write() as connection:
        record = next(waiting(connection))
        writer = connection.connection.interceptor
        stream = streams.journal_for(connection.transport.delay_options.cascade, 7200)
        now, chosen = int(time.time() * 1000), random.Random(1)
        for start in range(0, amount, 1000):
            copies = (
                record._replace(
                    due=now + chosen.randrange(3_600_000, 7_200_000),
                    number=streams.new_number(),
                    id=str(uuid.uuid4()),
                )
                for _ in range(min(1000, amount - start))
            )
            writer.write(stream, [journal.pack_records([copy]) for copy in copies])


def cancelled(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure seconds, CPU seconds and bytes of a worker's start: without `install`, with no cancelled id, and many."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    with vhost(node) as none, vhost(node) as many:
        for url, amount in ((none, 0), (many, int(100_000 * scale))):
            with running_app(url, {"schedule": True}) as app, app.connection_for_write() as connection:
                write_changes(connection, changes.cancelled(["another"]))
                for start in range(0, amount, 1000):
                    ids = [str(uuid.uuid4()) for _ in range(min(1000, amount - start))]
                    write_changes(connection, [message for id_ in ids for message in changes.cancelled([id_])])
        kinds = {
            "without install": (none, Contender.name),
            "no id": (none, SCHEDULE),
            "100,000 ids": (many, SCHEDULE),
        }
        for _ in range(repeats):
            for name, (url, kind) in kinds.items():
                (node.data / "worker.log").unlink(missing_ok=True)
                started = time.perf_counter()
                with running_worker(url, kind, node.data) as pid:
                    took = time.perf_counter() - started
                    found.setdefault(name, []).append((took, meter.cpu(pid), meter.memory(pid)))
                log(f"  {name}: {found[name][-1]}")
    return {kind: _spreads(runs) for kind, runs in found.items()}


ROWS: dict[str, Callable[[Node, float, int, Log], dict[str, Any]]] = {
    row.__name__: row for row in (journal_broker_cpu, schedule_list, cancelled)
}

"""Measures what a worker's prefetch multiplier and its acknowledgements cost, and draws docs/workers.md from it.

python -m evidence.benchmarks.worker_settings                              on RabbitMQ 4.3, in about ten minutes
python -m evidence.benchmarks.worker_settings --scale 0.1 --repeats 1 --out /tmp/some.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import celery_rabbit_delay
from tests.kit import meter
from tests.kit.background import kill, start
from tests.kit.node import Node, find_server
from tests.kit.page import fill, machine, markdown

from .__main__ import CONF, log
from .contenders import vhost

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("worker_settings.json")
PAGE = ROOT / "docs" / "workers.md"

PREFETCH = (1, 4, 50)
ACKS = {"early": "0", "late": "1"}
#: Settings by name.
SETTINGS = {
    f"{multiplier}, {acks}": {"BENCH_PREFETCH": str(multiplier), "BENCH_LATE": late}
    for acks, late in ACKS.items()
    for multiplier in PREFETCH
}
#: Columns: how many tasks of how many seconds, how far away the broker is in seconds, and how many workers there are.
CASES = {
    "1,000 tasks that do nothing": (1000, 0.0, 0.0, 1),
    "the same, RabbitMQ 5 ms away": (1000, 0.0, 0.005, 1),
    "1,000 tasks of 10 ms": (1000, 0.01, 0.0, 1),
    "100 tasks of 0.1 s, a second worker comes 0.2 s later": (100, 0.1, 0.0, 2),
}


@contextmanager
def far_away(port: int, seconds: float) -> Iterator[int]:
    """Yield the port of a proxy that holds everything back for so long, in either direction."""
    loop = asyncio.new_event_loop()

    async def held_back(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            loop.call_later(seconds, writer.write, data)
        loop.call_later(seconds, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(held_back(reader, broker_writer), held_back(broker_reader, writer))

    async def cancelled() -> None:
        others = asyncio.all_tasks(loop) - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        loop.stop()

    def stop() -> None:
        server.close()
        loop.create_task(cancelled())  # noqa: RUF006  the loop ends with it

    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(stop)
        thread.join()
        loop.close()


@contextmanager
def worker(name: str, directory: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a worker of two processes that consumes nothing yet."""
    log_file = directory / f"{name}.log"
    command = [sys.executable, "-m", "celery", "-A", "evidence.benchmarks.settings_app", "worker"]
    command += ["-c", "2", "-Q", f"idle.{name}", "-n", f"{name}@localhost", "-l", "INFO"]
    process = start(command, log_file, ROOT, {**os.environ, **environment})
    try:
        while " ready." not in log_file.read_text():
            if process.poll() is not None:
                raise RuntimeError(log_file.read_text())
            time.sleep(0.05)
        yield
    finally:
        kill(process)


def seconds_for(node: Node, settings: Mapping[str, str], scale: float, case: tuple[int, float, float, int]) -> float:
    """Return the seconds from when the first worker may fetch delayed tasks that are due until all have run."""
    amount, length, distance, workers = case
    amount = max(20, int(amount * scale))
    with vhost(node) as url, far_away(node.port, distance) as port, ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counted = directory / "count"
        counted.touch()
        away = url.replace(str(node.port), str(port)) if distance else url
        environment = {"BENCH_BROKER": away, "BENCH_COUNT": str(counted), **settings}
        names = [f"w{n}" for n in range(workers)]
        for name in names:
            stack.enter_context(worker(name, directory, environment))
        control = [
            sys.executable,
            "-m",
            "evidence.benchmarks.worker_settings",
            "--fill",
            str(amount),
            str(length),
            *names,
        ]
        subprocess.run(control, cwd=ROOT, env={**os.environ, **environment, "BENCH_BROKER": url}, check=True)
        deadline = time.monotonic() + 300
        while counted.stat().st_size < amount:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{counted.stat().st_size} of {amount} tasks have run")
            time.sleep(0.005)
        return time.time() - float((directory / "begun").read_text())


def fill_and_begin(amount: int, length: float, names: list[str]) -> None:
    """Send the tasks, wait until all are due, and let the workers begin, one by one: in a process of its own."""
    from .settings_app import app

    with app.connection_for_write() as connection:
        queue = app.amqp.queues["bench"](connection.default_channel)
        queue.declare()
        with celery_rabbit_delay.batch(app) as producer:
            for _ in range(amount):
                app.send_task("bench.count", (length,), countdown=1, producer=producer)
        while queue.queue_declare(passive=True).message_count < amount:
            time.sleep(0.05)
    Path(os.environ["BENCH_COUNT"]).with_name("begun").write_text(repr(time.time()))
    for name in names:
        app.control.add_consumer("bench", destination=[f"{name}@localhost"], reply=True, timeout=5)
        time.sleep(0.2)


def measure(node: Node, scale: float, repeats: int) -> dict[str, Any]:
    found = {}
    for case, what in CASES.items():
        log(case)
        runs = {name: partial(seconds_for, node, settings, scale, what) for name, settings in SETTINGS.items()}
        found[case] = meter.interleaved(runs, repeats, log)
    return found


def page(text: str, results: dict[str, Any]) -> str:
    """Return the page with its table drawn anew."""

    def table() -> str:
        lines = []
        for name in SETTINGS:
            multiplier, acks = name.split(", ")
            cells = [results["cases"][case][name] for case in CASES]
            lines.append([multiplier, acks, *(f"{c['median']:.1f} s ({c['low']:.1f}–{c['high']:.1f})" for c in cells)])
        return markdown(["prefetch multiplier", "acknowledged", *CASES], lines)

    return fill(text, {"machine": lambda: machine("Measured", [results["about"]]), "settings": table})


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.benchmarks.worker_settings", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rabbitmq", default="4.3", help="a name for tools/get-rabbitmq")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--fill", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.fill:
        amount, length, *names = arguments.fill
        fill_and_begin(int(amount), float(length), names)
        return
    with Node(find_server(arguments.rabbitmq), ("rabbitmq_management",), CONF) as node:
        results = {"about": meter.about(node), "cases": measure(node, arguments.scale, arguments.repeats)}
    arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.out == RESULTS:
        PAGE.write_text(page(PAGE.read_text(), results))


if __name__ == "__main__":
    main()

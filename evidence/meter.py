"""CPU and memory of a private node, and medians of repeated runs."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kombu
import psutil

from tests.kit.node import Node

ROOT = Path(__file__).parents[1]


def processes(pid: int) -> Iterator[psutil.Process]:
    """Yield a process and all below it."""
    top = psutil.Process(pid)
    yield top
    yield from top.children(recursive=True)


def cpu(pid: int) -> float:
    """Return the seconds of CPU, user and system, that a process and those below it have used so far."""
    used = 0.0
    for process in processes(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def memory(pid: int) -> int:
    """Return the resident bytes of a process and those below it."""
    resident = 0
    for process in processes(pid):
        with suppress(psutil.NoSuchProcess):
            resident += process.memory_info().rss
    return resident


def is_busy(pid: int, seconds: float = 3) -> bool:
    """Return whether a process, and those below it, use more than a fifth of a CPU for a while."""
    before = cpu(pid)
    time.sleep(seconds)
    return cpu(pid) - before > seconds / 5


def pid(node: Node) -> int:
    assert node.process is not None
    return node.process.pid


def about(node: Node) -> dict[str, Any]:
    """Return when and with what something is measured."""
    with kombu.Connection(node.url()) as connection:
        rabbitmq = connection.connection.server_properties["version"]
    return {
        "rabbitmq": rabbitmq,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": commit(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        **{package: version(package) for package in ("celery", "kombu", "amqp")},
    }


def commit() -> str:
    """Return the commit, and whether anything but results, and the pages drawn from them, differs from it.

    Outside a clone that is "unknown".
    """

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--short", ".", ":!evidence/*.json", ":!evidence/*.csv", ":!docs")
        return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def interleaved(
    runs: Mapping[str, Callable[[], float]], repeats: int, log: Callable[[str], None], against: str | None = None
) -> dict[str, Any]:
    """Run each of `runs` in turn, `repeats` times over; return {name: {"median", "low", "high", "runs"}}.

    With `against`, the name of one of them, the others have a "ratio" to it, as of `compared`.
    """
    values: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            values[name].append(run())
            log(f"  {repeat + 1}/{repeats} {name}: {values[name][-1]:,.1f}")
    return compared(values, dict.fromkeys(runs, against) if against else {})


def compared(values: Mapping[str, list[float]], against: Mapping[str, str]) -> dict[str, Any]:
    """Return the spread of each, with a "ratio" to another, if it has one: the median of the ratios in each turn.

    The machine's speed changes from turn to turn, so that a ratio of two medians says less.
    """
    spreads = {name: spread(found) for name, found in values.items()}
    for name, other in against.items():
        if name != other:
            pairs = zip(values[name], values[other], strict=True)
            spreads[name]["ratio"] = statistics.median(value / of for value, of in pairs)
    return spreads


def spread(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1], "runs": len(ordered)}


def percentile(values: Iterable[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

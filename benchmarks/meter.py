"""CPU and memory of a private node, and medians of repeated runs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.node import Node

_TICKS = os.sysconf("SC_CLK_TCK")


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            child, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        parents.setdefault(int(rest[1]), []).append(child)
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def cpu(pid: int) -> float:
    """Seconds of CPU, user and system, that a process and those below it have used so far."""
    used = 0
    for process in processes(pid):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        used += int(fields[11]) + int(fields[12])
    return used / _TICKS


def memory(pid: int) -> int:
    """Resident bytes of a process and those below it."""
    resident = 0
    for process in processes(pid):
        try:
            fields = Path(f"/proc/{process}/statm").read_text().split()
        except OSError:
            continue
        resident += int(fields[1])
    return resident * os.sysconf("SC_PAGE_SIZE")


def pid(node: Node) -> int:
    assert node.process is not None
    return node.process.pid


def interleaved(runs: Mapping[str, Callable[[], float]], repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Each of `runs` in turn, `repeats` times over: {name: {"median", "low", "high"}}."""
    values: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name, run in runs.items():
            values[name].append(run())
            log(f"  {repeat + 1}/{repeats} {name}: {values[name][-1]:,.1f}")
    return {name: spread(found) for name, found in values.items()}


def spread(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1]}


def percentile(values: Iterable[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

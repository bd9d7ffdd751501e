"""Judges a battle by its two ledgers: what was published, and what ran. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from evidence.meter import percentile


class Fault(NamedTuple):
    name: str
    began: float  # seconds since 1970, as all times here
    ended: float


class Run(NamedTuple):
    """The first run of a task."""

    due: float
    at: float

    @property
    def late(self) -> float:
        return self.at - self.due


@dataclass(frozen=True)
class Verdict:
    """Ids of tasks, and when each was due and ran for the first time."""

    confirmed: int
    lost: list[str]
    early: list[str]
    duplicated: list[str]  # where a fault explains it
    unexplained: list[str]  # duplicates
    expired: list[str]  # ran although they had expired
    cancelled: list[str]  # in time
    revoked: list[str]  # of these, those that ran all the same
    moved: list[str]  # to a later time, before they were due; run at the first one, they are early
    late: list[str]  # later than the scenario lets a task be
    runs: list[Run]

    @property
    def lateness(self) -> list[float]:
        """The seconds of all tasks that ran, also of those that were due before a fault or long after it."""
        return [run.late for run in self.runs]

    @property
    def good(self) -> bool:
        return not (self.lost or self.early or self.expired or self.revoked or self.late)

    def figures(self) -> dict[str, Any]:
        """Return numbers of tasks, and seconds of lateness."""
        names = ("lost", "early", "expired", "duplicated", "unexplained", "cancelled", "revoked", "moved")
        counts = {name: len(getattr(self, name)) for name in names}
        late = {f"p{percent}": percentile(self.lateness or [math.nan], percent) for percent in (50, 99, 100)}
        return {"confirmed": self.confirmed, **counts, **late}


def judge(
    published: Iterable[Mapping[str, Any]],
    ran: Iterable[Mapping[str, Any]],
    faults: Iterable[Fault] = (),
    tolerance: float = 0.0,
    patience: float = math.inf,
) -> Verdict:
    """Judge what was published by what ran.

    `published` has {"id", "sent", "due"}, perhaps "expires", for each task, {"id", "confirmed"} for each that the
    broker confirmed, {"id", "cancelling"} and {"id", "cancelled"} before and after one was cancelled, and {"id",
    "moving"}, with its later due time, and {"id", "moved"} before and after one was moved. `ran` has {"id", "at"} for
    each run.

    A task is lost if it was confirmed and never ran, unless it expired before it was due or somebody tried to cancel
    it. One that is published again, such as a retry by a task that ran twice, is due when it was due at first. A fault
    explains that a task ran twice if it struck after the task was sent, of which "a.1" and "a.2" are retries. It was
    cancelled or moved in time if that was a second or more before it was due. One that was moved later, or by somebody
    who was killed, is due at its new time if it ran after that. It is early if it ran more than `tolerance` seconds
    before it was due, and late if it first ran more than `patience` seconds after.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for entry in published:
        task = tasks.setdefault(entry["id"], {})
        task.update(entry if "due" not in task else {key: entry[key] for key in entry.keys() - {"sent", "due"}})
    runs: dict[str, list[float]] = {}
    for entry in ran:
        runs.setdefault(entry["id"], []).append(entry["at"])
    confirmed = [name for name, task in tasks.items() if "confirmed" in task]
    expired = {name for name, task in tasks.items() if task.get("expires", math.inf) < task["due"]}
    cancelled = [name for name, task in tasks.items() if task.get("cancelled", math.inf) <= task["due"] - 1]
    moved = [name for name, task in tasks.items() if task.get("moved", math.inf) <= task["due"] - 1]
    due = {name: task["due"] for name, task in tasks.items()} | {name: tasks[name]["moving"] for name in moved}
    first = {name: min(times) for name, times in runs.items()}
    due |= {name: tasks[name]["moving"] for name, at in first.items() if tasks[name].get("moving", math.inf) <= at}
    twice = {name: times for name, times in runs.items() if len(times) > 1}

    def explained(name: str) -> bool:
        sent, last = tasks.get(name.partition(".")[0], tasks[name])["sent"], max(twice[name])
        return any(fault.began <= last and fault.ended >= sent for fault in faults)

    faults = list(faults)
    return Verdict(
        confirmed=len(confirmed),
        lost=[name for name in confirmed if name not in runs and not (name in expired or "cancelling" in tasks[name])],
        early=[name for name, at in first.items() if at < due[name] - tolerance],
        duplicated=[name for name in twice if explained(name)],
        unexplained=[name for name in twice if not explained(name)],
        expired=[name for name in runs if name in expired],
        cancelled=cancelled,
        revoked=[name for name in cancelled if name in runs],
        late=[name for name, at in first.items() if at > due[name] + patience],
        moved=moved,
        runs=[Run(due[name], at) for name, at in first.items()],
    )

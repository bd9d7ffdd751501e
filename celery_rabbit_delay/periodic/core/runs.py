"""The runs of periodic tasks: what the processes of a beat leave to each other, and the ids of tasks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import NamedTuple
from uuid import UUID, uuid5

#: A time further ahead is that of a wrong clock, or forged, and does not count: until then its entry would not run.
_MOST_AHEAD = timedelta(hours=1)

#: For how long an entry that is not in the schedule is remembered: while processes with another schedule may take over.
_REMEMBERED = timedelta(days=1)

_NAMESPACE = UUID("9d3a1f0c-6c0b-5f0e-8d53-0f3b1c7f2a64")


class Run(NamedTuple):
    """When an entry ran last, or began, and how often it has run."""

    at: datetime  # aware
    total: int = 0

    def dump(self) -> tuple[str, int]:
        """Return what JSON can hold of it."""
        return self.at.astimezone(timezone.utc).isoformat(), self.total

    @classmethod
    def load(cls, at: str, total: int) -> Run:
        """Return what `dump` has returned. Raises `ValueError`, `TypeError` for anything else."""
        run = cls(datetime.fromisoformat(at), total)
        if type(total) is not int or run.at.astimezone(timezone.utc) != run.at:
            raise ValueError("a time or a number is invalid")
        return run


def beat_prefix(prefix: str) -> str:
    """Return what the names of beats' queues begin with, unless an app chooses another name; the app's name follows."""
    return f"{prefix}.beat."


def merge(several: Iterable[Mapping[str, Run]], now: datetime) -> dict[str, Run]:
    """Return the latest run of each entry."""
    latest: dict[str, Run] = {}
    for runs in several:
        for name, run in runs.items():
            if run.at <= now + _MOST_AHEAD:
                latest[name] = max(run, latest.get(name, run))
    return latest


def remember(runs: Mapping[str, Run], names: Iterable[str], now: datetime) -> dict[str, Run]:
    """Return the runs of a schedule's entries, of which new ones begin now, and for a day those of removed ones."""
    begun = dict.fromkeys(names, Run(now))
    return begun | {name: run for name, run in runs.items() if name in begun or now - run.at < _REMEMBERED}


def task_id(queue: str, entry: str, before: Run) -> str:
    """Return the id of the run after another one of an entry: in each process the same."""
    return str(uuid5(_NAMESPACE, json.dumps([queue, entry, before.at.astimezone(timezone.utc).isoformat()])))

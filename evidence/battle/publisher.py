"""A publisher of a battle, in a process of its own, so that it can be killed at any point.

    python -m evidence.battle.publisher LEDGER NAME AMOUNT RATE SHORTEST LONGEST MODE

Writes into the ledger that a task is about to be sent, and when it is due; and again when that is confirmed. MODE is
"plain"; "mixed": tasks have priorities, and of four one expires long after it is due and one before; "all kinds":
everyday and other delays, none, priorities, and retries with backoff; or "all kinds in batches", if this contender has
batches.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from typing import Any

import freezegun.api

import celery_rabbit_delay
from tests.kit import ledger

from .app import CONTENDER, CONTENDERS, app

OURS = CONTENDERS[CONTENDER] is not None

EVERYDAY = 1, 2, 3, 5, 10, 15, 20, 30, 45, 60  # seconds

BATCH = 20  # tasks: small, as their due times are counted from the first of them


def main(path: str, name: str, amount: int, rate: float, shortest: float, longest: float, mode: str = "plain") -> None:
    chosen = random.Random(f"{name} {os.environ['BATTLE_SEED']}")
    size = BATCH if OURS and mode == "all kinds in batches" else 1
    started = time.monotonic()
    for first in range(0, amount, size):
        time.sleep(max(0.0, started + first / rate - time.monotonic()))
        numbers = range(first, min(first + size, amount))
        send(path, [choose(f"{name}-{number}", number, chosen, shortest, longest, mode) for number in numbers])


def choose(
    task: str, number: int, chosen: random.Random, shortest: float, longest: float, mode: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the ledger's entry of a task that is sent now, and arguments for `send_task`."""
    countdown: float = chosen.randint(int(shortest), int(longest))  # all that native delayed delivery knows
    sent = freezegun.api.real_time()
    entry: dict[str, Any] = {"id": task, "sent": sent}
    options: dict[str, Any] = {"name": "evidence.battle.run", "args": (task,), "task_id": task}
    if mode.startswith("all kinds"):
        other = chosen.uniform(shortest, longest) if OURS else countdown
        countdown = chosen.choice([other, chosen.choice(EVERYDAY)]) if chosen.random() < 0.9 else 0
        options["priority"] = chosen.randint(0, 9)
        if chosen.random() < 0.03:
            options["name"], entry["retried"] = "evidence.battle.retried", True
    if mode == "mixed":
        options["priority"] = chosen.randint(0, 9)
        if number % 2:
            options["expires"] = countdown / 2 if number % 4 == 1 else countdown + 3600
            entry["expires"] = sent + options["expires"]
    return {**entry, "due": sent + countdown}, {**options, "countdown": countdown or None}


def send(path: str, tasks: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Send tasks, together if they are several, and note which of them are confirmed."""
    ledger.append(path, *(entry for entry, _ in tasks))
    failed: dict[str, dict[str, Any]] = {}
    try:
        with celery_rabbit_delay.batch(app) if len(tasks) > 1 else contextlib.nullcontext():
            for _, options in tasks:
                try:
                    app.send_task(**options)
                except Exception as exc:  # told to the caller: not confirmed
                    failed[options["task_id"]] = {"failed": repr(exc)}
    except celery_rabbit_delay.BatchFailed as exc:
        failed |= {name: {"failed": repr(exc)} for name in exc.ids if name}
    confirmed: dict[str, Any] = {"confirmed": freezegun.api.real_time()}
    names = [entry["id"] for entry, _ in tasks]
    ledger.append(path, *({"id": name, **failed.get(name, confirmed)} for name in names))


if __name__ == "__main__":
    path, name, number, *numbers, mode = sys.argv[1:]
    rate, shortest, longest = map(float, numbers)
    main(path, name, int(number), rate, shortest, longest, mode)

"""A publisher of a battle, in a process of its own, so that it can be killed at any point.

    python -m evidence.battle.publisher LEDGER NAME AMOUNT RATE SHORTEST LONGEST MODE

Writes into the ledger that a task is about to be sent, and when it is due; and again when that is confirmed. MODE is
"plain"; "mixed": tasks have priorities, and of four one expires long after it is due and one before; or "all kinds":
everyday and other delays, none, priorities, and retries with backoff. Or it is for load, sent as fast as this contender
can, with "confirmed" for all together: "batch", or "at once" with all due at the time SHORTEST, or undelayed if that is
0.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import freezegun.api

import celery_rabbit_delay
from tests.kit import ledger

from .app import CONTENDER, CONTENDERS, app

OURS = CONTENDERS[CONTENDER] is not None

EVERYDAY = 1, 2, 3, 5, 10, 15, 20, 30, 45, 60  # seconds


def main(path: str, name: str, amount: int, rate: float, shortest: float, longest: float, mode: str = "plain") -> None:
    chosen = random.Random(f"{name} {os.environ['BATTLE_SEED']}")
    started = time.monotonic()
    for number in range(amount):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        countdown: float = chosen.randint(
            int(shortest), int(longest)
        )  # whole seconds: all that native delayed delivery knows
        task, sent, options = f"{name}-{number}", freezegun.api.real_time(), dict[str, Any]()
        what, about = "evidence.battle.run", dict[str, Any]()
        if mode == "all kinds":
            other = chosen.uniform(shortest, longest) if OURS else countdown
            countdown = chosen.choice([other, *EVERYDAY]) if chosen.random() < 0.9 else 0
            options["priority"] = chosen.randint(0, 9)
            if chosen.random() < 0.03:
                what, about = "evidence.battle.retried", {"retried": True}
        if mode == "mixed":
            options["priority"] = chosen.randint(0, 9)
            if number % 2:
                options["expires"] = countdown / 2 if number % 4 == 1 else countdown + 3600
        expires = sent + options.get("expires", 1e9)
        ledger.append(path, {"id": task, "sent": sent, "due": sent + countdown, "expires": expires, **about})
        try:
            app.send_task(what, (task,), task_id=task, countdown=countdown or None, **options)
        except Exception as exc:  # told to the caller: not confirmed
            ledger.append(path, {"id": task, "failed": repr(exc)})
        else:
            ledger.append(path, {"id": task, "confirmed": freezegun.api.real_time()})


def fill(path: str, name: str, amount: int, options: Callable[[], dict[str, Any]]) -> None:
    with celery_rabbit_delay.batch(app) if OURS else contextlib.nullcontext() as producer:
        for number in range(amount):
            app.send_task("evidence.battle.run", (f"{name}-{number}",), producer=producer, **options())
    ledger.append(path, {"id": name, "confirmed": time.time()})


if __name__ == "__main__":
    path, name, number, *numbers, mode = sys.argv[1:]
    amount = int(number)
    rate, shortest, longest = map(float, numbers)
    if mode == "batch":
        fill(path, name, amount, lambda: {"countdown": random.uniform(shortest, longest)})
    elif mode == "at once":
        eta = datetime.fromtimestamp(shortest, timezone.utc) if shortest else None
        fill(path, name, amount, lambda: {"eta": eta})
    else:
        main(path, name, amount, rate, shortest, longest, mode)

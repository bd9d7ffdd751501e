"""Cancels some of a battle's tasks and moves others, in a process of its own, so that it can be killed at any point.

    python -m evidence.battle.canceller LEDGER CANCELLED MOVED

Follows the ledger of what is published. Of the tasks that are confirmed and not due within two seconds, it cancels one
in CANCELLED and gives one in MOVED a later due time, again until that returns. It leaves alone what is retried, as
retries have the id of their task. Writes into the ledger before and after each.
"""

from __future__ import annotations

import contextlib
import sys
import time
import zlib
from collections.abc import Callable
from datetime import datetime, timezone

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

import celery_rabbit_delay
from tests.kit import ledger

from .app import CONTENDER, CONTENDERS, app

OURS = CONTENDERS[CONTENDER] is not None

#: Seconds by which a task is moved. A move that is made again after an interruption has the same target.
LATER = 5


def main(path: str, cancelled: int, moved: int) -> None:
    due: dict[str, float] = {}
    done: set[str] = set()
    published = ledger.Follower(path)
    while True:
        entries = published.read()
        due.update({entry["id"]: entry["due"] for entry in entries if "due" in entry and "retried" not in entry})
        done.update(entry["id"] for entry in entries if "cancelled" in entry or "moved" in entry)
        for entry in entries:
            name = entry["id"]
            if "confirmed" not in entry or name not in due or name in done:
                continue
            done.add(name)
            chosen = zlib.crc32(name.encode())
            if due[name] > time.time() + 2 and chosen % cancelled == 0:
                cancel(path, name)
            elif due[name] > time.time() + 3 and chosen % moved == 1 and OURS:
                move(path, name, due[name] + LATER)
        time.sleep(0.1)


def cancel(path: str, name: str) -> None:
    ledger.append(path, {"id": name, "cancelling": time.time()})
    if OURS:
        until_it_returns(lambda: celery_rabbit_delay.cancel(app, name))
    else:
        until_it_returns(lambda: app.control.revoke(name))
    ledger.append(path, {"id": name, "cancelled": time.time()})


def move(path: str, name: str, due: float) -> None:
    ledger.append(path, {"id": name, "moving": due})
    with contextlib.suppress(celery_rabbit_delay.NotWaiting, celery_rabbit_delay.TooLate):  # its node was down so long
        until_it_returns(
            lambda: celery_rabbit_delay.reschedule(app, name, eta=datetime.fromtimestamp(due, timezone.utc))
        )
        ledger.append(path, {"id": name, "moved": time.time()})


def until_it_returns(change: Callable[[], object]) -> None:
    while True:
        try:
            change()
            return
        except (celery_rabbit_delay.NotWaiting, celery_rabbit_delay.TooLate):
            raise
        except (OSError, AMQPError, OperationalError, celery_rabbit_delay.DelayError):  # its node was killed
            time.sleep(0.3)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

"""Cancels some of a battle's tasks and moves others, in a process of its own, so that it can be killed at any point.

    python -m evidence.battle.canceller LEDGER CANCELLED MOVED STEP

Follows the ledger of what is published. Of the tasks that are confirmed and not due within two seconds, it cancels one
in CANCELLED and moves one in MOVED to a later multiple of STEP seconds, again until that returns. It leaves alone what
is retried, as retries have the id of their task. Writes into the ledger before and after.
"""

from __future__ import annotations

import math
import sys
import time
import zlib
from collections.abc import Callable
from datetime import datetime, timezone

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

import celery_rabbit_delay
from celery_rabbit_delay.operate.replaying import ANYWHERE
from celery_rabbit_delay.schedule.amqp import reschedule as reschedule_
from tests.kit import ledger

from .app import CONTENDER, CONTENDERS, app

OURS = CONTENDERS[CONTENDER] is not None

#: Seconds by which a task is moved at least.
LATER = 5

#: Of its time it spends at most one part in so many on moving: each time it reads the whole journal.
SHARE = 4


def main(path: str, cancelled: int, moved: int, step: float) -> None:
    due: dict[str, float] = {}
    done: set[str] = set()
    to_move: set[str] = set()
    published = ledger.Follower(path)
    next_move = 0.0
    while True:
        entries = published.read()
        due.update({entry["id"]: entry["due"] for entry in entries if "due" in entry and "retried" not in entry})
        done.update(entry["id"] for entry in entries if "cancelled" in entry or "moved" in entry)
        names = {entry["id"] for entry in entries if "confirmed" in entry and entry["id"] in due} - done
        done |= names
        chosen = {name: zlib.crc32(name.encode()) for name in names}
        now = time.time()
        if to_cancel := [name for name in names if due[name] > now + 2 and chosen[name] % cancelled == 0]:
            cancel(path, to_cancel)
        to_move |= {name for name in names if chosen[name] % moved == 1}
        if OURS and (began := time.monotonic()) >= next_move:
            targets: dict[float, list[str]] = {}
            for name in to_move:
                if due[name] > time.time() + 3:
                    # From the due time alone: a move that is made again after an interruption has the same target.
                    targets.setdefault(step * math.ceil((due[name] + LATER) / step), []).append(name)
            for target, group in targets.items():
                move(path, group, target)
            to_move.clear()
            next_move = began + SHARE * (time.monotonic() - began)
        time.sleep(0.1)


def cancel(path: str, names: list[str]) -> None:
    ledger.append(path, *({"id": name, "cancelling": time.time()} for name in names))
    if OURS:
        until_it_returns(lambda: celery_rabbit_delay.cancel(app, *names))
    else:
        until_it_returns(lambda: app.control.revoke(names))
    ledger.append(path, *({"id": name, "cancelled": time.time()} for name in names))


def move(path: str, names: list[str], due: float) -> None:
    ledger.append(path, *({"id": name, "moving": due} for name in names))
    left = set(names)

    def move_those_left() -> None:
        with app.connection_for_write() as connection:
            moment = datetime.fromtimestamp(due, timezone.utc)
            for name, refused in reschedule_.reschedule_all(connection, list(left), (), moment, ANYWHERE):
                left.discard(name)
                if refused is None:  # and not too late, as its node was down so long
                    ledger.append(path, {"id": name, "moved": time.time()})

    until_it_returns(move_those_left)


def until_it_returns(change: Callable[[], object]) -> None:
    while True:
        try:
            change()
            return
        except (OSError, AMQPError, OperationalError, celery_rabbit_delay.DelayError):  # its node was killed
            time.sleep(0.3)


if __name__ == "__main__":
    path, cancelled, moved, step = sys.argv[1:]
    main(path, int(cancelled), int(moved), float(step))

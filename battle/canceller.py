"""Cancels some of a battle's tasks, in a process of its own, so that it can be killed at any point.

    python -m battle.canceller LEDGER

Follows the ledger of what is published, and cancels every third task that is confirmed and not due within two seconds,
again until that returns. Writes into the ledger before and after each.
"""

from __future__ import annotations

import itertools
import sys
import time
import zlib

from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

import celery_rabbit_delay
from testkit import ledger

from .app import CONTENDER, CONTENDERS, app


def main(path: str) -> None:
    due: dict[str, float] = {}
    done: set[str] = set()
    for _ in itertools.count():
        entries = ledger.read(path)
        due.update({entry["id"]: entry["due"] for entry in entries if "due" in entry})
        done.update(entry["id"] for entry in entries if "cancelled" in entry)
        for entry in entries:
            name = entry["id"]
            if "confirmed" in entry and name not in done and zlib.crc32(name.encode()) % 3 == 0:
                done.add(name)
                if due[name] > time.time() + 2:
                    cancel(path, name)
        time.sleep(0.1)


def cancel(path: str, name: str) -> None:
    ledger.append(path, {"id": name, "cancelling": time.time()})
    while True:
        try:
            if CONTENDERS[CONTENDER] is None:
                app.control.revoke(name)
            else:
                celery_rabbit_delay.cancel(app, name)
            break
        except (OSError, AMQPError, OperationalError, celery_rabbit_delay.DelayError):  # its node was killed
            time.sleep(0.3)
    ledger.append(path, {"id": name, "cancelled": time.time()})


if __name__ == "__main__":
    main(*sys.argv[1:])

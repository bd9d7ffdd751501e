"""The Celery app of the acceptance tests, set up by environment variables.

SHOP_CONF: JSON of settings, and of "queues", a kind of them.
SHOP_OPTIONS: JSON of install()'s options, "null" for an app without install().
SHOP_LEDGER: the ledger that tasks append their runs to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from celery import Celery, Task

import celery_rabbit_delay
from tests.acceptance.queues import KINDS
from tests.kit import ledger

app = Celery("shop")
conf = json.loads(os.environ["SHOP_CONF"])
app.conf.update(KINDS[conf.pop("queues", "made when missing")])
app.conf.update(conf)
options = json.loads(os.environ["SHOP_OPTIONS"])
if options is not None:
    celery_rabbit_delay.install(app, **options)


def record(**entry: Any) -> None:
    ledger.append(os.environ["SHOP_LEDGER"], {"at": time.time(), **entry})


@app.task(bind=True)
def note(self: Task, name: Any = None, *_: Any) -> Any:
    """Record the run, with everything that the worker knows about the message."""
    request = self.request
    record(
        name=name,
        hostname=request.hostname,
        eta=request.eta,
        delivery_info={k: request.delivery_info[k] for k in ("exchange", "routing_key", "priority", "redelivered")},
        headers=request.headers,
        properties=request.properties,
        retries=request.retries,
    )
    return name


@app.task(bind=True, max_retries=None)
def stubborn(self: Task, times: int, countdown: float, name: str = "stubborn") -> None:
    """Retry `times` times."""
    note.run.__func__(self, name)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(bind=True)
def slow(self: Task, seconds: float, name: Any) -> None:
    note.run.__func__(self, name)
    time.sleep(seconds)


@app.task(bind=True, acks_late=True)
def sleeps_once(self: Task) -> None:
    """Sleep for ten minutes, but only at the first delivery."""
    note.run.__func__(self, "sleeps once")
    if not self.request.delivery_info["redelivered"]:
        time.sleep(600)


@app.task
def sends_for_ever() -> None:
    """Publish delayed tasks until a time limit ends that, or for ten seconds.

    Python swallows the error of a time limit that comes in the callback of a weak reference, such as during the
    collection of garbage: about one in three hundred here.
    """
    sys.settrace(None)  # coverage waits for ever for a lock of its own that an interrupt has left taken
    until = time.monotonic() + 10
    try:
        while time.monotonic() < until:
            note.apply_async(("sent",), countdown=100)
        record(name="interrupted", error="by nothing: the time limit was swallowed")
    except Exception as exc:  # Kombu may raise its own error for what interrupts it
        record(name="interrupted", error=repr(exc))


@app.task
def join(names: list[str]) -> None:
    record(name="+".join(sorted(names)))

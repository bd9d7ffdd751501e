"""The Celery app of the acceptance tests, set up by environment variables.

SHOP_CONF: JSON of settings, and names of "topic_queues" or "quorum_queues".
SHOP_OPTIONS: JSON of install()'s options, "null" for an app without install().
SHOP_LEDGER: the ledger that tasks append their runs to.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import kombu
from celery import Celery, Task

import celery_rabbit_delay
from tools import ledger

app = Celery("shop")
conf = json.loads(os.environ["SHOP_CONF"])
if "quorum_queues" in conf:  # task_default_queue_type came with Celery 5.5
    quorum = {"x-queue-type": "quorum"}
    conf["task_queues"] = [kombu.Queue(name, queue_arguments=quorum) for name in conf.pop("quorum_queues")]
if "topic_queues" in conf:
    exchange = kombu.Exchange("shop", "topic")
    conf["task_queues"] = [kombu.Queue(name, exchange, routing_key=name) for name in conf.pop("topic_queues")]
app.conf.update(conf)
options = json.loads(os.environ["SHOP_OPTIONS"])
if options is not None:
    celery_rabbit_delay.install(app, **options)


def record(**entry: Any) -> None:
    ledger.append(os.environ["SHOP_LEDGER"], {"at": time.time(), **entry})


@app.task(bind=True)
def note(self: Task, name: Any = None, *_: Any) -> Any:
    """Records its run and all that the worker knows of its message."""
    request = self.request
    record(
        name=name,
        eta=request.eta,
        delivery_info={k: request.delivery_info[k] for k in ("exchange", "routing_key", "priority", "redelivered")},
        headers=request.headers,
        properties=request.properties,
        retries=request.retries,
    )
    return name


@app.task(bind=True, max_retries=None)
def stubborn(self: Task, times: int, countdown: float) -> None:
    """Retries so many times."""
    note.run.__func__(self, "stubborn")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task
def join(names: list[str]) -> None:
    record(name="+".join(sorted(names)))

"""The worker that `evidence.benchmarks.rows.worker` measures."""

import os
from typing import Any

import kombu
from celery.signals import worker_ready

from evidence.benchmarks.rows import WORKERS, make_app

options, _, native = WORKERS[os.environ["BENCH_KIND"]]
app = make_app(os.environ["BENCH_BROKER"], options, native)


@app.task(name="bench.nothing")
def nothing() -> None:
    pass


@app.task(name="bench.last")
def last() -> None:
    with kombu.Connection(os.environ["BENCH_BROKER"]) as connection:
        connection.Producer().publish("done", routing_key="done")


@worker_ready.connect
def wake_up_often(sender: Any, **signal: Any) -> None:
    """Let the event loop look around twenty times a second.

    With the pool `solo`, Kombu's loop may wait ten seconds for the broker while acknowledgements wait to be sent.
    """
    sender.timer.call_repeatedly(0.05, lambda: None)

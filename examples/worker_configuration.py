"""A configuration of workers to start from.

celery -A worker_configuration worker -c 4 -n main@%h
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import kombu
from celery import Celery
from celery.signals import task_failure, worker_init

import celery_rabbit_delay

app = Celery("worker_configuration", broker="amqp://guest:guest@localhost//")


def quorum(name: str, **arguments: Any) -> kombu.Queue:
    """Return a durable, replicated queue that dead-letters tasks that fail for good into `failed`."""
    kept = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    sure = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    return kombu.Queue(
        name, queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 5, **kept, **sure, **arguments}
    )


failed = kombu.Queue("failed", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 1_000_000})

app.conf.update(
    # Queues that survive a node; long tasks have their own queue, so that short ones do not wait behind them.
    task_queues=[quorum("short"), quorum("long")],
    task_default_queue="short",
    task_routes={"report": {"queue": "long"}},
    # A task is acknowledged when it has succeeded, goes back if its process dies, and is kept if it fails.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_acks_on_failure_or_timeout=False,
    # No task waits in a worker while another one is idle.
    worker_prefetch_multiplier=1,
    # No task takes longer than RabbitMQ waits for an acknowledgement, 30 minutes by default.
    task_soft_time_limit=14 * 60,
    task_time_limit=15 * 60,
    # When the connection is lost, running tasks are delivered again: do not let them run twice at the same time.
    worker_cancel_long_running_tasks_on_connection_loss=True,
    broker_connection_retry_on_startup=True,
    broker_heartbeat=30,
    # No program reads the results: do not store them.
    task_ignore_result=True,
    # Celery 5.6 needs these settings; 5.7 sets them itself.
    control_queue_exclusive=True,
    event_queue_exclusive=True,
)
celery_rabbit_delay.install(app)


@worker_init.connect
def declare_failed(**_: Any) -> None:
    with app.connection_for_write() as connection:
        failed(connection.default_channel).declare()


@task_failure.connect
def tell(task_id: str, exception: BaseException, sender: Any, **_: Any) -> None:
    """Where an alarm belongs, or let Sentry do it."""
    print(f"FAILED {sender.name} {task_id}: {exception!r}", flush=True)


@app.task(bind=True, name="ship", autoretry_for=(ConnectionError,), retry_backoff=1, max_retries=3)
def ship(self: Any, order: int, trouble: str = "") -> None:
    if trouble == "carrier is down" and not self.request.retries:
        raise ConnectionError(trouble)
    if trouble == "no address":
        raise LookupError(trouble)
    if trouble == "killed" and not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"order {order} is shipped", flush=True)


@app.task(name="report")
def report(seconds: float) -> None:
    time.sleep(seconds)
    print("the report is done", flush=True)


if __name__ == "__main__":
    for order, trouble in enumerate(sys.argv[1:] or ["", "carrier is down", "no address", "killed"], start=1):
        ship.apply_async((order, trouble), countdown=1)
    report.apply_async((1,), countdown=1)

"""Failed tasks: those that wait and try again, and those that failed for good, kept aside and replayed.

celery -A failed_tasks worker -Q orders
python failed_tasks.py send
python failed_tasks.py show
python failed_tasks.py replay 60
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kombu
from celery import Celery
from celery.signals import worker_init

import celery_rabbit_delay

app = Celery("failed_tasks", broker="amqp://guest:guest@localhost//")
celery_rabbit_delay.install(app)

failed = kombu.Queue(
    "orders.failed",
    queue_arguments={
        "x-queue-type": "quorum",
        "x-delivery-limit": 1_000_000,  # reading a message may count as a delivery, and the default limit is 20
        "x-delayed-retry-max": 1,  # millisecond for which a policy of RabbitMQ 4.3 may hide what was read
    },
)
orders = kombu.Queue(
    "orders",
    queue_arguments={
        "x-queue-type": "quorum",
        "x-delivery-limit": 3,  # a task that kills its process four times is given up
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": failed.name,
        "x-dead-letter-strategy": "at-least-once",  # `orders` removes a message once `orders.failed` has it …
        "x-overflow": "reject-publish",  # … which requires this setting
    },
)
app.conf.task_queues = [orders]
app.conf.task_default_queue = orders.name


@worker_init.connect
def declare_failed(**_: Any) -> None:
    """A worker declares what it consumes from, and this queue is not among it."""
    with app.connection_for_write() as connection:
        failed(connection.default_channel).declare()


class BankIsDown(Exception):
    pass


@app.task(
    bind=True,
    name="charge",
    autoretry_for=(BankIsDown,),  # wait in RabbitMQ and try again …
    max_retries=2,
    retry_backoff=1,
    retry_jitter=False,
    acks_late=True,  # … and when it fails for good, the message is rejected, not acknowledged
    acks_on_failure_or_timeout=False,
    reject_on_worker_lost=True,  # if its process dies it goes back to the queue
)
def charge(self: Any, order: int, trouble: str) -> None:
    print(f"order {order}, try {self.request.retries + 1}", flush=True)
    if Path("repaired").exists() or not trouble:
        print(f"order {order} is paid", flush=True)
    elif trouble == "bank is down":
        raise BankIsDown
    elif trouble == "no such order":
        raise LookupError(order)
    elif trouble == "out of memory":
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def failures() -> Iterator[tuple[kombu.Connection, list[kombu.Message]]]:
    """Yield the messages in the queue. Those that are not acknowledged return to it at the end."""
    with app.connection_for_write() as connection:
        channel = connection.channel()
        queue = failed(channel)
        amount = queue.queue_declare(passive=True).message_count
        yield connection, [message for _ in range(amount) if (message := queue.get())]
        channel.close()


def show() -> None:
    with failures() as (_, messages):
        for message in sorted(messages, key=lambda message: str(message.headers["argsrepr"])):
            task = message.headers
            print(task["x-first-death-reason"], task["task"], task["argsrepr"], "retries:", task["retries"])


def replay(seconds: float) -> None:
    """Send all failed tasks again, spread over some seconds, with their retries reset to 0."""
    with failures() as (connection, messages):
        producer = connection.Producer()
        for n, message in enumerate(messages, start=1):
            headers = {name: value for name, value in message.headers.items() if not name.startswith("x-")}
            producer.publish(
                message.body,
                routing_key=message.headers["x-first-death-queue"],
                headers={**headers, "retries": 0, "eta": None, "x-delay": 1000 * seconds * n / len(messages)},
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                correlation_id=message.properties["correlation_id"],
            )
            message.ack()  # only now, because the broker has confirmed the new message
        print(f"{len(messages)} tasks are sent again")


if __name__ == "__main__":
    if sys.argv[1] == "send":
        charge.delay(1, "")
        charge.delay(2, "bank is down")
        charge.delay(3, "no such order")
        charge.delay(4, "out of memory")
    elif sys.argv[1] == "show":
        show()
    else:
        replay(float(sys.argv[2]))

"""`batch`: many delayed tasks in one round trip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import kombu

from ..amqp.batch import MAX_SIZE, collect
from ..amqp.schemes import TRANSPORTS
from .install import is_installed

if TYPE_CHECKING:
    from celery import Celery


@contextmanager
def batch(app: Celery | kombu.Producer, max_size: int = MAX_SIZE) -> Iterator[kombu.Producer]:
    """Let delayed tasks share round trips: pass the producer that it yields to `apply_async`, `send_task`, a group::

        with celery_rabbit_delay.batch(app) as producer:
            for order in orders:
                ask_for_review.apply_async((order,), countdown=3600, producer=producer)

    The batch sends its tasks whenever it holds `max_size` of them, and at the end of the block, even if the block
    raises. The block ends when the broker has stored all tasks. A lost connection is restored as the app's
    `task_publish_retry` and `task_publish_retry_policy` say. Messages without a delay are sent at once. `app` may be a
    `kombu.Producer`, for Kombu without Celery, then without retries. Blocks may be nested: each sends its own tasks.

    Raises `BatchFailed` with the ids of the tasks that are not stored; `UnsupportedConfiguration` without `install`.
    In a test suite without a broker it does nothing.
    """
    if isinstance(app, kombu.Producer):
        with collect(app, max_size):
            yield app
        return
    retry = dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else None
    with app.producer_or_acquire() as producer:
        if is_installed(app) and producer.connection.transport_cls not in TRANSPORTS.values():
            yield producer  # a test suite without a broker
            return
        with collect(producer, max_size, retry):
            yield producer

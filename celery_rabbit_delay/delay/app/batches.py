"""Sends many delayed tasks together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import kombu
from celery import Celery

from ..amqp.batch import MAX_SIZE, collecting
from ..amqp.broker_url import TRANSPORTS
from ..core.errors import UnsupportedConfiguration
from .apps import is_installed, is_switched_off


@contextmanager
def batch(app: Celery | kombu.Producer, max_size: int = MAX_SIZE) -> Iterator[None]:
    """Let the delayed tasks that this thread publishes in a block share round trips::

        with celery_rabbit_delay.batch(app):
            for order in orders:
                ask_for_review.apply_async((order,), countdown=3600)

    Each task is sent at once, and waits for no confirm until `max_size` of them lack theirs. The block ends when the
    broker has stored all tasks, also if it raises. Messages without a delay are sent as ever. `app` may be a
    `kombu.Producer`, for Kombu without Celery. Blocks may be nested: each ends when its own tasks are stored.

    Raises `BatchFailed` with the ids of the tasks that may not be stored, as after a lost connection;
    `UnsupportedConfiguration` without `install`. In a test suite without a broker it does nothing.
    """
    client = app.connection if isinstance(app, kombu.Producer) else app.connection_for_write()
    if client.transport_cls in TRANSPORTS.values():
        with collecting(max_size):
            yield
    elif isinstance(app, Celery) and (is_installed(app) or is_switched_off()):
        yield  # a test suite without a broker, or Celery without this package
    else:
        raise UnsupportedConfiguration("batch() is for delayed tasks in RabbitMQ: call install(app) first")

"""What an app is to this package: whether it was installed, its queues, and `batch`, for many of its tasks at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import kombu
from celery import Celery

from ... import upstream
from ..amqp.batch import MAX_SIZE, collecting
from ..amqp.broker_url import TRANSPORTS
from ..core.errors import InvalidOption, UnsupportedConfiguration

#: The environment variable that makes `install` do nothing.
SWITCH = "CELERY_RABBIT_DELAY"

#: The keyword with which `install` leaves its options in `app.amqp_cls`.
GIVEN = "delay_options_given"


def is_installed(app: Celery) -> bool:
    """Return whether `install` was called on an app."""
    return isinstance(app.amqp_cls, partial) and GIVEN in app.amqp_cls.keywords


def is_switched_off() -> bool:
    """Return whether the environment says that `install` does nothing. Raises `InvalidOption`."""
    value = os.environ.get(SWITCH, "")
    if value.lower() not in ("", "on", "off"):
        raise InvalidOption(f"the environment variable {SWITCH} is {value!r}: use off, or on, or leave it out")
    return value.lower() == "off"


def advice() -> str:
    """Return what makes an app delay its tasks in RabbitMQ that does not."""
    if is_switched_off():
        return f"unset {SWITCH}, which is off"
    return "call celery_rabbit_delay.install(app), with RabbitMQ as broker"


def queues_of(app: Celery) -> list[kombu.Queue]:
    """Return the queues of an app: those that it has declared or used, and those that its routes and tasks name.

    Adds none to the app: a worker would consume from it.
    """
    known = app.amqp.queues
    queues = dict(known)
    for name in sorted(upstream.queues_routed_to(app) - queues.keys()):
        with suppress(KeyError):  # the app creates none
            queues[name] = known[name]
            known.pop(name, None)
    return list(queues.values())


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

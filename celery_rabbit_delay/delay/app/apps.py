"""What an app is to this package: whether it was installed, and its queues."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial

import kombu
from celery import Celery

from ... import upstream
from ..core.errors import InvalidOption

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

"""The queues of an app: what it lists and changes goes to them."""

from __future__ import annotations

from contextlib import suppress

import kombu
from celery import Celery

from .. import upstream


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

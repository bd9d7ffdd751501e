"""The schedule of a Celery app: which tasks wait, and what may be changed about them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import kombu
from celery import Celery

from .. import operate
from ..core.errors import UnsupportedConfiguration
from ..core.options import DRIVER_TYPE
from ..operate.schedule import Scheduled
from .control import with_connection


def scheduled(
    app: Celery,
    *,
    task: str | None = None,
    queue: str | None = None,
    until: datetime | None = None,
    limit: int | None = None,
) -> Iterator[Scheduled]:
    """Yield the tasks that wait in RabbitMQ and are in the journal, the soonest first.

    Only those with the name `task`, for the queue `queue`, due until the aware datetime `until`; at most `limit`. Tasks
    with a shorter delay than the option `journal` are not in it. Reads the journal when it is called.

    Raises `StreamUnavailable`, `NotPermitted`; `UnsupportedConfiguration` without `install`.
    """
    with app.connection_for_write() as connection:
        _check(connection)
        names = operate.queue_names(app.amqp.queues.values())
        return operate.scheduled(connection, task, queue, until, limit, names)


def cancel(app: Celery, *ids: str) -> None:
    """Cancel delayed tasks by their ids. When it returns, the broker has stored that: one round trip.

    A task that is due a second later or more does not run, nor do its retries, whether or not a worker is up now, and
    its state becomes `REVOKED`. An id stays cancelled: use a new one for a task that is to run.

    Raises `CascadeMissing` with `declare="passive"`, `NotPermitted`; `UnsupportedConfiguration` without `install`.
    """
    for id_ in ids:
        if not isinstance(id_, str):
            raise TypeError(f"{id_!r} is not the id of a task: use a str")

    def write(connection: Any) -> None:
        _check(connection)
        operate.cancel(connection, ids)

    if ids:
        with_connection(app, write)


def _check(connection: kombu.Connection) -> None:
    if connection.transport.driver_type != DRIVER_TYPE:
        raise UnsupportedConfiguration("the schedule is that of delayed tasks in RabbitMQ: call install(app) first")

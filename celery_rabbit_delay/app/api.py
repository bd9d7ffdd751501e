"""What a program does with the delayed tasks of its app: send many together, list, find, cancel and move them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import kombu
from celery import Celery

from ..amqp import reschedule as amqp_reschedule
from ..amqp import schedule
from ..amqp.batch import MAX_SIZE, collect
from ..amqp.connecting import closing
from ..amqp.destinations import QueueNames
from ..amqp.schedule import Scheduled
from ..amqp.schemes import TRANSPORTS
from ..core.due import due_at
from ..core.errors import UnsupportedConfiguration
from ..core.options import DRIVER_TYPE
from .control import with_connection
from .install import is_installed


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


def scheduled(
    app: Celery,
    *,
    task: str | None = None,
    queue: str | None = None,
    until: datetime | str | None = None,
    limit: int | None = None,
) -> Iterator[Scheduled]:
    """Yield the tasks that wait in RabbitMQ and are in the journal, the soonest first.

    `task` selects tasks of this name, `queue` tasks for this queue, `until` tasks that are due until a datetime or an
    ISO 8601 string; a naive one is in the app's time zone. `limit` is the maximum number of tasks. Tasks with a shorter
    delay than the option `journal` are not in the journal, which is read when this is called.

    Raises `StreamUnavailable`, `NotPermitted`, `InvalidDelay` for an invalid `until`, `ValueError` for a `limit` below
    1; `UnsupportedConfiguration` without `install`.
    """
    with closing(app.connection_for_write()) as connection:
        _check(connection)
        names = QueueNames(app.amqp.queues.values())
        return schedule.scheduled(connection, task, queue, until, limit, names)


def find(app: Celery, id: str) -> Scheduled | None:  # noqa: A002
    """Return the waiting task with an id, if it is in the journal: as `scheduled`, which has the errors.

    Of several with the same id, return the soonest.
    """
    with closing(app.connection_for_write()) as connection:
        _check(connection)
        names = QueueNames(app.amqp.queues.values())
        return next(schedule.scheduled(connection, limit=1, queues=names, id_=id), None)


def cancel(app: Celery, *ids: str) -> None:
    """Cancel delayed tasks by their ids. Returns when the broker has stored the cancellation: one round trip.

    A task that is due in a second or later does not run, nor do its retries, whether or not a worker is up now, and its
    state becomes `REVOKED`. An id stays cancelled: use a new id for a task that must run.

    Raises `CascadeMissing` with `declare="passive"`, `NotPermitted`; `UnsupportedConfiguration` without `install`.
    """
    for id_ in ids:
        if not isinstance(id_, str):
            raise TypeError(f"{id_!r} is not the id of a task: use a str")

    def write(connection: Any) -> None:
        _check(connection)
        schedule.cancel(connection, ids)

    if ids:
        with_connection(app, write)


def reschedule(app: Celery, id: str, *, eta: datetime | str | None = None, countdown: float | None = None) -> None:  # noqa: A002
    """Give a waiting task another due time: `eta`, or `countdown` seconds from now; 0 means at once.

    The task keeps its id, body, priority and headers. `eta` is a datetime or an ISO 8601 string; a naive one is
    interpreted in the app's time zone. If this is interrupted, the task may run at both times; it is never lost.

    Raises `NotWaiting` if the journal has no task with this id, `TooLate` if it is due within 2 s, `InvalidDelay`,
    `NotPermitted`, and the errors of publishing a delayed task; `UnsupportedConfiguration` without `install`.
    """
    with closing(app.connection_for_write()) as connection:
        _check(connection)
        zone = connection.transport.delay_options.naive_timezone
        amqp_reschedule.reschedule(connection, id, due_at(eta, countdown, datetime.now(timezone.utc), zone))


def _check(connection: kombu.Connection) -> None:
    if connection.transport.driver_type != DRIVER_TYPE:
        raise UnsupportedConfiguration("this app has no delayed tasks in RabbitMQ: call install(app) first")

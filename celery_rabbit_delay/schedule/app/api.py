"""What a program does with the delayed tasks of its app: list, find, cancel, restore and move them, pause queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from typing import Any
from uuid import UUID

import kombu
from celery import Celery

from ...delay.app.apps import advice, queues_of
from ...delay.core.errors import UnsupportedConfiguration
from ...delay.core.options import DRIVER_TYPE
from ...operate.broker_connection import closing, ensure_connection
from ...operate.queue_names import QueueNames
from ...operate.replaying import Allowed
from ..amqp import reschedule as amqp_reschedule
from ..amqp import waiting_tasks
from ..amqp.waiting_tasks import Scheduled
from ..core.new_due_time import due_at


def scheduled(
    app: Celery,
    *,
    task: str | None = None,
    queue: str | None = None,
    until: datetime | str | None = None,
    limit: int | None = None,
    any_queue: bool = False,
) -> Iterator[Scheduled]:
    """Yield the tasks for the app's queues that wait in RabbitMQ and are in the journal, the soonest first.

    `task` selects tasks of this name, `queue` tasks for this queue, `until` tasks that are due until a datetime or an
    ISO 8601 string; a naive one is in UTC. `limit` is the maximum number of tasks. With `any_queue`,
    tasks of other apps with the same prefix are among them. Tasks with a shorter delay than the option `journal` are
    not in the journal, which is read when this is called.

    Raises `StreamUnavailable`, `NotPermitted`, `InvalidDelay` for an invalid `until`, `InvalidDestination` for a
    `queue` that is not the app's, `ValueError` for a `limit` below 1; `UnsupportedConfiguration` without `install`;
    `kombu.exceptions.OperationalError` if RabbitMQ cannot be reached, after as many tries as publishing has.
    """
    with _connected(app) as connection:
        names = QueueNames(queues_of(app), only=not any_queue)
        return waiting_tasks.scheduled(connection, task, queue, until, limit, names)


def find(app: Celery, id: str | UUID) -> Scheduled | None:  # noqa: A002
    """Return the waiting task with an id, for any queue, if it is in the journal: as `scheduled`, which has the errors.

    Of several with the same id, return the soonest.
    """
    text, any_queue = _text_of(id), QueueNames(queues_of(app))
    with _connected(app) as connection:
        return next(waiting_tasks.scheduled(connection, limit=1, queues=any_queue, id_=text), None)


def cancel(app: Celery, *ids: str | UUID) -> None:
    """Cancel delayed tasks by their ids. Returns when the broker has stored the cancellation: one round trip.

    A task that is due in a second or later does not run, nor do its retries, whether or not a worker is up now, and its
    state becomes `REVOKED`. A cancelled id stays cancelled: after that use a new one, or `restore` it.

    Raises `CascadeMissing` with `declare="passive"`, `NotPermitted`; `UnsupportedConfiguration` without `install`.
    """
    _tell(app, waiting_tasks.cancel, ids)


def restore(app: Celery, *ids: str | UUID) -> None:
    """Take back what has cancelled some ids: what still waits runs when it is due.

    What a worker has discarded meanwhile is gone. A stamp stays cancelled. Returns and raises as `cancel`.
    """
    _tell(app, waiting_tasks.restore, ids)


def reschedule(
    app: Celery,
    id: str | UUID,  # noqa: A002
    *,
    eta: datetime | str | None = None,
    countdown: float | None = None,
    any_queue: bool = False,
) -> None:
    """Give a waiting task another due time: `eta`, or `countdown` seconds from now; 0 means at once.

    The task keeps its id, body, priority and headers. `eta` is a datetime or an ISO 8601 string; a naive one is in
    UTC. If this is interrupted, the task may run at both times; it is never lost.

    Raises `NotWaiting` if the journal has no task with this id, `TooLate` if it is due within 2 s,
    `DifferentMessages` if several with it wait, `InvalidDelay`, `InvalidDestination` if it is not for one of the app's
    queues, unless `any_queue`, `NotPermitted`, and the errors of publishing a delayed task; `UnsupportedConfiguration`
    without `install`.
    """
    text = _text_of(id)
    with _connected(app) as connection:
        due = due_at(eta, countdown, datetime.now(timezone.utc))
        allowed = Allowed(None if any_queue else queues_of(app))
        amqp_reschedule.reschedule(connection, text, due, allowed)


def pause(app: Celery, queue: str, until: datetime | str | None = None, *, any_queue: bool = False) -> None:
    """Pause a queue: all workers, also those that start later, stop consuming it, and go on with their others.

    What is sent to it or due stays in it, in order, until `resume`, or until a time, as that of `scheduled`. What a
    worker has taken before it learns of the pause still runs.

    Raises `InvalidDestination` for a queue that is not the app's, unless `any_queue`, or that is deleted without
    consumers; `InvalidDelay` for a time that is past or cannot be read; and the errors of `cancel`.
    """
    _check_name(queue)
    names = QueueNames(queues_of(app), only=not any_queue)
    _write(app, lambda connection: waiting_tasks.pause(connection, queue, names, until))


def resume(app: Celery, queue: str, *, any_queue: bool = False) -> None:
    """End the pause of a queue, if it is paused. Raises the errors of `pause`."""
    _check_name(queue)
    names = QueueNames(queues_of(app), only=not any_queue)
    _write(app, lambda connection: waiting_tasks.resume(connection, queue, names))


def paused(app: Celery, *, any_queue: bool = False) -> dict[str, datetime | None]:
    """Return the paused queues of the app, or of all apps with its prefix, each with the end of its pause, in UTC.

    Raises the errors of `scheduled`.
    """
    with _connected(app) as connection:
        found = waiting_tasks.paused(connection, QueueNames(queues_of(app), only=not any_queue))
    return {one.queue: one.end for one in found}


def _publish_retry(app: Celery) -> dict[str, Any]:
    """Return how an app retries after a lost connection."""
    return dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else {"max_retries": 0}


def _tell(app: Celery, write: Callable[..., object], ids: Iterable[object]) -> None:
    """Call `write` as `_write` does, with some ids, of which there may be none."""
    texts = [*map(_text_of, ids)]
    if texts:
        _write(app, partial(write, ids=texts))


def _write(app: Celery, write: Callable[[kombu.Connection], object]) -> None:
    """Call `write` with a connection of an app's pool; after a lost connection again as `task_publish_retry` says.

    Raises `UnsupportedConfiguration`.
    """
    retry = _publish_retry(app)
    with app.producer_or_acquire() as producer:
        client = producer.connection
        _check(client)
        ensure_connection(client, retry=retry)

        def attempt() -> None:
            client.default_channel  # noqa: B018  connects: a pool may contain closed connections
            write(client)

        client.ensure(producer, attempt, **retry)()


@contextmanager
def _connected(app: Celery) -> Iterator[kombu.Connection]:
    """Connect for a block, with as many tries as publishing has. Raises `kombu.exceptions.OperationalError`."""
    with closing(app.connection_for_write()) as connection:
        _check(connection)
        ensure_connection(connection, retry=_publish_retry(app))
        yield connection


def _text_of(id_: object) -> str:
    """Return the id of a task as Celery writes it."""
    if not isinstance(id_, (str, UUID)):
        raise TypeError(f"{id_!r} is not the id of a task: use a str")
    if not str(id_):
        raise ValueError("the id of a task is empty")
    return str(id_)


def _check_name(queue: object) -> None:
    if not isinstance(queue, str):
        raise TypeError(f"{queue!r} is not the name of a queue: use a str")


def _check(connection: kombu.Connection) -> None:
    if connection.transport.driver_type != DRIVER_TYPE:
        raise UnsupportedConfiguration(f"this app has no delayed tasks in RabbitMQ: {advice()}")

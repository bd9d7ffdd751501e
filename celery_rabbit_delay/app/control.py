"""`revoke` for tasks that wait in RabbitMQ: kept in a stream, and read by every worker before it takes a task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import kombu
from amqp.exceptions import AMQPError
from celery import Celery, bootsteps
from celery.worker import state
from kombu.exceptions import OperationalError

from ..amqp.clients import client_of
from ..amqp.confirms import NotStored
from ..amqp.receiving import catch_up
from ..amqp.schedule import write_changes
from ..core import journal
from ..core.errors import DelayError, StreamUnavailable
from ..core.journal import Changes
from ..core.options import DRIVER_TYPE

logger = logging.getLogger(__name__)

#: Seconds for which a worker that starts waits for the stream of changes, if it exists but cannot be read.
PATIENCE = 30

#: Seconds for which a change is tried again while its stream has no leader.
STREAM_PATIENCE = 15


def with_connection(app: Celery, work: Callable[[kombu.Connection], None]) -> None:
    """Do something with a connection of an app's pool, again if that is lost, as `task_publish_retry` says."""
    retry = dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else {"max_retries": 0}
    deadline = time.monotonic() + STREAM_PATIENCE
    while True:
        try:
            with app.producer_or_acquire() as producer:
                client = producer.connection

                def attempt(client: kombu.Connection = client) -> None:
                    client.default_channel  # noqa: B018  connects: a pool may hold connections that it has closed
                    work(client)

                client.ensure(producer, attempt, **retry)()
            return
        except (StreamUnavailable, NotStored):
            # A stream has no leader for a while after a node is lost.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def changes_in(command: str, arguments: dict[str, Any]) -> list[bytes]:
    """Return what the stream of changes is to be told of one of Celery's remote control commands."""
    if command in ("revoke", "terminate"):
        ids = arguments.get("task_id") or ()
        return list(journal.cancelled([ids] if isinstance(ids, str) else map(str, ids)))
    if command == "revoke_by_stamped_headers":
        stamps = _stamps_in(arguments.get("headers"))
        return [journal.cancelled_stamps(stamps)] if stamps else []
    return []


def _stamps_in(headers: Any) -> dict[str, Any]:
    """Return the values of stamps as Celery's worker reads them: the command line sends a list of `name=value`.

    None where it has an error for its answer.
    """
    if isinstance(headers, (list, tuple)):
        pairs = [str(pair).split("=") for pair in headers]
        return {pair[0]: pair[1] for pair in pairs} if all(len(pair) > 1 for pair in pairs) else {}
    return headers if isinstance(headers, dict) else {}


class DelayedControl:
    """Mixed into an app's class for remote control."""

    app: Celery

    def broadcast(self, command: str, arguments: Any = None, destination: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a command to workers, and a `revoke` for all of them also to those that start later."""
        if destination is None and not kwargs.get("pattern"):
            self._keep(changes_in(command, {**(arguments or {}), **kwargs}))
        return super().broadcast(command, arguments, destination, *args, **kwargs)  # type: ignore[misc]

    def _keep(self, messages: Iterable[bytes]) -> None:
        if not messages or self.app.connection_for_write().transport.driver_type != DRIVER_TYPE:
            return
        try:
            with_connection(self.app, lambda connection: write_changes(connection, messages))
        except (DelayError, AMQPError, OperationalError, OSError) as exc:
            logger.warning("RabbitMQ cannot keep this revoke, so only the workers that run now know of it: %s", exc)


class FollowChanges(bootsteps.StartStopStep):  # type: ignore[misc]
    """Lets a worker know what was cancelled or moved, before it takes its first task and from then on.

    Celery consumes tasks only after all its steps have started. What the step has learnt outlives the connection.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.changes = WorkerChanges()
        self._warned = False

    def start(self, consumer: Any) -> None:
        connection = consumer.connection
        if connection.transport.driver_type != DRIVER_TYPE:
            return
        client = client_of(connection)
        client.changes = self.changes
        client.on_cancelled = revoke
        stream = journal.changes(connection.transport.delay_options.cascade)
        try:
            catch_up(connection.connection, stream, self.changes.apply, PATIENCE)
        except DelayError as exc:  # when tasks come, it is tried again
            if not self._warned:  # each lost connection starts this again
                logger.warning(
                    "This worker does not know which tasks were cancelled or moved, and may run them, until the next "
                    "attempt to learn of them succeeds: %s",
                    exc,
                )
            self._warned = True
        self.changes.running = True


class WorkerChanges(Changes):
    """Changes whose cancelled ids Celery is told while the worker runs: it may hold the task already."""

    running = False

    def apply(self, message: bytes) -> list[str]:
        ids = super().apply(message)
        if self.running:
            for id_ in ids:
                revoke(id_)
        return ids


def revoke(id_: str) -> bool:
    """Make the worker discard a task in its own way: an event, the state `REVOKED`, an acknowledgement."""
    state.revoked.add(id_)
    return True

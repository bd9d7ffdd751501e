"""`revoke` for waiting tasks: stored in a stream, which every worker reads before it takes a task."""

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

from ..amqp import event_loop
from ..amqp.clocks import utc_ms
from ..amqp.confirms import NotStored
from ..amqp.connection import advice_on_release
from ..amqp.receiving import known_to
from ..amqp.schedule import try_to_write_changes
from ..core import changes, streams
from ..core.changes import KEPT, Changes
from ..core.errors import DelayError, StreamUnavailable
from ..core.options import DRIVER_TYPE

logger = logging.getLogger(__name__)

#: Seconds that a starting worker waits for the stream of changes, if it exists but cannot be read.
PATIENCE = 30

#: Seconds between two looks at the changes while no task comes: one that a worker holds already may be cancelled.
POLL = 1.0

#: Seconds for which a write to the stream is retried while the stream has no leader.
STREAM_PATIENCE = 15


def with_connection(app: Celery, work: Callable[[kombu.Connection], None]) -> None:
    """Call `work` with a connection of an app's pool; retry after a lost connection as `task_publish_retry` says."""
    retry = dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else {"max_retries": 0}
    deadline = time.monotonic() + STREAM_PATIENCE
    while True:
        try:
            with app.producer_or_acquire() as producer:
                client = producer.connection

                def attempt(client: kombu.Connection = client) -> None:
                    client.default_channel  # noqa: B018  connects: a pool may contain closed connections
                    work(client)

                client.ensure(producer, attempt, **retry)()
            return
        except (StreamUnavailable, NotStored):
            # After the loss of a node a stream has no leader for some time.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def changes_in(command: str, arguments: dict[str, Any]) -> list[bytes]:
    """Return the messages for the stream of changes that one of Celery's remote control commands needs."""
    if command in ("revoke", "terminate"):
        ids = arguments.get("task_id") or ()
        return list(changes.cancelled([ids] if isinstance(ids, str) else map(str, ids)))
    if command == "revoke_by_stamped_headers":
        stamps = _stamps_in(arguments.get("headers"))
        return [changes.cancelled_stamps(stamps, utc_ms())] if stamps else []
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
    """A mixin for an app's remote control class."""

    app: Celery

    def broadcast(self, command: str, arguments: Any = None, destination: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a command to workers; also store a `revoke` for all workers, for those that start later."""
        answer = super().broadcast(command, arguments, destination, *args, **kwargs)  # type: ignore[misc]
        if destination is None and not kwargs.get("pattern"):
            self._keep(changes_in(command, {**(arguments or {}), **kwargs}))
        return answer

    def _keep(self, messages: Iterable[bytes]) -> None:
        if not messages or self.app.connection_for_write().transport.driver_type != DRIVER_TYPE:
            return
        try:
            with_connection(self.app, lambda connection: try_to_write_changes(connection, messages))
        except (DelayError, AMQPError, OperationalError, OSError) as exc:
            logger.warning("RabbitMQ cannot store this revoke, so only the running workers know of it: %s", exc)


class FollowChanges(bootsteps.StartStopStep):  # type: ignore[misc]
    """Reads which tasks were cancelled or moved before a worker takes its first task, and follows further changes.

    Celery consumes tasks only after all its steps have started. The state of this step outlives the connection.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.changes = WorkerChanges(time.time)
        self._warned = False
        self._has_begun = False
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        connection = consumer.connection
        if connection.transport.driver_type != DRIVER_TYPE:
            return
        known = known_to[connection]
        known.changes = self.changes
        known.on_cancelled = revoke
        if not self._has_begun:  # each reconnect calls this again
            logger.info("Delayed tasks wait in RabbitMQ: %s", connection.transport.delay_options.summary)
            if advice := advice_on_release(connection.connection):
                logger.info("%s", advice)
        self._has_begun = True
        stream = streams.changes(connection.transport.delay_options.cascade)
        following = connection.connection.following
        try:
            following.catch_up(stream, self.changes.apply, PATIENCE)
        except (DelayError, NotStored) as exc:  # when tasks come, it is tried again
            if not self._warned:
                logger.warning(
                    "This worker does not know which tasks were cancelled or moved, and may run them, until the next "
                    "attempt to learn of them succeeds: %s",
                    exc,
                )
            self._warned = True
        self.changes.running = True
        if consumer.hub or getattr(consumer.pool, "is_green", False):  # otherwise timers run in another thread
            event_loop.enter(consumer.timer.call_after)
            self._timer = consumer.timer.call_repeatedly(POLL, following.poll)

    def stop(self, consumer: Any) -> None:
        event_loop.leave()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WorkerChanges(Changes):
    """Passes cancelled ids on to Celery while the worker runs: the worker may already hold the task."""

    running = False

    def apply(self, message: bytes) -> list[str]:
        had_forgotten = self.has_forgotten
        ids = super().apply(message)
        if self.has_forgotten and not had_forgotten:
            logger.warning(
                "More than %d tasks were cancelled: this worker forgets those that were cancelled first, and runs them",
                KEPT,
            )
        if self.running:
            for id_ in ids:
                revoke(id_)
        return ids


def revoke(id_: str) -> bool:
    """Make the worker discard a task as Celery does: with an event, the state `REVOKED`, an acknowledgement."""
    state.revoked.add(id_)
    return True

"""`revoke` for waiting tasks: stored in a stream, which every worker reads before it takes a task."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import kombu
from amqp.exceptions import AMQPError, ChannelError, RecoverableConnectionError
from celery import Celery, bootsteps
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.collections import LimitedSet
from celery.worker import state
from kombu.exceptions import OperationalError
from kombu.pidbox import Node

from .. import upstream
from ..amqp.confirms import NotStored
from ..amqp.connecting import ensure_connection
from ..amqp.create import make_streams
from ..amqp.receiving import Following, known_to
from ..amqp.schedule import write_changes
from ..amqp.sender import limit_this_thread
from ..amqp.stream_writer import until_there_is_a_leader
from ..core import changes, streams
from ..core.changes import KEPT, Changes
from ..core.errors import DelayError
from ..core.options import DRIVER_TYPE
from ..core.topology import Stream

logger = logging.getLogger(__name__)

#: Seconds that a starting worker waits for the stream of changes, if it exists but cannot be read.
PATIENCE = 30

#: Seconds for which publishing in a worker's event loop waits for the broker, then `TimeoutError`: the loop sends the
#: heartbeats of the worker's connection.
PATIENCE_OF_LOOP = 5.0

#: Seconds between two looks at the changes while no task comes: one that a worker holds already may be cancelled.
POLL = 1.0

#: Seconds for which `revoke` waits for the answer to a write.
STORING = 5


def publish_retry(app: Celery) -> dict[str, Any]:
    """Return how an app retries after a lost connection."""
    return dict(app.conf.task_publish_retry_policy or {}) if app.conf.task_publish_retry else {"max_retries": 0}


def with_connection(app: Celery, work: Callable[[kombu.Connection], None]) -> None:
    """Call `work` with a connection of an app's pool; retry after a lost connection as `task_publish_retry` says."""
    retry = publish_retry(app)
    with app.producer_or_acquire() as producer:
        client = producer.connection
        ensure_connection(client, retry=retry)

        def attempt() -> None:
            client.default_channel  # noqa: B018  connects: a pool may contain closed connections
            work(client)

        client.ensure(producer, attempt, **retry)()


def as_text(ids: Any) -> Any:
    """Return the ids of tasks, one or several, with each `uuid.UUID` as the text that Celery writes for it."""
    if isinstance(ids, (list, tuple, set, frozenset)):
        return [as_text(id_) for id_ in ids]
    return str(ids) if isinstance(ids, uuid.UUID) else ids


def changes_in(command: str, arguments: Mapping[str, Any]) -> list[bytes]:
    """Return the messages for the stream of changes that one of Celery's remote control commands needs."""
    if command in ("revoke", "terminate"):
        ids = as_text(arguments.get("task_id")) or []
        return list(changes.cancelled(map(str, ids if isinstance(ids, list) else [ids])))
    if command == "revoke_by_stamped_headers" and (stamps := _stamps_in(arguments.get("headers"))):
        return [changes.cancelled_stamps(stamps)]
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
        """Send a command to workers; also store a `revoke` for all workers, for those that start later.

        Nothing that goes wrong with the latter is an error, for the workers have the command. Ids may be of the class
        `uuid.UUID`.
        """
        if isinstance(arguments, Mapping) and "task_id" in arguments:
            arguments = {**arguments, "task_id": as_text(arguments["task_id"])}
        answer = super().broadcast(command, arguments, destination, *args, **kwargs)  # type: ignore[misc]
        if destination is None and not kwargs.get("pattern"):
            self._keep(command, {**(arguments or {}), **kwargs})
        return answer

    def _keep(self, command: str, arguments: Mapping[str, Any]) -> None:
        try:
            if messages := changes_in(command, arguments):
                with self.app.producer_or_acquire() as producer:
                    if producer.connection.transport.driver_type == DRIVER_TYPE:
                        producer.connection.default_channel  # noqa: B018  connects: a pool may contain closed connections
                        # An alarm may go on: its end is not waited for.
                        until_there_is_a_leader(partial(write_changes, producer.connection, messages, STORING))
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            logger.warning("RabbitMQ cannot store this revoke, so only the running workers know of it: %s", exc)


class FollowChanges(bootsteps.StartStopStep):  # type: ignore[misc]
    """Reads what was cancelled, moved or paused before a worker takes its first task, and follows further changes.

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
        self._has_begun = True
        options = connection.transport.delay_options
        stream = streams.changes(options.cascade)
        try:
            if options.streams:
                with suppress(DelayError, AMQPError, OSError, OperationalError):  # the one that it reads is tried again
                    make_streams(connection, options.wanted_streams)
                connection.connection.following.catch_up(stream, self.changes.apply, patience=PATIENCE)
        except (DelayError, NotStored) as exc:  # when tasks come, it is tried again
            if not self._warned:
                logger.warning(
                    "This worker does not know which tasks were cancelled or moved, and may run them, nor which queues "
                    "are paused, until the next attempt to learn of them succeeds: %s",
                    exc,
                )
            self._warned = True
        else:
            self._warned = False
        self.changes.running = True
        has_loop = bool(consumer.hub or getattr(consumer.pool, "is_green", False))
        if has_loop:  # otherwise timers run in another thread
            limit_this_thread(PATIENCE_OF_LOOP)
        if options.streams:
            look = (self._look, consumer, connection.connection.following, stream)
            call, *arguments = look if has_loop else (consumer.call_soon, *look)
            self._timer = consumer.timer.call_repeatedly(POLL, call, arguments)

    def _look(self, consumer: Any, following: Following, stream: Stream) -> None:
        """Apply what has come. Queues are consumed in the thread, or the greenlet, that reads the connection."""
        following.keep_up(stream, self.changes.apply, create=False)
        if consumer.hub:
            follow_pauses(consumer)
        else:
            consumer.call_soon(follow_pauses, consumer)

    def stop(self, consumer: Any) -> None:
        limit_this_thread(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PausingNode(Node):  # type: ignore[misc]
    """A worker's mailbox, which shows paused queues."""

    def handle_call(self, method: str, arguments: Any) -> Any:
        answer = super().handle_call(method, arguments)
        if method == "active_queues":
            paused = getattr(self.state.consumer.task_consumer, "paused", {}).values()
            answer += [{**queue.as_dict(recurse=True), "paused": True} for queue in paused]
        return answer


def follow_pauses(consumer: Any) -> None:
    if consumer.task_consumer is not None:
        try:
            consumer.task_consumer.follow_pauses()
        except ChannelError as exc:  # the queue is another one by now: Celery declares it again
            raise RecoverableConnectionError(f"a queue that was paused cannot be consumed: {exc}") from exc


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
        for id_ in ids:
            if not self.has_cancelled(id_):  # restored; Celery may know it from others, or from `--statedb`
                _revoked().forget(id_)
            elif self.running:
                revoke(id_)
        return ids


class KeepsCancelled:
    """A mixin for Celery's set of revoked ids, where a worker looks again before a task runs: it forgets none of ours.

    Celery's part of it has a limit, an age, and an order by clocks of other hosts, so that a new id may go first.
    """

    #: Ids that the stream says are cancelled, the oldest first.
    cancelled: dict[str, None]

    def keep(self, id_: str) -> None:
        self.add(id_)  # type: ignore[attr-defined]  # for `inspect revoked`, and workers that mingle
        self.cancelled[id_] = None
        if len(self.cancelled) > KEPT:
            del self.cancelled[next(iter(self.cancelled))]

    def forget(self, id_: str) -> None:
        self.cancelled.pop(id_, None)
        self.discard(id_)  # type: ignore[attr-defined]

    def __contains__(self, id_: object) -> bool:
        return id_ in self.cancelled or super().__contains__(id_)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        reduced: Any = super().__reduce__()  # for the file of `--statedb`, which workers without the package may read
        return (LimitedSet, *reduced[1:])


def _revoked() -> Any:
    if not isinstance(state.revoked, KeepsCancelled):
        upstream.mix_in(state.revoked, KeepsCancelled, cancelled={})
    return state.revoked


def revoke(id_: str) -> bool:
    """Make the worker discard a task as Celery does: with an event, the state `REVOKED`, an acknowledgement."""
    _revoked().keep(id_)
    return True

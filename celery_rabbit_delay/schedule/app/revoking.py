"""`revoke`, stored in a stream; and the step of a worker that reads what was cancelled, moved and paused, and when."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from amqp.exceptions import AMQPError
from celery import Celery, bootsteps
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.collections import LimitedSet
from celery.worker import state
from kombu.exceptions import OperationalError

from ... import upstream
from ...delay.amqp.confirms import NotStored
from ...delay.amqp.limited import ANSWER_WITHIN
from ...delay.app.worker import has_loop
from ...delay.core.errors import DelayError
from ...delay.core.options import DRIVER_TYPE
from ...delay.core.topology import Stream
from ..amqp.create_streams import make_streams
from ..amqp.stream_consumer import PATIENCE
from ..amqp.waiting_tasks import write_changes
from ..core import changes, streams
from ..core.changes import KEPT, Changes
from ..interceptor import Following, known_to
from .pausing import follow_pauses

logger = logging.getLogger(__name__)

#: Seconds between two looks at the changes while no task comes: one that a worker holds already may be cancelled.
POLL = 1.0


def changes_in(command: str, arguments: Mapping[str, Any]) -> list[bytes]:
    """Return the messages for the stream of changes that one of Celery's remote control commands needs."""
    if command in ("revoke", "terminate"):
        ids = arguments.get("task_id") or []
        return list(changes.cancelled(map(str, ids if isinstance(ids, (list, tuple, set, frozenset)) else [ids])))
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


def store_revoke(app: Celery, command: str, arguments: Mapping[str, Any]) -> None:
    """Store what one of Celery's remote control commands cancels, for all workers, also those that start later.

    Nothing that goes wrong is an error, for the running workers have the command. Called by `broadcast`.
    """
    try:
        if messages := changes_in(command, arguments):
            with app.producer_or_acquire() as producer:
                if producer.connection.transport.driver_type == DRIVER_TYPE:
                    producer.connection.default_channel  # noqa: B018  connects: a pool may contain closed connections
                    # An alarm may go on: its end is not waited for.
                    write_changes(producer.connection, messages, ANSWER_WITHIN)
    except SoftTimeLimitExceeded:
        raise
    except Exception as exc:
        logger.warning("RabbitMQ cannot store this revoke, so only the running workers know of it: %s", exc)


class FollowChanges(bootsteps.StartStopStep):  # type: ignore[misc]
    """Reads what was cancelled, moved or paused before a worker takes its first task, and follows further changes.

    Celery consumes tasks only after all its steps have started, and discards what was cancelled. The state of this step
    outlives the connection.
    """

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.changes = WorkerChanges(time.time)
        self._warned = False
        self._timer: Any = None

    def start(self, consumer: Any) -> None:
        connection = consumer.connection
        if connection.transport.driver_type != DRIVER_TYPE or not connection.transport.delay_options.schedule:
            return
        known = known_to[connection]
        known.changes = self.changes
        known.on_cancelled = discard
        options = connection.transport.delay_options
        stream = streams.changes_of(options)
        try:
            with suppress(DelayError, AMQPError, OSError, OperationalError):  # the one that it reads is tried again
                make_streams(connection, streams.wanted(options))
            following = connection.connection.interceptor.following
            # Long enough to ask again after one silence: without an answer the worker would run what was cancelled.
            following.catch_up(stream, self.changes.apply, patience=1.5 * PATIENCE)
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
        look = (self._look, consumer, connection.connection.interceptor.following, stream)
        call, *arguments = look if has_loop(consumer) else (consumer.call_soon, *look)
        self._timer = consumer.timer.call_repeatedly(POLL, call, arguments)

    def _look(self, consumer: Any, following: Following, stream: Stream) -> None:
        """Apply what has come. Queues are consumed in the thread, or the greenlet, that reads the connection."""
        following.keep_up(stream, self.changes.apply, create=False)
        if consumer.hub:
            follow_pauses(consumer)
        else:
            consumer.call_soon(follow_pauses, consumer)

    def stop(self, consumer: Any) -> None:
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
        for id_ in ids:
            if not self.has_cancelled(id_):  # restored; Celery may know it from others, or from `--statedb`
                _revoked().forget(id_)
            elif self.running:
                discard(id_)
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


def discard(id_: str) -> bool:
    """Make the worker discard a task as Celery does: with an event, the state `REVOKED`, an acknowledgement."""
    _revoked().keep(id_)
    return True

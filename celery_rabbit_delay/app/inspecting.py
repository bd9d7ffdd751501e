"""`celery inspect scheduled` and `query_task`, which see the tasks that wait in RabbitMQ as well."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import kombu
from amqp.exceptions import AMQPError
from celery.utils.functional import maybe_list
from kombu.exceptions import OperationalError
from kombu.pidbox import Node

from ..amqp.destinations import QueueNames
from ..amqp.follower import Follower
from ..amqp.outlook import Outlook
from ..amqp.schedule import Scheduled
from ..amqp.stream_consumer import StreamReplaced
from ..core import streams
from ..core.errors import DelayError
from ..core.options import DRIVER_TYPE
from .queues import queues_of

logger = logging.getLogger(__name__)

#: The most waiting tasks in an answer.
LIMIT = 1000

#: Seconds: after which the reading ends if nobody asks; between looks for new streams while somebody asks; and for
#: which an answer waits for the streams to be read, less than the second that Celery's clients wait for answers.
IDLE, LOOK, PATIENCE = 600.0, 10.0, 0.7

#: Seconds to wait for messages of the streams before questions are looked at.
_TURN = 0.05

#: Is called with what waits, or with None if that cannot be read.
Answer = Callable[[Outlook | None], None]


class InspectedNode(Node):  # type: ignore[misc]
    """A worker's mailbox, which completes some answers of Celery's in a thread of its own: no task waits for that."""

    _reading: Reading | None = None

    def handle_call(self, method: str, arguments: Any) -> Any:
        answer = super().handle_call(method, arguments)
        if method == "active_queues":
            answer += [{**queue.as_dict(recurse=True), "paused": True} for queue in _paused_in(self.state.consumer)]
        return answer

    def handle_cast(self, method: str, arguments: Any) -> Any:
        if method == "revoke":  # perhaps of nothing, for the stream may be new: see `schedule.tell_workers`
            connection = self._connection_with_streams()
            if connection is not None:
                connection.connection.following.look(streams.changes(connection.transport.delay_options.cascade))
        return super().handle_cast(method, arguments)

    def _connection_with_streams(self) -> kombu.Connection | None:
        """Return the worker's connection; None if it has none now, is not ours, or does without streams."""
        connection: kombu.Connection | None = getattr(self.state.consumer, "connection", None)
        if connection is None or connection.transport.driver_type != DRIVER_TYPE:
            return None
        return connection if connection.transport.delay_options.streams else None

    def dispatch(
        self, method: str, arguments: Any = None, reply_to: Any = None, ticket: Any = None, **kwargs: Any
    ) -> Any:
        consumer, connection = self.state.consumer, self._connection_with_streams()
        asks = bool(reply_to) and method in ("scheduled", "dump_schedule", "query_task")
        if not asks or connection is None:
            return super().dispatch(method, arguments, reply_to, ticket, **kwargs)
        try:
            held = self.handle_call(method, arguments)
        except Exception:
            return super().dispatch(method, arguments, reply_to, ticket, **kwargs)  # which answers with the error
        try:
            ids = set(map(str, maybe_list((arguments or {}).get("ids")) or ()))
            any_queue = QueueNames(queues_of(self.state.app))
            of_worker = QueueNames([*consumer.task_consumer.queues, *_paused_in(consumer)], only=True)
        except Exception as exc:
            logger.warning("`celery inspect` does not show the tasks that wait in RabbitMQ: %s", exc)
            return super().dispatch(method, arguments, reply_to, ticket, **kwargs)

        def answer(outlook: Outlook | None) -> None:
            if outlook is not None and method == "query_task":
                found = {one.id: ("scheduled", _info(one, priority)) for one, priority in outlook.find(ids, any_queue)}
                reply: Any = {**found, **held}
            elif outlook is not None:
                reply = held + [
                    {"eta": one.due.isoformat(), "priority": priority, "request": _info(one, priority)}
                    for one, priority in outlook.soonest(of_worker, LIMIT)
                ]
            else:
                reply = held
            self.reply({self.hostname: reply}, reply_to["exchange"], reply_to["routing_key"], ticket)

        if self._reading is None or not self._reading.ask(answer):
            self._reading = Reading(connection)
            self._reading.ask(answer)
            self._reading.start()
        return held


class Reading(threading.Thread):
    """Reads the streams as they grow, until nobody asks any more."""

    def __init__(self, connection: kombu.Connection) -> None:
        super().__init__(name="inspect", daemon=True)
        self._connection = connection
        self._lock = threading.Lock()
        self._questions: deque[tuple[float, Answer]] = deque()  # each with the time when it was asked
        self._asked = time.monotonic()
        self._is_over = False

    def ask(self, answer: Answer) -> bool:
        """Have a question answered soon; return False if this has ended."""
        with self._lock:
            if not self._is_over:
                self._asked = time.monotonic()
                self._questions.append((self._asked, answer))
            return not self._is_over

    def run(self) -> None:
        try:
            while self._is_wanted():
                with Follower(self._connection) as follower:
                    self._read(follower, Outlook(follower))
        except StreamReplaced:
            logger.info("A stream of delayed tasks was replaced: the next `celery inspect` reads it again")
        except (AMQPError, DelayError, OperationalError, OSError) as exc:
            logger.warning("`celery inspect` does not show the tasks that wait in RabbitMQ: %s", exc)
        finally:
            with self._lock:
                self._is_over = True
            self._answer(None)

    def _read(self, follower: Follower, outlook: Outlook) -> None:
        """Follow the streams, and answer once all is read, or at the latest when the client may not wait longer."""
        looked = time.monotonic()
        while self._is_wanted() and not outlook.is_exhausted:
            now = time.monotonic()
            if self._questions and now > looked + LOOK:
                follower.look_soon()
                looked = now
            message = follower.receive(_TURN)
            if message is not None:
                outlook.apply(message)
            is_read = message is None and outlook.is_complete
            if self._questions and (is_read or now > self._questions[0][0] + PATIENCE):
                if not is_read:
                    logger.warning("`celery inspect` shows only a part of what waits: ask again when all is read")
                self._answer(outlook)

    def _is_wanted(self) -> bool:
        with self._lock:
            self._is_over = not self._questions and time.monotonic() > self._asked + IDLE
            return not self._is_over

    def _answer(self, outlook: Outlook | None) -> None:
        while self._questions:
            _, answer = self._questions.popleft()
            try:
                answer(outlook)
            except (AMQPError, DelayError, OperationalError, OSError) as exc:
                logger.warning("An answer to `celery inspect` is lost: %s", exc)


def _paused_in(consumer: Any) -> list[kombu.Queue]:
    """Return the queues that a worker would consume from if they were not paused."""
    return list(getattr(consumer.task_consumer, "paused", {}).values())


def _info(one: Scheduled, priority: int | None) -> dict[str, Any]:
    """Return what `celery.worker.request.Request.info` returns."""
    return {
        "id": one.id,
        "name": one.task,
        "type": one.task,
        "args": one.args,
        "kwargs": one.kwargs,
        "hostname": None,  # no worker holds it
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {
            "exchange": one.exchange,
            "routing_key": one.routing_key,
            "priority": priority,
            "redelivered": False,
        },
        "worker_pid": None,
    }

"""Hands on tasks that reach a worker before they are due, mostly because their sender does not use this package.

Celery's worker would hold such tasks until they are due, and on RabbitMQ 4 a few of them stop it. This consumer sends
them into the cascade instead, from which they come back to the same queue.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp.exceptions import AMQPError
from celery import bootsteps
from celery.worker import state as worker_state

from .. import upstream
from ..amqp import event_loop
from ..amqp.confirms import NotStored
from ..amqp.connection import Connection
from ..amqp.destinations import own_destination
from ..amqp.event_loop import EventLoop
from ..amqp.transport import DeliveredMessage
from ..core import plan
from ..core.destination import Destination
from ..core.due import eta_in_utc
from ..core.errors import DelayError, InvalidDelay, MessageRefused
from ..core.headers import Delivery, State
from ..core.plan import Now, Plan
from ..core.sent import CLOCKS_DIFFER

logger = logging.getLogger(__name__)

#: In ticks: a task that is due sooner stays in the worker, because the cascade would keep it about as long.
MOMENT = 2

#: Seconds from the first task that is handed on to the log entry about all since; seconds that a stopping worker waits
#: for the broker's last answers.
REPORT_INTERVAL, PATIENCE = 60.0, 10.0

#: The most tasks that are sent and not answered: without a prefetch limit RabbitMQ sends all at once, and the worker
#: goes on with what is behind them in its socket, such as other tasks and `celery inspect`. Seconds without any answer
#: after which Celery holds the others, and seconds for which it holds all after the connection has failed.
MOST, SILENCE, PAUSE = 200, 5.0, 10.0

#: Seconds for which a worker sends nothing while many come, so that it reads what is behind them.
READING = 0.5


class Task(NamedTuple):
    """A task to hand on, the queue that it came from, where a copy goes to, and when it is due."""

    message: DeliveredMessage
    queue: kombu.Queue
    destination: Destination
    due: datetime
    early: State | None = None  # what the cascade's header says, if it came out of it too early


class HandingOn:
    """Sends a consumer's tasks that are not due yet into the cascade, and acknowledges each once its copy is stored.

    If the worker is killed in between, the broker delivers the original again. In a worker's event loop nothing waits
    for the broker: a timer looks for its answers while some are missing. Another consumer waits for each of them.
    """

    def __init__(self, consumer: kombu.Consumer) -> None:
        self._consumer = consumer
        #: The callback for messages that are not handed on: Celery's task handler.
        self.keep: Callable[[Any], Any] | None = None
        self._refused: set[str] = set()  # names of queues
        self._warned: set[type] = set()
        #: The consumer is cancelled: what still reaches it comes again after the connection is closed.
        self.is_over = False
        self._loop: EventLoop
        self._waiting: deque[Task] = deque()  # not sent yet
        self._unanswered = 0
        self._paused_until = 0.0
        self._heard = 0.0  # when the broker has last answered, or was first asked, by `time.monotonic`
        self._burst = self._seen = 0  # how many tasks have come without a pause: now, and at the last look
        self._sent = 0.0  # when some were sent last
        self._stored = 0
        #: Calls a function after some seconds; None outside of a worker.
        self.call_after: Callable[[float, Callable[[], None]], Any] | None = None
        self._timer: Any = None  # of the next report

    def offer(self, message: DeliveredMessage) -> bool:
        """Take a message if it can be handed on; return whether it was taken."""
        connection: Connection = self._consumer.channel.connection
        options = connection.delay_options
        now, eta = datetime.now(timezone.utc), due_of(message)
        early = came_early(message, eta, now)
        due = early.due if early else eta
        if eta is not None and not options.hand_on:  # Celery holds it
            due = None
        if due is None or (early is None and has_waited(message, due)):
            return False
        if due <= now + timedelta(seconds=MOMENT * options.tick) or not self._may_send(message):
            return False
        queue = self._queue_of(message)
        destination = own_destination(queue) if queue else None
        if queue is None or queue.no_ack or destination is None:
            return False
        if queue.name in self._refused or self._is_silent:
            return eta is None  # Celery would not hold it: it comes again when the connection is closed
        task = Task(message, queue, destination, due, early)
        loop = event_loop.current()
        if loop is None:
            self._publish(task, None, None)
        elif not self.is_over:
            self.take(task, loop)
        return True

    def take(self, task: Task, loop: EventLoop) -> None:
        """Send a task, or leave it to the next look if many come, so that the worker reads what is behind them."""
        self._loop = loop
        self._waiting.append(task)
        self._burst += 1
        if self._burst <= MOST or not loop.is_looking:
            self._go_on()
        else:
            loop.after_look(self._look)

    def finish(self) -> None:
        """Wait for the broker's answers: otherwise a stopping worker would leave both an original and its copy."""
        self.is_over = True
        until = time.monotonic() + PATIENCE
        try:
            # Without a connection, all originals come again.
            while self._unanswered and time.monotonic() < until and (connection := self._consumer.channel.connection):
                self._loop.follow(connection.sender, 1)
        finally:
            self._waiting.clear()  # they are not acknowledged, so they come again
            self.report()

    def report(self) -> None:
        """Log how many tasks were handed on since the last report."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        stored, self._stored = self._stored, 0
        if stored:
            logger.info("%d tasks came before they were due: they were handed on, and wait in RabbitMQ", stored)

    @property
    def _is_silent(self) -> bool:
        """Whether the broker does not answer, as during an alarm."""
        now = time.monotonic()
        return now < self._paused_until or (bool(self._unanswered) and now > self._heard + SILENCE)

    def _go_on(self) -> None:
        """Send what waits, as long as not too many answers are missing, and let a timer look for them."""
        sender = self._consumer.channel.connection.sender
        while self._waiting and self._unanswered < MOST and not self._is_silent:
            task = self._waiting.popleft()
            if task.queue.name in self._refused or task.due <= datetime.now(timezone.utc):
                self._keep(task)
                continue
            if not self._unanswered:
                self._heard = time.monotonic()
            try:
                planned = self._plan(task)
                self._loop.submit(sender, planned, partial(self._answered, task, planned))
                self._unanswered += 1
            except (DelayError, AMQPError, OSError) as exc:
                self._give_back(task, exc)
        if self._is_silent or sender.is_blocked:
            while self._waiting:
                self._give_back(self._waiting.popleft(), TimeoutError("RabbitMQ does not confirm what is sent"))
        self._sent = time.monotonic()
        if self._unanswered:
            self._loop.after_look(self._look)

    def _plan(self, task: Task) -> Plan:
        """Return the plan of a copy. Raises `DelayError`."""
        message, options = task.message, self._consumer.channel.connection.delay_options
        received = Delivery(message.delivery_info["exchange"], message.delivery_info["routing_key"], message.headers)
        now = Now(datetime.now(timezone.utc), time.monotonic_ns())
        return plan.of_received(message.amqp_message, received, task.destination, task.due, now, options, task.early)

    def _answered(self, task: Task, planned: Plan, refusal: Exception | None) -> None:
        self._unanswered -= 1
        self._heard = time.monotonic()
        if self._consumer.channel.connection is None:  # all originals come again
            return
        if refusal is None:
            self._settle(task)
        elif self._is_silent:
            self._give_back(task, refusal)
        else:  # a part of the cascade may be gone, or the connection was lost
            self._publish(task, planned, event_loop.PATIENCE)

    def _look(self) -> None:
        """Send more, if the worker has read what came behind the tasks."""
        if self._consumer.channel.connection is None:
            return
        if self._burst == self._seen:
            self._burst = 0  # none has come since the last look
        self._seen = self._burst
        if self._burst > MOST and time.monotonic() < self._sent + READING:
            self._loop.after_look(self._look)
        else:
            self._go_on()

    def _publish(self, task: Task, planned: Plan | None, seconds: float | None) -> None:
        """Send a copy of a task, with the number that it had before if it is sent again, and wait for the answer."""
        try:
            self._consumer.channel.connection.sender.publish(planned or self._plan(task), seconds)
        except (DelayError, AMQPError, OSError) as exc:
            self._give_back(task, exc)
        else:
            self._settle(task)

    def _settle(self, task: Task) -> None:
        task.message.ack()
        self._stored += 1
        if self._timer is None and self.call_after is not None:
            self._timer = self.call_after(REPORT_INTERVAL, self.report)

    def _give_back(self, task: Task, reason: Exception) -> None:
        """Let Celery hold a task that cannot be handed on; one without an eta stays as it is, and comes again."""
        self._warn(task.queue, reason)
        if not isinstance(reason, (DelayError, NotStored)):
            self._paused_until = time.monotonic() + PAUSE
        if task.early is None or due_of(task.message) is not None:
            self._keep(task)

    def _keep(self, task: Task) -> None:
        if self.keep is not None:
            self.keep(task.message)

    def _warn(self, queue: kombu.Queue, refusal: Exception) -> None:
        """Log why a task is not handed on, once per kind of reason, and stop handing on tasks of its queue.

        An invalid delay or size concerns only this task, and a lost connection or a broker that does not answer this
        moment, so other tasks of the queue are still handed on.
        """
        if isinstance(refusal, (DelayError, NotStored)) and not isinstance(refusal, (InvalidDelay, MessageRefused)):
            self._refused.add(queue.name)
        if type(refusal) not in self._warned:
            self._warned.add(type(refusal))
            logger.warning(
                "A task came from %r before it was due, and this worker cannot hand it on, so it holds such tasks "
                "itself, as Celery does: %s",
                queue.name,
                refusal,
            )

    def _may_send(self, message: DeliveredMessage) -> bool:
        """Return whether a message was not revoked, and has no `user_id` or that of this connection.

        RabbitMQ refuses messages with the `user_id` of another user.
        """
        user = message.properties.get("user_id")
        return message.headers.get("id") not in worker_state.revoked and (
            not user or user == self._consumer.connection.userid
        )

    def _queue_of(self, message: DeliveredMessage) -> kombu.Queue | None:
        name = upstream.queue_of_tag(self._consumer, message.delivery_info.get("consumer_tag"))
        return next((queue for queue in self._consumer.queues if queue.name == name), None)


def eta_of(message: DeliveredMessage) -> Any:
    """Return the eta of a task from its headers, or from its body with task protocol 1. None without an eta."""
    if "task" in message.headers and "eta" in message.headers:
        return message.headers["eta"]
    try:
        body = message.payload
    except Exception:  # Celery reports the error
        return None
    return body.get("eta") if isinstance(body, dict) and "task" in body else None


def due_of(message: DeliveredMessage) -> datetime | None:
    """Return the due time of a task in UTC, as Celery's worker reads it; None without an eta."""
    eta = eta_of(message)
    try:
        return eta_in_utc(eta) if eta else None
    except InvalidDelay:  # Celery reports the error
        return None


def has_waited(message: DeliveredMessage, due: datetime) -> bool:
    """Return whether a message was in the cascade until it was due, even if this worker's slow clock disagrees.

    Headers of the package alone do not prove that: a worker without it publishes a retry with those of the first try.
    """
    return message.delayed_until is not None and due - message.delayed_until < timedelta(seconds=1)


def came_early(message: DeliveredMessage, eta: datetime | None, now: datetime) -> State | None:
    """Return what the cascade's header says of a message that was to wait for a delivery time, and did not.

    This may be while the nodes of a cluster are upgraded. The clocks of hosts may differ, too: so a task with just this
    eta, which Celery holds, counts only if it is far too early. What has passed levels comes when it is due.
    """
    held = message.held
    if held is None:
        return None
    is_safe = eta is not None and held.due - eta < timedelta(seconds=1)
    return held if held.due > now + timedelta(seconds=CLOCKS_DIFFER if is_safe else 0) else None


class Report(bootsteps.StartStopStep):  # type: ignore[misc]
    """Makes a worker log, once a minute at most, how many tasks it has handed on.

    It needs no timer until then. With a timer that is not due for long, the event loop sleeps for up to ten seconds
    instead of one, and notices only then that a worker in a thread is to stop.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        c.task_consumer.handing_on.call_after = c.timer.call_after

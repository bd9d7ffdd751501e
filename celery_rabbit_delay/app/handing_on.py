"""Hands on tasks that reach a worker before they are due, because their sender does not use this package.

Celery's worker would hold such tasks until they are due, and on RabbitMQ 4 a few of them stop it. This consumer sends
them into the cascade instead, from which they come back to the same queue.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any, NamedTuple

import kombu
from celery import bootsteps
from celery.utils.dispatch import Signal
from celery.worker import state as worker_state

from .. import upstream
from ..amqp.clocks import tell_of_naive_eta
from ..amqp.confirms import NotStored
from ..amqp.destinations import own_destination
from ..amqp.publisher import DelayedPublisher
from ..amqp.transport import DeliveredMessage
from ..core import plan
from ..core.destination import Destination
from ..core.due import eta_in_utc, parse_eta
from ..core.errors import DelayError, InvalidDelay, NotRouted
from ..core.headers import Delivery
from ..core.plan import Now, Plan

logger = logging.getLogger(__name__)

#: In ticks: a task that is due sooner stays in the worker, because the cascade would keep it about as long.
MOMENT = 2

#: Without a prefetch limit RabbitMQ sends all at once. So many copies are on their way at a time: the worker goes on
#: with what is behind such tasks in its socket, such as other tasks and `celery inspect`.
MOST_UNANSWERED = 200

#: Is sent with `amount`, the number of tasks that this worker has handed on since it was sent last.
handed_on = Signal(name="handed_on", providing_args={"amount"})

#: Seconds from the first task that is handed on to the log entry about all since; seconds that a stopping worker waits
#: for the broker's last answers.
REPORT_INTERVAL, PATIENCE = 60.0, 10.0


class _HandedOn(NamedTuple):
    """A task, the queue that it came from, and the copy that is sent in its place."""

    message: DeliveredMessage
    queue: kombu.Queue
    publisher: DelayedPublisher
    plan: Plan


class HandingOn:
    """Sends a consumer's tasks that are not due yet into the cascade.

    The worker goes on while the broker stores a copy, and acknowledges the original afterwards. If the worker is killed
    in between, the broker delivers the original again.
    """

    def __init__(self, consumer: kombu.Consumer) -> None:
        self._consumer = consumer
        #: The callback for messages that are not handed on: Celery's task handler.
        self.keep: Callable[[Any], Any] | None = None
        self._refused: set[str] = set()  # names of queues
        self._warned: set[type] = set()
        #: The consumer is cancelled: what still reaches it comes again after the connection is closed.
        self.is_over = False
        self._unanswered = 0
        self._unrouted: list[_HandedOn] = []
        #: What is not handed on yet, as `_hand_on` takes it.
        self._taken: deque[tuple[DeliveredMessage, kombu.Queue, Destination, datetime]] = deque()
        self._is_going_on = False
        self._stored = 0
        #: Calls a function after some seconds; None outside of a worker.
        self.call_after: Callable[[float, Callable[[], None]], Any] | None = None
        self._timer: Any = None  # of the next report

    def offer(self, message: DeliveredMessage) -> bool:
        """Take a message if it can be handed on; return whether it was taken."""
        options = self._consumer.channel.connection.delay_options
        make_eta_aware(message, options.naive_timezone)
        due = due_of(message) if options.hand_on else None
        if due is None or has_waited(message, due):
            return False
        soon = datetime.now(timezone.utc) + timedelta(seconds=MOMENT * options.tick)
        if due <= soon or not self._may_send(message):
            return False
        queue = self._queue_of(message)
        if queue is None or queue.no_ack or queue.name in self._refused:
            return False
        destination = own_destination(queue)
        if destination is None:
            return False
        self._taken.append((message, queue, destination, due))
        self._go_on()
        return True

    def _hand_on(self, message: DeliveredMessage, queue: kombu.Queue, destination: Destination, due: datetime) -> bool:
        """Send a copy of a message; return whether that could be done."""
        connection, info = self._consumer.channel.connection, message.delivery_info
        received = Delivery(info["exchange"], info["routing_key"], message.headers)
        now = Now(datetime.now(timezone.utc), time.monotonic_ns())
        try:
            planned = plan.of_received(message.amqp_message, received, destination, due, now, connection.delay_options)
            publisher = connection.publisher_for(planned.priority)
            publisher.prepare(planned)
        except (DelayError, NotStored) as exc:
            self._warn(queue, exc)
            return False
        self._unanswered += 1
        self._submit(_HandedOn(message, queue, publisher, planned), again=False)
        return True

    def _go_on(self) -> None:
        """Hand on what is taken, unless too many copies are unanswered, and keep what cannot be handed on."""
        # Creating an outbox reads the connection, and so calls this. Without a connection, all originals come again.
        if self._is_going_on or self._consumer.channel.connection is None:
            return
        self._is_going_on = True
        try:
            while self._taken and self._unanswered < MOST_UNANSWERED and not self.is_over:
                message, queue, destination, due = self._taken.popleft()
                may = due > datetime.now(timezone.utc) and queue.name not in self._refused
                if not (may and self._hand_on(message, queue, destination, due)) and self.keep is not None:
                    self.keep(message)
        finally:
            self._is_going_on = False

    def finish(self) -> None:
        """Wait for the broker's answers: otherwise a stopping worker would leave both an original and its copy."""
        self.is_over = True
        until = time.monotonic() + PATIENCE
        try:
            # Without a connection, all originals come again.
            while self._unanswered and time.monotonic() < until and (connection := self._consumer.channel.connection):
                connection.drain_events(timeout=PATIENCE)
        finally:
            self.report()

    def report(self) -> None:
        """Log and signal how many tasks were handed on since the last report."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        stored, self._stored = self._stored, 0
        if stored:
            logger.info("%d tasks came before they were due: they were handed on, and wait in RabbitMQ", stored)
            handed_on.send(sender=self, amount=stored)

    def _submit(self, task: _HandedOn, again: bool) -> None:
        task.publisher.submit(task.plan, partial(self._answered, task, again))

    def _answered(self, task: _HandedOn, again: bool, refusal: Exception | None) -> None:
        if isinstance(refusal, NotRouted) and not again:
            self._unrouted.append(task)
        else:
            self._settle(task, refusal)
        # Wait for all answers first: a late answer for the same route would count as the answer to a repeated message.
        if self._unrouted and len(self._unrouted) == self._unanswered:
            self._repair()

    def _repair(self) -> None:
        """Declare deleted parts of the cascade again, or do without, and repeat the messages that no queue took."""
        unrouted, self._unrouted = self._unrouted, []
        try:
            for publisher in {task.publisher for task in unrouted}:
                publisher.repair(*{task.plan.destination for task in unrouted if task.publisher is publisher})
            for task in unrouted:
                task.publisher.prepare(task.plan)
        except (DelayError, NotStored) as exc:
            for task in unrouted:
                self._settle(task, exc)
        else:
            for task in unrouted:
                self._submit(task, again=True)

    def _settle(self, task: _HandedOn, refusal: Exception | None) -> None:
        self._unanswered -= 1
        if refusal is None:
            task.message.ack()
            self._stored += 1
            if self._timer is None and self.call_after is not None:
                self._timer = self.call_after(REPORT_INTERVAL, self.report)
        else:
            self._warn(task.queue, refusal)
            if self.keep is not None:
                self.keep(task.message)
        self._go_on()

    def _warn(self, queue: kombu.Queue, refusal: Exception) -> None:
        """Log why a task is not handed on, once per kind of reason, and stop handing on tasks of its queue.

        An invalid delay concerns only this task, so other tasks of the queue are still handed on.
        """
        if not isinstance(refusal, InvalidDelay):
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


def make_eta_aware(message: DeliveredMessage, zone: tzinfo) -> None:
    """Make the naive eta of a task mean what it means where it is published with this package, also to Celery's worker.

    With task protocol 1, where the body has the eta, it stays that of Celery's worker: in UTC.
    """
    headers = message.headers
    if headers.get("eta") and "task" in headers and str(zone) != "UTC":
        with suppress(InvalidDelay):  # Celery reports the error
            eta = parse_eta(headers["eta"])
            if eta.tzinfo is None:
                message.headers = {**headers, "eta": eta.replace(tzinfo=zone).isoformat()}
                tell_of_naive_eta(headers, message.headers, zone)


def due_of(message: DeliveredMessage) -> datetime | None:
    """Return the due time of a task in UTC, as Celery's worker reads it: an eta that is still naive is UTC.

    None without an eta.
    """
    eta = eta_of(message)
    try:
        return eta_in_utc(eta, timezone.utc) if eta else None
    except InvalidDelay:  # Celery reports the error
        return None


def has_waited(message: DeliveredMessage, due: datetime) -> bool:
    """Return whether a message was in the cascade until it was due, even if this worker's slow clock disagrees.

    Headers of the package alone do not prove that: a worker without it publishes a retry with those of the first try.
    """
    return message.delayed_until is not None and due - message.delayed_until < timedelta(seconds=1)


class Report(bootsteps.StartStopStep):  # type: ignore[misc]
    """Makes a worker log, once a minute at most, how many tasks it has handed on.

    It needs no timer until then. With a timer that is not due for long, the event loop sleeps for up to ten seconds
    instead of one, and notices only then that a worker in a thread is to stop.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        c.task_consumer.handing_on.call_after = c.timer.call_after

"""Hands on tasks that reach a worker before they are due, mostly because their sender does not use this package.

Celery's worker would hold such tasks until they are due, and on RabbitMQ 4 a few of them stop it. This consumer sends
them into the cascade instead, from which they come back to the same queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
from amqp.exceptions import AMQPError
from celery.worker import state as worker_state
from kombu.common import Broadcast

from ... import upstream
from ..amqp.limited import ANSWER_WITHIN, PAUSE
from ..amqp.transport import DeliveredMessage, UserConnection
from ..core import plan
from ..core.due import eta_in_utc
from ..core.errors import DelayError, InvalidDelay, InvalidDestination, MessageRefused
from ..core.headers import Delivery
from ..core.plan import Now

logger = logging.getLogger(__name__)

#: Errors that concern a task alone, and no others of its queue.
ABOUT_ONE = (InvalidDelay, InvalidDestination, MessageRefused)

#: In ticks: a task that is due sooner stays in the worker, because the cascade would keep it about as long.
MOMENT = 2


class HandingOn:
    """Sends a consumer's tasks that are not due yet into the cascade, and acknowledges each once its copy is stored.

    If the worker is killed in between, the broker delivers the original again. The consumer's thread waits for each
    answer, for `ANSWER_WITHIN` seconds at most.
    """

    def __init__(self, consumer: kombu.Consumer) -> None:
        self._consumer = consumer
        #: The callback for messages that are not handed on: Celery's task handler.
        self.keep: Callable[[Any], Any] | None = None
        self._refused: set[str] = set()  # names of queues
        self._warned: set[type] = set()
        #: The consumer is cancelled: what still reaches it comes again after the connection is closed.
        self.is_over = False
        self._paused_until = 0.0
        self._has_told = False

    def offer(self, message: DeliveredMessage) -> bool:
        """Take a message if it can be handed on; return whether it was taken."""
        options = self._consumer.channel.connection.delay_options
        due = due_of(message)
        if due is None or has_waited(message, due):
            return False
        if due <= datetime.now(timezone.utc) + timedelta(seconds=MOMENT * options.tick):
            return False
        if message.headers.get("id") in worker_state.revoked or not self._may_send(message):  # Celery discards it
            return False
        queue = self._queue_of(message)
        if queue is None or queue.no_ack or isinstance(queue, Broadcast):
            return False
        if self.is_over:
            return True
        if (
            queue.name in self._refused
            or time.monotonic() < self._paused_until
            or not self._publish(message, queue.name, due)
        ):
            return False
        message.ack()
        if not self._has_told:
            logger.info("Tasks come from %r before they are due: they are handed on, and wait in RabbitMQ", queue.name)
        self._has_told = True
        return True

    def _publish(self, message: DeliveredMessage, queue: str, due: datetime) -> bool:
        """Send a copy of a task to the queue that it came from; return whether it is stored."""
        connection: UserConnection = self._consumer.channel.connection
        received = Delivery(message.delivery_info["exchange"], message.delivery_info["routing_key"], message.headers)
        now = Now(datetime.now(timezone.utc), time.monotonic_ns())
        try:
            options, get_ticket = connection.delay_options, connection.interceptor.ticket
            planned = plan.of_received(message.amqp_message, received, queue, due, now, options, get_ticket=get_ticket)
            connection.sender.publish(planned, ANSWER_WITHIN)
        except (DelayError, AMQPError, OSError) as exc:
            self._warn(queue, exc)
            if not isinstance(exc, DelayError):
                self._paused_until = time.monotonic() + PAUSE
            return False
        return True

    def _warn(self, queue: str, refusal: Exception) -> None:
        """Log why a task is not handed on, once per kind of reason, and stop handing on tasks of its queue.

        Some errors concern only this task, and a lost connection or a broker that does not answer this
        moment, so other tasks of the queue are still handed on.
        """
        if isinstance(refusal, DelayError) and not isinstance(refusal, ABOUT_ONE):
            self._refused.add(queue)
        if type(refusal) not in self._warned:
            self._warned.add(type(refusal))
            logger.warning(
                "A task came from %r before it was due, and this worker cannot hand it on, so it holds such tasks "
                "itself, as Celery does: %s",
                queue,
                refusal,
            )

    def _may_send(self, message: DeliveredMessage) -> bool:
        """Return whether a message has no `user_id` of another user, with which RabbitMQ refuses it."""
        return message.properties.get("user_id") in (None, "", self._consumer.connection.userid)

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

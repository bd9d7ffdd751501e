"""The lock in RabbitMQ that makes one process of a beat the active one, and what that leaves to the next.

The holder is the single active consumer of a quorum queue (https://www.rabbitmq.com/docs/consumers#single-active-consumer)
and keeps the messages unacknowledged. When its connection ends, RabbitMQ delivers them to the next consumer.

What the holder publishes on the same connection needs no other fence: RabbitMQ gives the lock away only after it has
closed that connection, so that a process which was suspended meanwhile reaches nobody. In a cluster that falls apart, a
consumer may not learn that the queue has another one; but then it does not receive what it has just written.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

import kombu
from amqp import Channel, Message
from amqp.exceptions import AccessRefused, PreconditionFailed

from ..delay.amqp.declare import passive_declare_queue
from ..delay.core.errors import PERMISSIONS, CascadeConflict, NotPermitted, UnsupportedConfiguration
from ..delay.core.options import DRIVER_TYPE
from ..operate.broker_connection import own_channel

ARGUMENTS = {
    "x-queue-type": "quorum",
    "x-single-active-consumer": True,
    # With 20, the default since 4.0, RabbitMQ would drop the message after twenty holders that could not replace it.
    "x-delivery-limit": 1_000_000,
    # Milliseconds: a policy of 4.3 may make the message wait for longer before the next holder gets it.
    "x-delayed-retry-max": 1,
    # Milliseconds: 4.3 gives a consumer whose node is lost so much time to come back, a minute by default. Earlier
    # releases give it none, and ignore the argument.
    "x-consumer-disconnected-timeout": 1000,
}

#: Replies go only here, so that nobody can make a holder write to a queue (https://www.rabbitmq.com/docs/direct-reply-to).
REPLY_TO = "amq.rabbitmq.reply-to"

#: Seconds between two looks: of the holder for what to do, and of who asks whether there still is one, for RabbitMQ
#: notes late that it has left.
STEP = 1.0


class NoHolder(Exception):
    """Nobody holds the lock, or waits for it."""


class Lock:
    """A candidate for the lock, from when it is created until its connection ends."""

    def __init__(self, connection: kombu.Connection, queue: str, name: str, patience: float) -> None:
        """Connect, and create the queue.

        `name` is that of this process, shown with its consumer. `patience`, the beat's `heartbeat_of`: seconds to wait
        for an answer, and between messages, so that RabbitMQ's `consumer_timeout` does not end the consumer.

        Raises `NotPermitted`, `CascadeConflict`, `UnsupportedConfiguration`, py-amqp's errors, `OSError`.
        """
        if connection.transport.driver_type not in ("amqp", DRIVER_TYPE):
            raise UnsupportedConfiguration(
                f"{connection.as_uri()} is not RabbitMQ, in which this scheduler has its lock"
            )
        #: Whether this is the active consumer; it holds the lock once it has written.
        self.is_active = self.is_held = False
        #: Messages of earlier holders that are not replaced yet, the latest last.
        self.left: list[bytes] = []
        #: Messages of those who ask the holder, which are delivered to the next holder unless they are answered.
        self.questions: list[Message] = []
        self._queue, self._patience = queue, patience
        self._awaited: str | None = None  # the id of the message that this has published
        self._kept: list[int] = []  # the delivery tags of what is left to the next holder
        self._replaced = 0.0  # when, by `time.monotonic`
        self._connection = connection.connection
        self._connection.transport.sock.settimeout(patience)  # of reads and writes that have no limit of their own
        self._channel = connection.channel()
        try:
            self._channel.queue_declare(queue, durable=True, auto_delete=False, arguments=ARGUMENTS)
            self._channel.basic_consume(queue, consumer_tag=name, callback=self._on_message)
        except AccessRefused as exc:
            raise NotPermitted(f"permission denied ({exc.reply_text}): grant it, see {PERMISSIONS}") from exc
        except PreconditionFailed as exc:
            raise CascadeConflict(f"the queue {queue!r} has other properties ({exc.reply_text}): delete it") from exc
        self._say_hello()

    @property
    def age(self) -> float:
        """Seconds since this is known to have been the active consumer, or at least said that it exists."""
        return time.monotonic() - self._moment

    @property
    def age_of_first(self) -> float:
        """Seconds since the first of the messages that are left to the next holder was written."""
        return time.monotonic() - self._replaced

    def wait(self, seconds: float) -> bool:
        """Read what has come, or wait so many seconds to become active; return whether this is the active consumer.

        Call it every second or so: it sends heartbeats as well. Raises py-amqp's errors and `OSError`, after which the
        lock is lost.
        """
        end = time.monotonic() + seconds
        with suppress(TimeoutError):
            while True:  # py-amqp's `drain_events` would wait on with each heartbeat
                self._connection.blocking_read(0 if self.is_active else max(end - time.monotonic(), 0))
        self._connection.heartbeat_tick()
        if not self.is_active and self.age > self._patience:
            self._say_hello()
        return self.is_active

    def read_left(self) -> list[bytes]:
        """Return all that earlier holders have left: RabbitMQ delivers what came back before what is new."""
        self.add(b"")
        return self.left

    def write(self, body: bytes) -> None:
        """Replace all messages that are left to the next holder with one. As `add`."""
        known, kept = len(self.left), list(self._kept)
        self.add(body)
        for tag in kept:
            self._channel.basic_ack(tag)
        del self.left[:known], self._kept[: len(kept)]
        self._replaced = self._moment
        self.is_held = True

    def add(self, body: bytes) -> None:
        """Leave one more message to the next holder, and return when RabbitMQ has delivered it back.

        Until then it was stored by a majority of the nodes, and this held the lock. Raises as `wait` does.
        """
        self._awaited = uuid4().hex
        self._publish(Message(body, delivery_mode=2, message_id=self._awaited), self._queue)
        self._moment = time.monotonic()
        while self._awaited:
            self._connection.blocking_read(max(self._patience - self.age, 0))

    def answer(self, question: Message, body: bytes) -> None:
        """Answer one who has asked, if that one still waits; then no other holder is asked any more."""
        self._channel.basic_ack(question.delivery_tag)
        self._publish(Message(body), question.properties["reply_to"], mandatory=False)

    def channel(self) -> Any:
        """Return a new channel of the same connection: after the lock is lost, nothing is sent on it."""
        return self._connection.channel()

    def abandon(self) -> None:
        """Close the connection, and wait for nothing."""
        self._connection.collect()

    def _say_hello(self) -> None:
        """Publish a message that says nothing: of a queue without any, no consumer knows that it is active."""
        self._publish(Message(b"", expiration="60000"), self._queue)
        self._moment = time.monotonic()

    def _publish(self, message: Message, queue: str, mandatory: bool = True) -> None:
        # Without a confirm: a connection with `confirm_publish` has another method of this name on its channels.
        Channel.basic_publish(self._channel, message, "", queue, mandatory=mandatory)

    def _on_message(self, message: Message) -> None:
        self.is_active = True
        own = self._awaited is not None and message.properties.get("message_id") == self._awaited
        if own:
            self._awaited = None
        if own or (message.body and not self.is_held and "reply_to" not in message.properties):
            self._kept.append(message.delivery_tag)
            if not own:
                self.left.append(message.body)
            return
        if str(message.properties.get("reply_to", "")).startswith(REPLY_TO):
            self.questions.append(message)
        else:
            self._channel.basic_ack(message.delivery_tag)


def ask(connection: kombu.Connection, queue: str, question: Any = None, patience: float = 5) -> Any:
    """Ask the holder of a lock, wait `patience` seconds, and return its answer; both are JSON, and None is no answer.

    Raises `NoHolder` if there is none, also if the one that was there has left: then the next one has the question, but
    nobody gets its answer. Raises `NotFound` if there has never been one.
    """
    answers: list[Any] = []
    with own_channel(connection) as channel:
        if not passive_declare_queue(channel, queue).consumer_count:
            raise NoHolder
        channel.basic_consume(REPLY_TO, no_ack=True, callback=lambda message: answers.append(json.loads(message.body)))
        body = b"" if question is None else json.dumps(question).encode()
        message = Message(body, reply_to=REPLY_TO, expiration=str(int(patience * 1000)), delivery_mode=2)
        channel.basic_publish(message, exchange="", routing_key=queue)
        deadline = time.monotonic() + patience
        while not answers and (left := deadline - time.monotonic()) > 0:
            with suppress(TimeoutError):
                connection.drain_events(timeout=min(left, STEP))
            # The answer may come with that to the declaration.
            if not (answers or passive_declare_queue(channel, queue).consumer_count or answers):
                raise NoHolder
    return answers[0] if answers else None

"""Publishes delayed messages on a channel of their own, confirmed and mandatory.

A task for next week must not vanish in a socket buffer, and a refusal by the broker, which closes the channel it was
refused on, must not take the user's channel along.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked

from . import declare, routing_key
from .exceptions import CascadeMissing, DelayError, NotRouted
from .options import Options
from .routing_key import Destination
from .topology import Cascade

logger = logging.getLogger(__name__)


class ConfirmedChannel:
    """A channel of its own, opened when needed, on which each message is mandatory and, with `confirm`, confirmed."""

    def __init__(self, connection: Any, confirm: bool = True) -> None:
        self._connection = connection
        self._confirm = confirm
        self._channel: Any = None
        self._confirming = False
        self._delivery_tag = 0  # of the last message published; the broker counts along
        self._unanswered: dict[int, Any] = {}  # delivery tag -> name of the message
        self._messages: dict[Any, tuple[Any, str]] = {}
        self._returned: dict[str, str] = {}  # routing key -> why no queue took it

    def open(self) -> Any:
        """The `amqp.Channel`, for declaring as well."""
        if self._channel is None:
            self._channel = self._connection.channel()
            self._channel.events["basic_return"].add(self._on_return)
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
        return self._channel

    def publish(
        self,
        message: Any,
        exchange: str,
        key: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> str | None:
        """Returns once the broker has stored an `amqp.Message`: None, or why no queue took it.

        Raises `amqp.exceptions.MessageNacked` when the broker cannot store it now, and what else py-amqp raises.
        """
        refused = {None: (message, key)}
        self.publish_all(refused, exchange, timeout, confirm_timeout)
        if refused and not self._returned:
            raise MessageNacked("RabbitMQ could not store the message: are most of its nodes up?")
        return self._returned.get(key) if refused else None

    def publish_all(
        self,
        messages: dict[Any, tuple[Any, str]],
        exchange: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Sends all `amqp.Message`s, each with its routing key, before it waits for the broker's first answer.

        Removes those from `messages` that are stored, also if it raises. What is left in the end was refused.
        """
        channel = self.open()
        # Only now: declaring may close the channel, and py-amqp open it again without.
        if self._confirm and not self._confirming:
            channel.confirm_select(nowait=True)
            self._confirming = True
        self._messages = messages
        self._returned.clear()
        for name, (message, key) in list(messages.items()):
            if self._confirm:
                self._delivery_tag += 1
                self._unanswered[self._delivery_tag] = name
            channel._basic_publish(message, exchange, key, mandatory=True, timeout=timeout)
        if not self._confirm:
            messages.clear()
        while self._unanswered:
            self._connection.drain_events(timeout=confirm_timeout or timeout)

    def forget(self, close: bool) -> None:
        """Starts afresh with the next message; `close` if the broker still answers on this channel."""
        channel, self._channel = self._channel, None
        self._confirming = False
        self._delivery_tag = 0
        self._unanswered.clear()
        if channel is not None:
            channel.events.clear()  # answers that come after a time-out are not about the messages of the next one
            if close:
                channel.close()

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        for name in self._answered(delivery_tag, multiple):
            if self._messages[name][1] not in self._returned:  # a return comes before the answer
                del self._messages[name]

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        self._answered(delivery_tag, multiple)

    def _answered(self, delivery_tag: int, multiple: bool) -> list[Any]:
        """The names of the messages that an answer is about; a `multiple` one is about all up to the tag."""
        tags = list(takewhile(delivery_tag.__ge__, self._unanswered)) if multiple else [delivery_tag]
        return [self._unanswered.pop(tag) for tag in tags]

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[key] = str(exc.reply_text)
        if not self._confirm:  # nobody waits for it
            logger.error("RabbitMQ returned a delayed message, it is lost: %s, %r", exc.reply_text, message.headers)


class DelayedPublisher:
    """What one AMQP connection needs to publish into one cascade: made with the connection, gone with it."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self._connection = connection
        self._channel = ConfirmedChannel(connection, options.confirm)
        self._ensured = False
        self._bound: set[Destination] = set()

    def publish(
        self,
        message: Any,
        ticks: int,
        destination: Destination,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Sends an `amqp.Message` into the cascade; with `confirm`, returns once the broker has stored it.

        Raises `DelayError` when the broker refuses it, `amqp.exceptions.MessageNacked` when it cannot store it now, and
        connection errors and time-outs (seconds) as py-amqp does. The next publish starts afresh after any of them.
        """
        key = routing_key.encode(ticks)
        with self._connection.holding_deliveries():
            try:
                self._publish(message, key, destination, timeout, confirm_timeout)
            except (CascadeMissing, NotRouted):
                # Somebody deleted a part of the cascade that this connection, or whoever made it, has seen complete.
                if self.options.declare == "passive":
                    raise
                declare.create(self._channel.open(), self.cascade)
                self._publish(message, key, destination, timeout, confirm_timeout)

    def publish_all(
        self,
        messages: dict[Any, tuple[Any, str]],
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Sends all messages, each with its routing key to a bound destination, before it waits for any answer.

        Removes those from `messages` that are stored, also if it raises. What is left in the end was refused: publish
        it again, one by one, to learn why.
        """
        with self._connection.holding_deliveries(), self._forgetting_on_error(), declare.translated(self.cascade):
            self._channel.publish_all(messages, self.cascade.ingest, timeout, confirm_timeout)

    def leads_to(self, destination: Destination) -> bool:
        """Whether this connection has seen the cascade complete and bound to a destination."""
        return destination in self._bound

    def bind(self, destination: Destination) -> None:
        """Makes sure that the cascade is there and leads to a destination, once for each connection."""
        if self.leads_to(destination):
            return
        with self._connection.holding_deliveries(), self._forgetting_on_error():
            channel = self._channel.open()
            if self.options.declare == "auto":
                declare.lead(channel, self.cascade, destination, check=not self._ensured)
            elif not self._ensured:
                declare.require(channel, self.cascade)
            self._ensured = True
            self._bound.add(destination)

    def rebind(self, destination: Destination) -> None:
        """Leads what may still wait for a destination to it, in case it was deleted and is now declared anew.

        Where there is no cascade, nothing waits, and nothing is created.
        """
        with self._connection.holding_deliveries(), self._forgetting_on_error(), declare.translated(self.cascade):
            if declare.exchange_exists(self._channel.open(), self.cascade.done):
                declare.bind_destination(self._channel.open(), self.cascade, destination)

    def _publish(
        self, message: Any, key: str, destination: Destination, timeout: float | None, confirm_timeout: float | None
    ) -> None:
        self.bind(destination)
        with self._forgetting_on_error(), declare.translated(self.cascade):
            returned = self._channel.publish(message, self.cascade.ingest, key, timeout, confirm_timeout)
            if returned is not None:
                raise NotRouted(f"no level of the cascade took the message: {returned}")

    @contextmanager
    def _forgetting_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._ensured = False
            self._bound.clear()
            # Where the broker answered, it will answer the closing too.
            self._channel.forget(close=isinstance(exc, (DelayError, ChannelError, MessageNacked)))
            raise

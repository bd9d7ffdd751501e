"""Publishes delayed messages on a channel of their own, confirmed and mandatory.

A task for next week must not vanish in a socket buffer, and a refusal by the broker, which closes the channel it was
refused on, must not take the user's channel along.
"""

from __future__ import annotations

import logging
from typing import Any

from amqp.exceptions import ChannelError, MessageNacked

from . import declare, routing_key
from .exceptions import CascadeMissing, DelayError, NotRouted
from .options import Options
from .routing_key import Destination

logger = logging.getLogger(__name__)


class DelayedPublisher:
    """What one AMQP connection needs to publish delayed messages: made with the connection, gone with it."""

    def __init__(self, connection: Any, options: Options) -> None:
        self.options = options
        self.cascade = options.cascade
        self._connection = connection
        self._channel: ConfirmedChannel | None = None
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
        try:
            self._publish(message, ticks, destination, timeout, confirm_timeout)
        except (CascadeMissing, NotRouted):
            # Somebody deleted a part of the cascade that this connection, or whoever made it, has seen complete.
            if self.options.declare == "passive":
                raise
            declare.create(self._open().channel, self.cascade)
            self._publish(message, ticks, destination, timeout, confirm_timeout)

    def bind(self, destination: Destination) -> None:
        """Makes sure that the cascade is there and leads to a destination, once for each connection."""
        if self._ensured and destination in self._bound:
            return
        try:
            channel = self._open().channel
            if not self._ensured:
                declare.ensure(channel, self.cascade, self.options.declare)
                self._ensured = True
            if self.options.declare == "auto":
                declare.bind_destination(channel, self.cascade, destination)
            self._bound.add(destination)
        except BaseException as exc:
            self._reset(exc)
            raise

    def _publish(
        self, message: Any, ticks: int, destination: Destination, timeout: float | None, confirm_timeout: float | None
    ) -> None:
        self.bind(destination)
        try:
            with declare.translated(self.cascade):
                key = routing_key.encode(ticks, destination)
                self._open().publish(message, self.cascade.ingest, key, timeout, confirm_timeout)
        except BaseException as exc:
            self._reset(exc)
            raise

    def _open(self) -> ConfirmedChannel:
        if self._channel is None:
            self._channel = ConfirmedChannel(self._connection, self.options.confirm)
        return self._channel

    def _reset(self, exc: BaseException) -> None:
        """Forgets what an error has made doubtful."""
        channel, self._channel = self._channel, None
        self._ensured = False
        self._bound.clear()
        if channel is not None and isinstance(exc, (DelayError, MessageNacked)):
            channel.channel.close()  # the broker answered, so it will answer this too


class ConfirmedChannel:
    """A channel in confirm mode that knows which of its messages the broker has not answered yet.

    It counts delivery tags itself (https://www.rabbitmq.com/docs/confirms): while one publisher waits, a consumer on
    the same connection may be called and publish in its turn, and one answer may cover both.
    """

    def __init__(self, connection: Any, confirm: bool) -> None:
        self._connection = connection
        self._confirm = confirm
        self._selected = False  # only at the first message: declaring may close the channel, and open it again without
        self._published = 0
        self._unanswered: set[int] = set()
        self._refused: set[int] = set()
        self._returned: dict[str, str] = {}  # routing key -> why
        self.channel = connection.channel()
        self.channel.events["basic_ack"].add(self._on_ack)
        self.channel.events["basic_nack"].add(self._on_nack)
        self.channel.events["basic_return"].add(self._on_return)

    def publish(
        self, message: Any, exchange: str, key: str, timeout: float | None = None, confirm_timeout: float | None = None
    ) -> None:
        """Raises `NotRouted`, `amqp.exceptions.MessageNacked`, `amqp.exceptions.ChannelError` and connection errors."""
        if self._confirm and not self._selected:
            self.channel.confirm_select()
            self._selected = True
        self._published += 1
        tag = self._published
        if self._confirm:
            self._unanswered.add(tag)
        self.channel._basic_publish(message, exchange, key, mandatory=True, timeout=timeout)
        while tag in self._unanswered:
            self._connection.drain_events(timeout=confirm_timeout or timeout)
        if tag in self._refused:
            raise MessageNacked("RabbitMQ could not store a delayed message: are most of its nodes up?")
        if self._confirm and key in self._returned:  # a return comes before the answer
            raise NotRouted(f"no level of the cascade took the message: {self._returned.pop(key)}")

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._unanswered -= {t for t in self._unanswered if t <= tag} if multiple else {tag}

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._refused |= {t for t in self._unanswered if t <= tag} if multiple else {tag}
        self._on_ack(tag, multiple)

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[key] = str(exc.reply_text)
        if not self._confirm:  # nobody waits for it
            logger.error("RabbitMQ returned a delayed message, it is lost: %s, %r", exc.reply_text, message.headers)

"""Publishes delayed messages into a cascade, and makes sure before that it is there and leads to their destination."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from amqp.exceptions import ChannelError, MessageNacked

from ..core import routing_key
from ..core.errors import CascadeMissing, DelayError, NotRouted
from ..core.options import Options
from ..core.routing_key import Destination
from ..core.topology import Cascade
from . import declare
from .confirms import Answered, ConfirmedChannel


def now() -> int:
    """Return microseconds of a clock that nobody sets: a delay must not change with the wall clock."""
    return time.monotonic_ns() // 1000


class PendingMessage(NamedTuple):
    """A message that is ready to enter the cascade."""

    message: Any  # an amqp.Message with wrapped headers
    due: int  # by the clock `now`
    destination: Destination
    timeout: float | None = None  # seconds, as for `kombu.Producer.publish`
    confirm_timeout: float | None = None

    @property
    def priority(self) -> int | None:
        priority: int | None = self.message.properties.get("priority")
        return priority


class DelayedPublisher:
    """What one AMQP connection needs to publish into one cascade: made with the connection, gone with it."""

    def __init__(self, connection: Any, cascade: Cascade, options: Options) -> None:
        self.options = options
        self.cascade = cascade
        self._connection = connection
        self._channel = ConfirmedChannel(connection, options.confirm)
        self._unawaited = ConfirmedChannel(connection)
        self._ensured = False
        self._bound: set[Destination] = set()

    def publish(self, pending: PendingMessage) -> None:
        """Send a message into the cascade; with `confirm`, return once the broker has stored it.

        Raises `DelayError` when the broker refuses it, `amqp.exceptions.MessageNacked` when it cannot store it now, and
        connection errors and time-outs as py-amqp does. The next publish starts afresh after any of them.
        """
        with self._connection.defer_deliveries():
            try:
                self._publish(pending)
            except (CascadeMissing, NotRouted):
                # Somebody deleted a part of the cascade that this connection, or whoever made it, has seen complete.
                if self.options.declare == "passive":
                    raise
                self.repair()
                self._publish(pending)

    def repair(self) -> None:
        """Declare all of the cascade. Raises what `declare_cascade` does."""
        with self._connection.defer_deliveries():
            declare.declare_cascade(self._channel.get_channel(), self.cascade)

    def submit(self, pending: PendingMessage, answered: Answered) -> None:
        """Send a message, to a bound destination, without waiting for the broker's answer.

        Reading from the connection calls `answered`: with None when the message is stored, or else with what `publish`
        would raise. It is always confirmed, whatever the options say.
        """
        with self._connection.defer_deliveries():  # while a channel is opened
            self._unawaited.send(pending.message, self.cascade.ingest, self._key(pending), answered)

    def refuse_submitted(self, channel: Any, exc: Exception) -> bool:
        """Take the blame if the broker has closed the channel of messages that were submitted; return whether it has."""
        try:
            with declare.translate_errors(self.cascade):
                raise exc
        except Exception as translated:
            with self._connection.defer_deliveries():
                return self._unawaited.refuse_all(channel, translated)

    def publish_all(self, messages: dict[Any, PendingMessage]) -> None:
        """Send all messages, to bound destinations, before waiting for any answer.

        Removes those from `messages` that are stored, also if it raises. What is left in the end was refused: publish
        it again, one by one, to learn why.
        """
        unsent = {name: (pending.message, self._key(pending)) for name, pending in messages.items()}
        last = next(reversed(messages.values()))
        try:
            with self._connection.defer_deliveries(), self._reset_on_error(), declare.translate_errors(self.cascade):
                self._channel.publish_all(unsent, self.cascade.ingest, last.timeout, last.confirm_timeout)
        finally:
            for name in messages.keys() - unsent.keys():
                del messages[name]

    def is_bound(self, destination: Destination) -> bool:
        """Return whether this connection has seen the cascade complete and bound to a destination."""
        return destination in self._bound

    def bind(self, destination: Destination) -> None:
        """Make sure that the cascade is there and leads to a destination, once for each connection."""
        if self.is_bound(destination):
            return
        with self._connection.defer_deliveries(), self._reset_on_error():
            channel = self._channel.get_channel()
            if self.options.declare == "auto":
                declare.ensure_route(channel, self.cascade, destination, check=not self._ensured)
            elif not self._ensured:
                declare.require_cascade(channel, self.cascade)
            self._ensured = True
            self._bound.add(destination)

    def rebind(self, destination: Destination) -> None:
        """Make sure of it again: what a destination needs goes with a queue that is deleted and declared again."""
        self._bound.discard(destination)
        self.bind(destination)

    def _publish(self, pending: PendingMessage) -> None:
        self.bind(pending.destination)
        with self._reset_on_error(), declare.translate_errors(self.cascade):
            returned = self._channel.publish(
                pending.message,
                self.cascade.ingest,
                self._key(pending),
                pending.timeout,
                pending.confirm_timeout,
            )
            if returned is not None:
                raise NotRouted(f"no level of the cascade took the message: {returned}")

    def _key(self, pending: PendingMessage) -> str:
        """Return the routing key for what is left of the delay: declaring, or a batch, may have taken a while."""
        return routing_key.encode(self.options.route(self.cascade, pending.due - now()))

    @contextmanager
    def _reset_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:
            self._ensured = False
            self._bound.clear()
            # Where the broker answered, it will answer the closing too.
            self._channel.reset(close=isinstance(exc, (DelayError, ChannelError, MessageNacked)))
            raise

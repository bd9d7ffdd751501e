"""A channel of its own for delayed messages: mandatory and confirmed.

A task for next week must not vanish in a socket buffer, and a refusal by the broker, which closes the channel it was
refused on, must not take the user's channel along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from amqp.exceptions import AMQPError, ChannelError, MessageNacked, RecoverableConnectionError

from .. import upstream
from ..core.errors import NotRouted
from .writing import MessageWriter

#: Called with None when the broker has stored a message, or with the reason why it has not.
Answered = Callable[[Exception | None], None]

#: Exchange and routing key: messages with the same ones go the same way.
Route = tuple[str, str]

logger = logging.getLogger(__name__)


class NotStored(MessageNacked, AMQPError):  # type: ignore[misc]
    """The broker could not store a message: py-amqp's error for that, and one of its errors as any other."""

    def __init__(self, reply_text: str = "RabbitMQ could not store the message: are most of its nodes up?") -> None:
        super().__init__(reply_text)
        self.args = (reply_text,)  # so that it can be pickled


class Outgoing(NamedTuple):
    """A message and where it is published to."""

    message: Any  # an amqp.Message
    exchange: str
    key: str


class ConfirmedChannel:
    """A channel, opened when needed, on which each message is mandatory and, with `confirm`, confirmed."""

    def __init__(self, connection: Any, confirm: bool = True) -> None:
        self._connection = connection
        self._confirm = confirm
        self._channel: Any = None
        self._writer: MessageWriter | None = None
        self._confirming = False
        self._delivery_tag = 0  # of the last message published; the broker counts along
        self._unanswered: dict[int, tuple[Route, Answered]] = {}  # delivery tag -> its route, who wants to know
        self._returned: dict[Route, str] = {}  # why no queue took it
        self._others: list[Any] = []

    def get_channel(self) -> Any:
        """Return the `amqp.Channel`, for declaring as well."""
        if self._channel is None:
            self._channel = upstream.open_channel(self._connection)
            self._channel.events["basic_return"].add(self._on_return)
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
        return self._channel

    @contextmanager
    def several(self, amount: int) -> Iterator[list[Any]]:
        """Open more channels beside this one for a while, so that there are so many to declare on."""
        try:
            while len(self._others) < amount - 1:
                self._others.append(upstream.open_channel(self._connection))
            yield [self.get_channel(), *self._others]
        finally:
            others, self._others = self._others, []
            for channel in others:
                with suppress(AMQPError, OSError):
                    upstream.close_without_waiting(channel)

    def owns(self, channel: Any) -> bool:
        """Return whether an `amqp.Channel` is this one, or one of several."""
        return channel is self._channel or channel in self._others

    @property
    def current(self) -> Any:
        """The `amqp.Channel`, if it is open."""
        return self._channel

    def publish(
        self,
        message: Any,
        exchange: str,
        key: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> str | None:
        """Return once the broker has stored an `amqp.Message`: None, or why no queue took it.

        Raises `NotStored` when the broker cannot store it now, `TimeoutError`, and what else py-amqp raises.
        """
        refused = {None: Outgoing(message, exchange, key)}
        with self._connection.exclusively(self, None):
            self.publish_all(refused, timeout, confirm_timeout)
        return self.refusal(exchange, key) if refused else None

    def refusal(self, exchange: str, key: str) -> str | None:
        """Return why no queue took a message of the last call that was left. Raises as `publish`."""
        returned = self.returned(exchange, key)
        if returned is None:
            raise NotStored()
        return returned

    def returned(self, exchange: str, key: str) -> str | None:
        """Return why no queue took a message of the last call to an exchange; None if it was not returned."""
        return self._returned.get((exchange, key))

    def publish_all(
        self,
        messages: dict[Any, Outgoing],
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Send all messages before waiting for the broker's first answer. For a block of `Connection.exclusively`.

        Removes those from `messages` that are stored, also if it raises. What is left in the end was refused.
        `timeout` is about sending and `confirm_timeout` about all answers; either stands for the other.
        """
        with self._connection.within(timeout or confirm_timeout):
            self._write(self._confirming_channel(), messages)
        if not self._confirm:
            messages.clear()
            return
        with self._connection.within(confirm_timeout or timeout):
            while self._unanswered:
                self._connection.drain_events()

    def _write(self, channel: Any, messages: dict[Any, Outgoing]) -> None:
        if self._writer is None:
            self._writer = MessageWriter(self._connection)
        try:
            for name, (message, exchange, key) in messages.items():
                self._writer.add(channel, message, exchange, key, self._connection.seconds_left())
                if self._confirm:
                    self._expect(exchange, key, partial(_forget_stored, messages, name))
            self._writer.flush(self._connection.seconds_left())
        except RecoverableConnectionError:
            self._connection.collect()  # half a frame may have been sent: nothing that follows could be read
            raise
        finally:
            self._writer.discard()

    def send(self, message: Any, exchange: str, key: str, answered: Answered, timeout: float | None = None) -> None:
        """Send an `amqp.Message` without waiting for the broker's answer.

        Reading from the connection calls `answered`, with `NotRouted` or `NotStored` if the message was refused.
        Without `confirm` it is called at once.
        """
        channel = self._confirming_channel()
        if self._confirm:
            self._expect(exchange, key, answered)
        try:
            upstream.publish_unconfirmed(
                channel, message, exchange=exchange, routing_key=key, mandatory=True, timeout=timeout
            )
        except Exception:
            # py-amqp reads before it writes. If that closed the channel, `refuse_all` has told `answered`.
            if self._channel is channel:
                raise
            return
        if not self._confirm:
            answered(None)

    def _confirming_channel(self) -> Any:
        channel = self.get_channel()
        # Only now: declaring may close the channel, and py-amqp open it again without.
        if self._confirm and not self._confirming:
            channel.confirm_select(nowait=True)
            self._confirming = True
        if not self._unanswered:
            self._returned.clear()
        return channel

    def _expect(self, exchange: str, key: str, answered: Answered) -> None:
        self._delivery_tag += 1
        self._unanswered[self._delivery_tag] = (exchange, key), answered

    def refuse_all(self, exc: Exception) -> None:
        """Tell all who wait for an answer that the broker has closed the channel, and start afresh."""
        unanswered = list(self._unanswered.values())
        self.reset()  # py-amqp has opened it again
        for _, answered in unanswered:
            answered(exc)

    def reset(self) -> None:
        """Start afresh with the next message. Waits for nothing: the broker may not answer."""
        channel, self._channel = self._channel, None
        self._confirming = False
        self._delivery_tag = 0
        self._unanswered.clear()
        if channel is not None:
            channel.events.clear()  # answers that come after a time-out are not about the messages of the next one
            with suppress(AMQPError, OSError):
                upstream.close_without_waiting(channel)

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        # A return comes before the answer. Whoever is told first may send again, which forgets what was returned.
        answers = [(answered, self._returned.get(route)) for route, answered in self._pop(delivery_tag, multiple)]
        for answered, reason in answers:
            answered(None if reason is None else NotRouted(f"no level of the cascade took the message: {reason}"))

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for _, answered in self._pop(delivery_tag, multiple):
            answered(NotStored())

    def _pop(self, delivery_tag: int, multiple: bool) -> list[tuple[Route, Answered]]:
        """Return who waits for an answer; a `multiple` one is about all messages up to the tag."""
        tags = list(takewhile(delivery_tag.__ge__, self._unanswered)) if multiple else [delivery_tag]
        return [self._unanswered.pop(tag) for tag in tags]

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[exchange, key] = str(exc.reply_text)
        if not self._confirm:  # nobody waits for it
            what = "a delayed message, it" if message.headers else "the record of a delayed message, which"
            logger.error("RabbitMQ returned %s is lost: %s, %r", what, exc.reply_text, message.headers)


def _forget_stored(messages: dict[Any, Any], name: Any, refusal: Exception | None) -> None:
    if refusal is None:
        del messages[name]

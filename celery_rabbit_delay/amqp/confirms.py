"""A separate channel for delayed messages, which are mandatory and confirmed.

A task for next week must not vanish in a socket buffer. The broker closes a channel when it refuses a message, and this
must not close the user's channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from amqp import Channel, Message
from amqp.exceptions import AMQPError, ChannelError, MessageNacked

from .. import upstream
from ..core.errors import NotRouted

#: Is called with None when the broker has stored a message, or else with the reason.
Answered = Callable[[Exception | None], None]

#: Does not wait for a confirm: a connection with `confirm_publish` has another method of this name on its channels.
publish = Channel.basic_publish


class NotStored(MessageNacked, AMQPError):  # type: ignore[misc]
    """The broker could not store a message. It is both py-amqp's error for this case and an `AMQPError`."""

    def __init__(self, reply_text: str = "RabbitMQ could not store the message: are most of its nodes up?") -> None:
        super().__init__(reply_text)
        self.args = (reply_text,)  # so that it can be pickled


class Outgoing(NamedTuple):
    """A message, and the exchange and routing key to publish it with."""

    message: Any  # an amqp.Message
    exchange: str
    key: str


def with_headers(message: Any, headers: Mapping[str, Any]) -> Message:
    """Return a copy of an `amqp.Message` with other headers. The user's objects do not change."""
    copy = Message(message.body)
    copy.properties = {**message.properties, "application_headers": headers}
    return copy


class ConfirmedChannel:
    """A channel, opened when needed, on which each message is mandatory and confirmed."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._channel: Any = None
        self._confirming: int | None = None  # the revivals of the channel when it was told to confirm
        self._delivery_tag = 0  # of the last published message; the broker counts in the same way
        #: By delivery tag: exchange and routing key, and the callback.
        self._unanswered: dict[int, tuple[tuple[str, str], Answered]] = {}
        #: By exchange and routing key: the reason why no queue took the message.
        self._returned: dict[tuple[str, str], str] = {}
        self._others: list[Any] = []

    def get_channel(self) -> Any:
        """Return the `amqp.Channel`, which also serves for declarations."""
        if self._channel is None:
            self._channel = upstream.open_channel(self._connection)
            self._channel.events["basic_return"].add(self._on_return)
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
        return self._channel

    @contextmanager
    def several(self, amount: int) -> Iterator[list[Any]]:
        """Open more channels for the block; yield `amount` channels, including this one, for declarations."""
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
        """Return whether an `amqp.Channel` is this one, or one that `several` has opened."""
        return channel is self._channel or channel in self._others

    def publish(
        self,
        message: Any,
        exchange: str,
        key: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> str | None:
        """Publish an `amqp.Message`; return None once the broker has stored it, or the reason why no queue took it.

        Raises `NotStored` if the broker cannot store it now, `TimeoutError`, and py-amqp's errors.
        """
        refused = {None: Outgoing(message, exchange, key)}
        with self._connection.exclusively(self, None):
            self.publish_all(refused, timeout, confirm_timeout)
        return self.refusal(exchange, key) if refused else None

    def refusal(self, exchange: str, key: str) -> str | None:
        """Return why no queue took a message that the last `publish_all` left. Raises the same errors as `publish`."""
        returned = self.returned(exchange, key)
        if returned is None:
            raise NotStored()
        return returned

    def returned(self, exchange: str, key: str) -> str | None:
        """Return why no queue took a message of the last `publish_all`; None if the broker did not return it."""
        return self._returned.get((exchange, key))

    def publish_all(
        self,
        messages: dict[Any, Outgoing],
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Send all messages before waiting for the broker's first answer. For a block of `Connection.exclusively`.

        Removes stored messages from `messages`, also if it raises. The messages that are left were refused.
        `timeout` limits the sending and `confirm_timeout` the wait for all answers; each is the default of the other.
        """
        with self._connection.within(timeout or confirm_timeout):
            channel = self._confirming_channel()
            for name, outgoing in list(messages.items()):
                self._publish(channel, outgoing, partial(_forget_stored, messages, name))
        with self._connection.within(confirm_timeout or timeout):
            while self._unanswered:
                self._connection.drain_events()

    def send(self, outgoing: Outgoing, answered: Answered) -> None:
        """Send a message without waiting for the broker's answer. For a block of `Connection.exclusively`.

        A later read of the connection calls `answered`, with `NotRouted` or `NotStored` if the message was refused.
        """
        self._publish(self._confirming_channel(), outgoing, answered)

    def _publish(self, channel: Any, outgoing: Outgoing, answered: Answered) -> None:
        message, exchange, key = outgoing
        self._delivery_tag += 1
        self._unanswered[self._delivery_tag] = (exchange, key), answered
        publish(channel, message, exchange, key, mandatory=True)

    def _confirming_channel(self) -> Any:
        channel = self._channel or self.get_channel()
        # Only now, because a declaration may close the channel, which py-amqp then reopens without confirms.
        if self._confirming != channel.revivals:
            channel.confirm_select(nowait=True)
            self._confirming = channel.revivals
            self._delivery_tag = 0
        if not self._unanswered:
            self._returned.clear()
        return channel

    def refuse_all(self, exc: Exception) -> None:
        """Call all waiting callbacks with the error that closed the channel, and reset this object."""
        unanswered = list(self._unanswered.values())
        self.reset()  # py-amqp has reopened the channel
        for _, answered in unanswered:
            answered(exc)

    def reset(self) -> None:
        """Close the channel; the next message opens a new one. Does not wait, because the broker may not answer."""
        channel, self._channel = self._channel, None
        self._confirming = None
        self._unanswered.clear()
        if channel is not None:
            channel.events.clear()  # answers after a time-out do not belong to the messages of the next channel
            with suppress(AMQPError, OSError):
                upstream.close_without_waiting(channel)

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        # The broker returns a message before it confirms it. Collect all returns first: a callback may publish again,
        # which clears them.
        answers = []
        for tag in self._tags(delivery_tag) if multiple else (delivery_tag,):
            sent_to, answered = self._unanswered.pop(tag)
            answers.append((answered, self._returned.get(sent_to)))
        for answered, reason in answers:
            answered(None if reason is None else NotRouted(f"no level of the cascade accepted the message: {reason}"))

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        refused = [self._unanswered.pop(tag) for tag in (self._tags(delivery_tag) if multiple else [delivery_tag])]
        for _, answered in refused:
            answered(NotStored())

    def _tags(self, last: int) -> list[int]:
        """Return the tags of all messages that wait for an answer, up to the last one."""
        return list(takewhile(last.__ge__, self._unanswered))

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[exchange, key] = str(exc.reply_text)


def _forget_stored(messages: dict[Any, Any], name: Any, refusal: Exception | None) -> None:
    if refusal is None:
        del messages[name]

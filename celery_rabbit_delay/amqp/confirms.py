"""A channel of its own for delayed messages: mandatory and confirmed.

A task for next week must not vanish in a socket buffer, and a refusal by the broker, which closes the channel it was
refused on, must not take the user's channel along.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import takewhile
from typing import Any

from amqp.exceptions import AMQPError, ChannelError, MessageNacked

from .. import upstream

logger = logging.getLogger(__name__)


class ConfirmedChannel:
    """A channel, opened when needed, on which each message is mandatory and, with `confirm`, confirmed."""

    def __init__(self, connection: Any, confirm: bool = True) -> None:
        self._connection = connection
        self._confirm = confirm
        self._channel: Any = None
        self._confirming = False
        self._delivery_tag = 0  # of the last message published; the broker counts along
        self._unanswered: dict[int, Any] = {}  # delivery tag -> name of the message
        self._messages: dict[Any, tuple[Any, str]] = {}
        self._returned: dict[str, str] = {}  # routing key -> why no queue took it

    def get_channel(self) -> Any:
        """Return the `amqp.Channel`, for declaring as well."""
        if self._channel is None:
            self._channel = self._connection.channel()
            self._channel.events["basic_return"].add(self._on_return)
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
        return self._channel

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

        Raises `amqp.exceptions.MessageNacked` when the broker cannot store it now, and what else py-amqp raises.
        """
        refused = {None: (message, key)}
        self.publish_all(refused, exchange, timeout, confirm_timeout)
        return self.refusal(key) if refused else None

    def refusal(self, key: str) -> str | None:
        """Return why no queue took a message of the last call that was left. Raises as `publish`."""
        returned = self.returned(key)
        if returned is None:
            raise MessageNacked("RabbitMQ could not store the message: are most of its nodes up?")
        return returned

    def returned(self, key: str) -> str | None:
        """Return why no queue took a message with a routing key, of the last call; None if it was not returned."""
        return self._returned.get(key)

    def publish_all(
        self,
        messages: dict[Any, tuple[Any, str]],
        exchange: str,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
    ) -> None:
        """Send all `amqp.Message`s, each with its routing key, before waiting for the broker's first answer.

        Removes those from `messages` that are stored, also if it raises. What is left in the end was refused.
        """
        channel = self.get_channel()
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
            upstream.publish_unconfirmed(
                channel, message, exchange=exchange, routing_key=key, mandatory=True, timeout=timeout
            )
        if not self._confirm:
            messages.clear()
        while self._unanswered:
            self._connection.drain_events(timeout=confirm_timeout or timeout)

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
        for name in self._answered(delivery_tag, multiple):
            if self._messages[name][1] not in self._returned:  # a return comes before the answer
                del self._messages[name]

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        self._answered(delivery_tag, multiple)

    def _answered(self, delivery_tag: int, multiple: bool) -> list[Any]:
        """Return the names of the messages that an answer is about; a `multiple` one is about all up to the tag."""
        tags = list(takewhile(delivery_tag.__ge__, self._unanswered)) if multiple else [delivery_tag]
        return [self._unanswered.pop(tag) for tag in tags]

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[key] = str(exc.reply_text)
        if not self._confirm:  # nobody waits for it
            what = "a delayed message, it" if message.headers else "the record of a delayed message, which"
            logger.error("RabbitMQ returned %s is lost: %s, %r", what, exc.reply_text, message.headers)

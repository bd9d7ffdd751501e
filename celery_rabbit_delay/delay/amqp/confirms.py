"""Channels of our own for delayed messages, which are mandatory and confirmed.

A task for next week must not vanish in a socket buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

from amqp import Message, spec
from amqp.exceptions import AMQPError, ChannelError, MessageNacked

from ... import upstream
from ..core.errors import DelayError, NotRouted
from .limited import LimitedConnection

#: What the broker answers. After anything else nobody knows what was sent, and what will come.
ANSWERS = (ChannelError, MessageNacked, DelayError)


class NotStored(MessageNacked, AMQPError):  # type: ignore[misc]
    """The broker could not store a message. It is both py-amqp's error for this case and an `AMQPError`."""

    def __init__(self, reply_text: str = "RabbitMQ could not store the message: are most of its nodes up?") -> None:
        super().__init__(reply_text)
        self.args = (reply_text,)  # so that it can be pickled


class Outgoing(NamedTuple):
    """A message, and the exchange and routing key to publish it with."""

    message: Message
    exchange: str
    key: str


class Confirm:
    """The broker's answer to a message, once it comes."""

    def __init__(self, target: tuple[str, str], answered: Callable[[Exception | None], None] | None) -> None:
        self.target = target  # exchange and routing key
        self.is_answered = False
        #: Why the message is not stored: `NotRouted`, `NotStored`, or the error with which the channel was closed.
        self.refusal: Exception | None = None
        self._answered = answered

    def answer(self, refusal: Exception | None) -> None:
        self.is_answered, self.refusal = True, refusal
        if self._answered is not None:
            self._answered(refusal)


class _Final(Message):  # type: ignore[misc]
    """A message that does not change once it is sent: its record, which is made then, needs the same bytes."""

    _serialized: bytes | None = None

    def _serialize_properties(self) -> bytes:
        if self._serialized is None:
            self._serialized = super()._serialize_properties()
        return self._serialized


def with_headers(message: Any, headers: Mapping[str, Any]) -> Message:
    """Return a copy of an `amqp.Message` with other headers. The user's objects do not change."""
    copy = _Final(message.body)
    copy.properties = {**message.properties, "application_headers": headers}
    return copy


class ConfirmedChannel:
    """Two channels, opened when needed: one for declarations, and one on which messages are mandatory and confirmed.

    The broker closes a channel when it refuses a declaration, and the answers to messages would be lost with it.
    """

    def __init__(self, connection: LimitedConnection) -> None:
        self._connection = connection
        self._declaring: Any = None
        self._confirming: Any = None
        self._delivery_tag = 0  # of the last published message; the broker counts in the same way
        self._unanswered: dict[int, Confirm] = {}  # by delivery tag
        #: By exchange and routing key: why no queue took a message, and the last delivery tag for which that is true.
        self._returned: dict[tuple[str, str], tuple[str, int]] = {}

    def get_channel(self) -> Any:
        """Return the `amqp.Channel` for declarations."""
        if self._declaring is None:
            self._declaring = self._connection.channel()
        return self._declaring

    @property
    def server_version(self) -> tuple[int, ...]:
        version: tuple[int, ...] = self._connection.server_version
        return version

    @contextmanager
    def several(self, amount: int) -> Iterator[list[Any]]:
        """Open more channels for the block; yield `amount` channels, including this one, for declarations.

        After an error all are closed: the broker may be about to refuse what was asked for on the others, too.
        """
        others = [self._connection.channel() for _ in range(amount - 1)]
        try:
            yield [self.get_channel(), *others]
        except BaseException:
            others += filter(None, [self._declaring])
            self._declaring = None
            raise
        finally:
            for channel in others:
                with suppress(AMQPError, OSError):
                    upstream.close_without_waiting(channel)

    @property
    def unanswered(self) -> int:
        """The number of messages that the broker has not answered yet."""
        return len(self._unanswered)

    def send(self, outgoing: Outgoing, answered: Callable[[Exception | None], None] | None = None) -> Confirm:
        """Send a message. A later read of the connection notes the answer, and calls `answered` with the refusal."""
        message, exchange, key = outgoing
        channel = self._confirming or self._open()
        confirm = Confirm((exchange, key), answered)
        self._delivery_tag += 1
        self._unanswered[self._delivery_tag] = confirm
        channel.send_method(spec.Basic.Publish, "Bssbb", (0, exchange, key, True, False), message)
        return confirm

    def wait(self, confirm: Confirm) -> None:
        """Wait for the answer to a message. Raises `NotRouted`, `NotStored`, `ChannelError`, as the connection does."""
        while not confirm.is_answered:
            self._connection.drain_events()
        if confirm.refusal is not None:
            raise confirm.refusal

    def publish(self, message: Message, exchange: str, key: str) -> str | None:
        """Publish a message; return None once the broker has stored it, or the reason why no queue took it.

        Raises `NotStored` if the broker cannot store it now, and the errors of the connection.
        """
        try:
            self.wait(self.send(Outgoing(message, exchange, key)))
        except NotRouted as exc:
            return str(exc)
        return None

    def refuse_all(self, exc: Exception) -> None:
        """Answer all messages with an error, and close the channels without waiting for the broker."""
        unanswered = list(self._unanswered.values())
        self.reset()
        for confirm in unanswered:
            confirm.answer(exc)

    def reset(self) -> None:
        """Close the channels; the next message opens new ones. Does not wait, because the broker may not answer."""
        channels, self._declaring, self._confirming = [self._declaring, self._confirming], None, None
        self._unanswered.clear()
        self._returned.clear()  # the next channel counts from 1 again
        for channel in filter(None, channels):
            with suppress(AMQPError, OSError):
                upstream.close_without_waiting(channel)

    def _open(self) -> Any:
        channel = self._connection.channel()
        channel.events["basic_return"].add(self._on_return)
        channel.events["basic_ack"].add(self._on_answer)
        channel.events["basic_nack"].add(partial(self._on_answer, is_stored=False))
        upstream.on_refused(channel, self.refuse_all)
        channel.confirm_select(nowait=True)
        self._delivery_tag = 0
        self._confirming = channel
        return channel

    def _on_answer(self, last: int, multiple: bool, is_stored: bool = True) -> None:
        for tag in list(takewhile(last.__ge__, self._unanswered)) if multiple else [last]:
            confirm = self._unanswered.pop(tag, None)
            if confirm is None:
                continue
            # The broker returns a message before it confirms it.
            reason, last_returned = self._returned.get(confirm.target, ("", 0))
            refusal = None if is_stored else NotStored()
            confirm.answer(NotRouted(reason) if is_stored and tag <= last_returned else refusal)
        if not self._unanswered:
            self._returned.clear()

    def _on_return(self, exc: ChannelError, exchange: str, key: str, message: Any) -> None:
        self._returned[exchange, key] = str(exc.reply_text), self._delivery_tag

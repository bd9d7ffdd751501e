"""Follows a stream on a connection of our own, beside that of a consumer.

RabbitMQ may stop sending a stream without a word, while the connection stays and all else on it goes on: a node that
was cut off from the others for a moment forgets the consumers of streams on it, as soon as its replica of the stream
has started again (rabbit_stream_coordinator: `down` with `noconnection` removes a listener, and nothing adds it again).
So whoever relies on a stream renews the subscription now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import upstream
from ..core.topology import Stream
from .limited import LimitedConnection
from .stream_reader import StreamMessage, consume, message_of

#: What says that a task is cancelled must not wait until a busy consumer acknowledges what came before it, for the task
#: itself may be there already. More do not fit into the buffers of a socket, and RabbitMQ closes a connection that
#: takes nothing for 15 s.
_PREFETCH = 10_000

#: Seconds without a message after which all that a stream holds has come, and the most seconds to wait for that.
_QUIET, _BUSY = 0.01, 1


class Subscription:
    """Makes reads of an `amqp.Connection` call back for each message of a stream behind an offset.

    `on_end` is called if RabbitMQ ends the consumer, because the stream is deleted, or its node goes down.
    """

    def __init__(
        self,
        connection: LimitedConnection,
        stream: Stream,
        last: int,
        callback: Callable[[StreamMessage], None],
        on_end: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._last = last  # the offset of the last message that is known
        self._callback = callback
        self._on_end = on_end
        self._channel: Any = None
        self._begin()

    def _begin(self) -> None:
        """Consume from the last message on: it comes again, which shows that the stream is being sent."""
        channel = self._channel = self._connection.channel()
        self._is_sent = False
        before = -1

        def on_message(message: Any) -> None:
            nonlocal before
            if channel is not self._channel:  # it was on its way when that was closed: no method may follow
                return
            channel.basic_ack(message.delivery_tag)
            one = message_of(message, before)
            before, self._is_sent = one.offset, True
            if one.offset > self._last:
                self._last = one.offset
                self._callback(one)

        def on_cancel(consumer_tag: str) -> None:
            self.close()
            self._on_end()

        consume(channel, self._stream, max(self._last, 0), on_message, _PREFETCH, on_cancel)

    def close(self) -> None:
        """End the subscription. Does not wait for the broker."""
        channel, self._channel = self._channel, None
        if channel is not None:
            upstream.close_without_waiting(channel)

    def renew(self, seconds: float) -> None:
        """Consume anew, and call back for what came meanwhile.

        Raises `StreamUnavailable`, `TimeoutError` if nothing comes for so many seconds, and py-amqp's errors.
        """
        connection = self._connection
        self.close()
        with connection.within(seconds):
            self._begin()
            while not self._is_sent:
                connection.drain_events()
        with connection.within(_BUSY), suppress(TimeoutError):
            while True:
                connection.drain_events(_QUIET)

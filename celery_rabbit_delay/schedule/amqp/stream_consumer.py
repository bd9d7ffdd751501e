"""Consumes streams from given places on, over an AMQP connection of its own, and again when RabbitMQ falls silent.

RabbitMQ may stop sending a stream without a word, while the connection stays and all else on it goes on: a node that
was cut off from the others for a moment forgets the consumers of streams on it, as soon as its replica of the stream
has started again (rabbit_stream_coordinator: `down` with `noconnection` removes a listener, and nothing adds it again).
So streams are consumed anew now and then.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import kombu
from amqp import spec
from amqp.exceptions import ConsumerCancelled, NotFound, PreconditionFailed

from ... import upstream
from ...delay.amqp import declare
from ...delay.amqp.connecting import copy_of
from ...delay.amqp.limited import LimitedConnection
from ...delay.core.options import Options
from ...delay.core.topology import Stream
from ...operate.broker_connection import abandon, ensure_connection
from ..core.errors import StreamUnavailable

#: The prefetch count, in messages of at most 100 records each.
PREFETCH = 500

#: Seconds without an answer after which a stream counts as unavailable, and for which one that exists is waited for,
#: because a starting broker restores streams last; at most the option `confirm_timeout`.
PATIENCE = 20

#: Seconds without a message after which the last chunks of a stream that is consumed anew have come.
_QUIET = 0.01

#: The most seconds for which a worker's event loop waits for a stream: for an answer, or that nothing more comes.
BUSY = 2

#: Seconds without a message after which a stream is consumed anew.
RENEWAL = 5


class StreamMessage(NamedTuple):
    """A message of a stream, with the stream's name and its offset."""

    stream: str
    offset: int
    body: bytes


class Place(NamedTuple):
    """The last message of a stream that was read. Reading continues after it."""

    offset: int
    digest: bytes  # detects that the stream was deleted and created again; b"": unknown

    @classmethod
    def of(cls, one: StreamMessage) -> Place:
        return cls(one.offset, hashlib.blake2b(one.body, digest_size=8).digest())


class StreamReplaced(StreamUnavailable):
    """A stream was deleted, and perhaps created again, since its last message was read."""


@dataclass
class _Followed:
    """A stream that is consumed on a channel of its own."""

    stream: Stream
    place: Place | None  # where it began
    channel: Any = None
    tag: str = ""
    last: StreamMessage | None = None  # that came after the place
    heard: float = 0.0  # when the last message came (`time.monotonic`): that at the place comes first

    @property
    def reached(self) -> Place | None:
        return self.place if self.last is None else Place.of(self.last)


Self = TypeVar("Self", bound="StreamConsumer")


class StreamConsumer:
    """Consumes streams of a `kombu.Connection`'s cascade over an AMQP connection of its own."""

    def __init__(self, client: kombu.Connection, prefetch: int = PREFETCH) -> None:
        """RabbitMQ sends `prefetch` messages of each stream ahead."""
        self._client = client
        self._prefetch = prefetch
        self.options: Options = client.transport.delay_options
        self._most = math.inf if self.options.confirm_timeout is None else self.options.confirm_timeout
        self._connection: kombu.Connection | None = None
        self._followed: dict[str, _Followed] = {}
        self._arrived: deque[StreamMessage] = deque()
        self._unacknowledged: dict[Any, int] = {}  # the last delivery tag, by channel
        self._returned: StreamMessage | None = None  # by `receive`
        self._done: dict[str, StreamMessage] = {}  # the last one of each stream that was returned before
        self._renewed = time.monotonic()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and wait for nothing. A stream that is read again is read from where it was left."""
        connection, self._connection = self._connection, None
        self._followed, self._unacknowledged, self._returned = {}, {}, None
        self._arrived.clear()
        if connection is not None:
            abandon(connection)

    @property
    def streams(self) -> Collection[str]:
        """The names of the streams that are followed."""
        return self._followed.keys()

    def forget(self, stream: Stream) -> None:
        """Read a stream from its beginning the next time."""
        self._done.pop(stream.name, None)

    def _limit(self, silence: float | None = None) -> float:
        """Return for how many seconds to wait for an answer."""
        return min(PATIENCE if silence is None else silence, self._most)

    def _connect(self) -> LimitedConnection:
        if self._connection is None:
            self._connection = copy_of(self._client, "follower")
            ensure_connection(self._connection)
        connection: LimitedConnection = self._connection.connection
        return connection

    def receive(self, seconds: float = 0) -> StreamMessage | None:
        """Return the next message of the streams that are followed; None if none comes for some seconds.

        Whoever asks is done with the message before. Raises `StreamUnavailable`, `StreamReplaced`, and py-amqp's
        errors, also if RabbitMQ ends a consumer because its stream is deleted, or the node with it goes down.
        """
        self._note_returned()
        connection = self._connect()
        if time.monotonic() >= self._renewed + RENEWAL:
            self._renew(connection)
        try:
            with connection.within(seconds or None):
                while not self._arrived:
                    connection.drain_events(None if seconds else 0)
        except TimeoutError:
            self._acknowledge()
            return None
        self._returned = self._arrived.popleft()
        return self._returned

    def _renew(self, connection: LimitedConnection) -> None:
        """Consume what has sent nothing of late anew, and wait for what has come meanwhile.

        The message at a place comes again, and all that is new with it. Raises `StreamUnavailable`, `TimeoutError` if a
        stream has ended, and py-amqp's errors.
        """
        self._renewed = now = time.monotonic()
        with connection.within(BUSY):
            silent = [self._begin_again(one) for one in list(self._followed.values()) if one.heard <= now - RENEWAL]
            connection.wait_until(lambda: all(one.heard for one in silent if one.place))
        with connection.within(BUSY), suppress(TimeoutError):
            while silent:
                connection.drain_events(_QUIET)

    def _note_returned(self) -> None:
        if self._returned is not None:
            self._done[self._returned.stream], self._returned = self._returned, None

    def _stop(self, stream: Stream) -> None:
        """Follow a stream no more. What has come meanwhile stays there for `receive`."""
        if followed := self._followed.pop(stream.name, None):
            with self._connect().within(self._limit()):
                followed.channel.basic_cancel(followed.tag)
            self._unacknowledged.pop(followed.channel, None)
            upstream.close_without_waiting(followed.channel)

    def _begin_again(self, followed: _Followed) -> _Followed:
        self._stop(followed.stream)
        return self._begin(followed.stream, followed.reached)

    def _begin(self, stream: Stream, place: Place | None) -> _Followed:
        """Consume a stream after a place, instead of its present consumer. Raises `StreamUnavailable`."""
        self._stop(stream)
        followed = _Followed(stream, place)

        def on_message(offset: int | None, body: bytes) -> None:
            followed.heard = time.monotonic()
            if place is not None and (offset is None or offset <= place.offset):  # RabbitMQ sends whole chunks
                if offset == place.offset and place.digest and Place.of(StreamMessage("", offset, body)) != place:
                    self.forget(stream)
                    raise StreamReplaced(f"the stream {stream.name!r} was deleted and created again")
                return  # if there is none at the place, it was too old and RabbitMQ has deleted it
            followed.last = StreamMessage(stream.name, offset or 0, body)
            self._arrived.append(followed.last)

        with declare.translate_errors(self.options.cascade):
            offset = "first" if place is None else max(place.offset, 0)
            followed.channel, followed.tag = self._consume(stream, offset, on_message)
        self._followed[stream.name] = followed
        return followed

    def _consume(
        self, stream: Stream, offset: int | str, callback: Callable[[int | None, bytes], object]
    ) -> tuple[Any, str]:
        """Consume a stream from an offset on; return the channel and the consumer's tag. Raises `StreamUnavailable`.

        A message that does not say its offset is the one after that before it.
        """
        channel = self._connect().channel()
        last = -1 if offset == "first" else None

        def on_message(message: Any) -> None:
            nonlocal last
            self._unacknowledged[channel] = message.delivery_tag
            if message.delivery_tag % max(self._prefetch // 4, 1) == 0:
                self._acknowledge()
            last = (message.headers or {}).get("x-stream-offset", None if last is None else last + 1)
            callback(last, bytes(message.body or b""))  # an empty body is ""

        def on_cancel(tag: str) -> None:
            self._done.clear()  # whoever deletes a stream may delete others
            raise ConsumerCancelled(tag, spec.Basic.Cancel)

        channel.auto_decode = False  # or py-amqp decodes bodies as their senders say
        channel.basic_qos(0, self._prefetch, False)
        arguments = {"x-stream-offset": offset}
        try:
            tag: str = channel.basic_consume(stream.name, callback=on_message, arguments=arguments, on_cancel=on_cancel)
        except (NotFound, PreconditionFailed) as exc:  # a node that has just started has no running replica
            raise StreamUnavailable(exc.reply_text) from exc
        return channel, tag

    def _acknowledge(self) -> None:
        """Acknowledge received messages: otherwise RabbitMQ closes the channel after half an hour.

        See https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
        """
        while self._unacknowledged:
            channel, tag = self._unacknowledged.popitem()
            channel.basic_ack(tag, multiple=True)

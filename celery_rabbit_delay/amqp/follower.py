"""Follows the streams beside a cascade: what they hold, and then what comes.

Reading writes nothing, and needs no permission but to read. It finds what was confirmed before as far as the node that
it is connected to has it. Who must know all of it, such as a worker that starts, has a marker published, and reads on
until that comes.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import Message, spec
from amqp.exceptions import AMQPError, ConsumerCancelled, NotFound, PreconditionFailed
from kombu.exceptions import OperationalError

from .. import upstream
from ..core import streams
from ..core.errors import StreamUnavailable
from ..core.options import Options
from ..core.topology import Stream
from . import declare
from .confirms import ConfirmedChannel
from .connecting import abandon, copy_of, ensure_connection, is_lost
from .create import ensure_stream
from .limited import NO_ANSWER, LimitedConnection
from .unreadable import take_anything

#: The prefetch count, in messages of at most 100 records each.
_PREFETCH = 500

#: Seconds: for which a stream that exists is waited for, because a starting broker restores streams last; and without
#: an answer after which it counts as unavailable. Both are at most the option `confirm_timeout`.
PATIENCE, SILENCE = 15, 20

#: Seconds without a message after which the last chunks of streams have come, the same where the broker counts no
#: message in a stream, which it does up to 5 s after the first one, and the most seconds to wait for such a moment.
_QUIET, _COUNTED, _BUSY = 0.1, 1, 2

#: The same after a stream that was followed is consumed anew.
_QUIET_AGAIN, _BUSY_AGAIN = 0.01, 1

#: Seconds without a message after which a stream is consumed anew.
RENEWAL = 30


class StreamMessage(NamedTuple):
    """A message of a stream, with the stream's name and its offset."""

    stream: str
    offset: int
    body: bytes


class Extent(NamedTuple):
    """What a stream holds now."""

    messages: int  # their number, up to 5 s late
    last: int | None  # the offset of its last message, -1 for none; None if that message does not say


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
    is_sent: bool = False  # any message came of late: that at the place comes first

    @property
    def reached(self) -> Place | None:
        return self.place if self.last is None else Place.of(self.last)


class Follower:
    """Follows streams of a `kombu.Connection`'s cascade over an AMQP connection of its own."""

    def __init__(self, client: kombu.Connection, prefetch: int = _PREFETCH) -> None:
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
        #: The offset of the last message of each stream, by its name, when following it from a place began.
        self.ends: dict[str, int] = {}

    def __enter__(self) -> Follower:
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

    def _limit(self, silence: float | None = None) -> float:
        """Return for how many seconds to wait for an answer."""
        return min(SILENCE if silence is None else silence, self._most)

    def _connect(self) -> LimitedConnection:
        if self._connection is None:
            self._connection = copy_of(self._client, "follower")
            ensure_connection(self._connection)
        connection: LimitedConnection = self._connection.connection
        return connection

    # What streams hold now.

    def extents(self, wanted: Iterable[Stream]) -> dict[Stream, Extent]:
        """Return what those of some streams hold that exist.

        Raises `StreamUnavailable`, `NotPermitted`, `UnsupportedConfiguration` without streams; without a connection
        `kombu.exceptions.OperationalError`.
        """
        stream, *others = wanted
        [found] = self._with_retries(stream, lambda: iter([self._extents([stream, *others])]), PATIENCE)
        return dict(found)

    def read(self, stream: Stream, extent: Extent | None = None) -> Iterator[StreamMessage]:
        """Yield the messages that a stream holds now, the oldest first; nothing if it does not exist.

        `extent` is what `extents` has found, if known. Raises as that.
        """
        extent = extent or self.extents([stream]).get(stream)
        if extent is None or extent.last == -1:
            return
        end = extent.last
        self.forget(stream)

        def attempt() -> Iterator[StreamMessage]:
            known = self._done.get(stream.name)
            if end is None or known is None or known.offset < end:  # or the error came after the last message
                is_last = None if end is None else lambda one: one.offset >= end
                yield from self._until(stream, is_last, self._limit())
            self._stop(stream)
            self._arrived.clear()

        yield from self._with_retries(stream, attempt, PATIENCE)

    def catch_up(
        self,
        stream: Stream,
        create: bool = False,
        options: Options | None = None,
        patience: float = PATIENCE,
        silence: float | None = None,
    ) -> Iterator[StreamMessage]:
        """Yield what a stream holds up to a marker that this publishes, and follow the stream from then on.

        Among it is what comes of the other streams that are followed. If the stream is missing, `create` it, or yield
        nothing. `options`: of the stream's cascade. `silence`: seconds to wait for an answer, by default `SILENCE`.
        Raises as `extents`, and `CascadeMissing`.
        """

        def attempt() -> Iterator[StreamMessage]:
            marker = streams.marker()
            if self._mark(stream, marker, create, options or self.options, self._limit(silence)):
                yield from self._until(stream, lambda one: one.body == marker, self._limit(silence))

        yield from self._with_retries(stream, attempt, patience)

    def at(self, stream: Stream, offset: int) -> StreamMessage | None:
        """Return the message at an offset of a stream; None if it is no longer there. Raises as `extents`."""
        self._begin(stream, Place(offset - 1, b""))
        while (message := self.receive(self._limit())) is not None and message.offset < offset:
            pass
        self._stop(stream)
        return message if message is not None and message.offset == offset else None

    def forget(self, stream: Stream) -> None:
        """Read a stream from its beginning the next time."""
        self._done.pop(stream.name, None)

    def _until(
        self, stream: Stream, is_last: Callable[[StreamMessage], bool] | None, silence: float
    ) -> Iterator[StreamMessage]:
        """Follow a stream after what was read, and yield what comes up to a last message, or until nothing comes."""
        done = self._done.get(stream.name)
        self._begin(stream, None if done is None else Place.of(done))
        seconds = silence if is_last else _COUNTED
        came = time.monotonic()
        while (message := self.receive(seconds)) is not None and time.monotonic() < came + seconds:
            is_its_own = message.stream == stream.name
            yield message
            if is_its_own:
                came = time.monotonic()
                if is_last and is_last(message):
                    self._note_returned()
                    return
        if is_last:
            raise TimeoutError(NO_ANSWER)

    def _with_retries(self, stream: Stream, attempt: Callable[[], Iterator[Any]], patience: float) -> Iterator[Any]:
        """Yield what an attempt yields; begin another one after an error, for some time since the last that worked."""
        self.options.require_streams()
        deadline: float | None = None
        while True:
            deadline = deadline or time.monotonic() + min(patience, self._most)
            try:
                for one in attempt():
                    deadline = None  # it works: whatever fails from here on is another failure
                    yield one
                return
            except (AMQPError, OSError, StreamUnavailable, OperationalError) as exc:
                self.close()
                is_over = time.monotonic() > (deadline or math.inf)
                if is_over and not isinstance(exc, StreamReplaced):  # that one is read from its beginning
                    if isinstance(exc, OperationalError):  # there is no connection, which says nothing of the stream
                        raise
                    raise StreamUnavailable(
                        f"the stream {stream.name!r} cannot be read ({exc}): {_advice(exc)}"
                    ) from exc
                time.sleep(0.2)

    def _extents(self, wanted: Iterable[Stream]) -> dict[Stream, Extent]:
        connection = self._connect()
        lasts: dict[Stream, int | None] = {}

        def note(stream: Stream, offset: int | None, body: bytes) -> None:
            lasts[stream] = offset

        with connection.within(self._limit()), declare.translate_errors(self.options.cascade):
            channel = connection.channel()
            counts = {stream: count for stream in wanted if (count := _count(channel, stream)) is not None}
            for stream in counts:
                # The last chunk comes at once, with what was confirmed before in it.
                self._consume(stream, "last", partial(note, stream))
            while any(count and stream not in lasts for stream, count in counts.items()):
                connection.drain_events()
        with suppress(TimeoutError), connection.within(_BUSY):
            while True:
                with connection.within(_QUIET if counts.keys() <= lasts.keys() else _COUNTED):
                    connection.drain_events()
        self.close()
        return {stream: Extent(count, lasts.get(stream, -1)) for stream, count in counts.items()}

    def _mark(self, stream: Stream, marker: bytes, create: bool, options: Options, silence: float) -> bool:
        """Put a marker at the end of a stream, which is created if it is wanted; return whether the stream exists.

        On another connection, because an alarm blocks one that publishes, also what it reads; and a broker without
        streams closes one that creates them.
        """
        client, cascade = copy_of(self._client, "follower"), options.cascade
        try:
            ensure_connection(client)
            channel = ConfirmedChannel(client.connection)
            with client.connection.within(silence), declare.translate_errors(cascade):
                for _ in range(2):
                    try:
                        message = Message(marker, delivery_mode=2)
                        if channel.publish(message, cascade.ingest, stream.routing_key) is None:
                            return True
                    except NotFound:  # ingest
                        channel.reset()
                    if not create and _count(channel.get_channel(), stream) is None:
                        return False
                    ensure_stream(channel, options, cascade, stream)
        finally:
            abandon(client)
        raise StreamUnavailable("nothing leads to it from ingest")

    # What comes.

    def follow(self, places: Mapping[Stream, Place | None]) -> list[Stream]:
        """Make `receive` return the messages of some streams, or only those after a place.

        Returns the streams that do not exist. Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`.
        """
        with Follower(self._client) as reader:
            extents = reader.extents(places) if places else {}
        for stream, place in places.items():
            reached = -1 if place is None else place.offset
            last = extents[stream].last if stream in extents else -1
            last = reached if last is None else last
            if last < reached:
                raise StreamReplaced(f"the stream {stream.name!r} was deleted")
            if stream in extents:
                self.ends[stream.name] = last
                self._begin(stream, place)
        return [stream for stream in places if stream not in extents]

    def receive(self, seconds: float = 0) -> StreamMessage | None:
        """Return the next message of the streams that are followed; None if none comes for some seconds.

        Whoever asks is done with the message before. Raises `StreamUnavailable`, `StreamReplaced`, and py-amqp's
        errors, also if RabbitMQ ends a consumer because its stream is deleted, or the node with it goes down.
        """
        self._note_returned()
        connection = self._connect()
        if seconds and time.monotonic() > self._renewed + RENEWAL:
            self._renewed = time.monotonic()
            for followed in list(self._followed.values()):
                if not followed.is_sent:
                    self._begin_again(followed)
                followed.is_sent = False
        try:
            with connection.within(seconds or None):
                while not self._arrived:
                    connection.drain_events(None if seconds else 0)
        except TimeoutError:
            self._acknowledge()
            return None
        self._returned = self._arrived.popleft()
        return self._returned

    def renew(self, stream: Stream, seconds: float) -> None:
        """Consume a stream anew that is followed and has messages, and wait for what has come meanwhile.

        Raises `StreamUnavailable`, `TimeoutError` if nothing comes for so many seconds, and py-amqp's errors.
        """
        connection = self._connect()
        with connection.within(seconds):
            followed = self._begin_again(self._followed[stream.name])
            while not followed.is_sent:
                connection.drain_events()
        with connection.within(_BUSY_AGAIN), suppress(TimeoutError):
            while True:
                connection.drain_events(_QUIET_AGAIN)

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
            followed.is_sent = True
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

        take_anything(channel)
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


def _count(channel: Any, stream: Stream) -> int | None:
    """Return the number of messages in a stream; None if it does not exist. Raises `StreamUnavailable`."""
    try:
        return int(declare.passive_declare_queue(channel, stream.name).message_count)
    except NotFound as exc:
        if "no queue" in exc.reply_text:
            return None
        raise StreamUnavailable(exc.reply_text) from exc


def _advice(exc: Exception) -> str:
    """Return what to do about a stream that cannot be read."""
    if is_lost(exc):
        return "the connection is lost again and again: the log of RabbitMQ says why"
    if isinstance(exc, TimeoutError):  # an alarm lets no marker in, and says nothing of the stream
        return "start the nodes that it is on, and wait until no memory or disk alarm blocks publishers"
    return (
        "start the nodes that it is on. If that does not help, its data is lost, because a node was killed just after "
        "the stream was created: delete it, and it is created again when needed"
    )

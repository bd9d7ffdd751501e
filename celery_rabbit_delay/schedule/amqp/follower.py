"""Follows the streams beside a cascade: what they hold, and then what comes.

Reading writes nothing, and needs no permission but to read. It finds what was confirmed before as far as the node that
it is connected to has it, which is some milliseconds behind the others at most, and what it has not comes afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp.exceptions import AccessRefused, AMQPError, NotAllowed, NotFound
from kombu.exceptions import OperationalError

from ...delay.amqp import declare
from ...delay.amqp.connecting import Patience
from ...delay.amqp.limited import NO_ANSWER, PAUSE
from ...delay.core.topology import Stream
from ...operate.broker_connection import is_lost
from ..core import streams
from ..core.errors import StreamUnavailable
from .stream_consumer import BUSY, PATIENCE, PREFETCH, Place, StreamConsumer, StreamMessage, StreamReplaced

#: Seconds without a message after which the last chunks of streams have come, the same where the broker counts no
#: message in a stream, which it does up to 5 s after the first one.
_QUIET, _COUNTED = 0.1, 1


class Extent(NamedTuple):
    """What a stream holds now."""

    messages: int  # their number, up to 5 s late
    last: int | None  # the offset of its last message, -1 for none; None if that message does not say


class Follower(StreamConsumer):
    """Follows streams of a `kombu.Connection`'s cascade over an AMQP connection of its own."""

    def __init__(self, client: kombu.Connection, prefetch: int = PREFETCH) -> None:
        super().__init__(client, prefetch)
        #: The offset of the last message of each stream, by its name, when following it from a place began.
        self.ends: dict[str, int] = {}
        self._lacking: dict[Stream, Place | None] = {}  # that are to be followed, and do not exist yet
        self._looked, self._pause = -math.inf, PAUSE

    def extents(self, wanted: Iterable[Stream], patience: float | None = None) -> dict[Stream, Extent]:
        """Return what those of some streams hold that exist.

        Raises `StreamUnavailable`, `NotPermitted`, `UnsupportedConfiguration` without streams; without a connection
        `kombu.exceptions.OperationalError`.
        """
        stream, *others = wanted
        [found] = self._with_retries(
            stream, lambda: iter([self._extents([stream, *others])]), PATIENCE if patience is None else patience
        )
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
                yield from self._until(stream, end, self._limit())
            self._stop(stream)
            self._arrived.clear()

        yield from self._with_retries(stream, attempt, PATIENCE)

    def catch_up(
        self, stream: Stream, patience: float = PATIENCE, silence: float | None = None
    ) -> Iterator[StreamMessage]:
        """Yield what a stream holds now, and follow it from then on; neither if it does not exist.

        It is one that begins with a message, as that of changes does, for which this waits. Among what comes is that of
        the other streams that are followed. `silence`: seconds to wait for an answer, by default `PATIENCE`.
        Raises as `extents`.
        """

        def attempt() -> Iterator[StreamMessage]:
            with Follower(self._client) as reader:
                extent = reader._extents([stream], silence, has_messages=True).get(stream)
            if extent is None:
                return
            end, done = extent.last, self._done.get(stream.name)
            reached = done.offset if done else -1
            if end == reached:
                self._begin(stream, done and Place.of(done))
                return
            if end is not None and end < reached:
                self.forget(stream)
                raise StreamReplaced(f"the stream {stream.name!r} was deleted and created again")
            yield from self._until(stream, end, self._limit(silence))

        yield from self._with_retries(stream, attempt, patience)

    def at(self, stream: Stream, offset: int) -> StreamMessage | None:
        """Return the message at an offset of a stream; None if it is no longer there. Raises as `between`."""
        with suppress(TimeoutError):
            return next(iter([*self.between(stream, offset, offset)]), None)
        return None

    def between(self, stream: Stream, first: int, last: int) -> Iterator[StreamMessage]:
        """Yield what a stream still has from an offset to another one, which it has had. Raises as `extents`."""
        self._begin(stream, Place(first - 1, b""))
        offset = -1
        while offset < last:
            message = self.receive(self._limit())
            if message is None:
                raise TimeoutError(NO_ANSWER)
            offset = message.offset
            if offset <= last:
                yield message
        self._stop(stream)
        self._arrived.clear()

    def _until(self, stream: Stream, end: int | None, silence: float) -> Iterator[StreamMessage]:
        """Follow a stream after what was read, and yield what comes up to an offset, or until nothing comes."""
        done = self._done.get(stream.name)
        self._begin(stream, done and Place.of(done))
        seconds = _COUNTED if end is None else silence
        came = time.monotonic()
        while time.monotonic() < came + seconds and (message := self.receive(seconds)) is not None:
            is_its_own = message.stream == stream.name
            yield message
            if is_its_own:
                came = time.monotonic()
                if end is not None and message.offset >= end:
                    self._note_returned()
                    return
        if end is not None:
            raise TimeoutError(NO_ANSWER)

    def _with_retries(self, stream: Stream, attempt: Callable[[], Iterator[Any]], patience: float) -> Iterator[Any]:
        """Yield what an attempt yields; begin another one after an error, for some time since the last that worked."""
        streams.require_schedule(self.options)
        tries = Patience(min(patience, self._most))
        while True:
            has_worked = False
            try:
                for one in attempt():
                    has_worked = True
                    yield one
                return
            except (AMQPError, OSError, StreamUnavailable, OperationalError) as exc:
                self.close()
                if has_worked or isinstance(exc, StreamReplaced):  # which is read from its beginning
                    tries.renew()
                if not tries.pause():
                    if isinstance(exc, OperationalError):  # there is no connection, which says nothing of the stream
                        raise
                    raise StreamUnavailable(
                        f"the stream {stream.name!r} cannot be read ({exc}): {_advice(exc)}"
                    ) from exc

    def _extents(
        self, wanted: Iterable[Stream], silence: float | None = None, has_messages: bool = False
    ) -> dict[Stream, Extent]:
        connection = self._connect()
        lasts: dict[Stream, int | None] = {}

        def note(stream: Stream, offset: int | None, body: bytes) -> None:
            lasts[stream] = offset

        with connection.within(self._limit(silence)), declare.translate_errors(self.options.cascade):
            channel = connection.channel()
            counts = {stream: count for stream in wanted if (count := _count(channel, stream)) is not None}
            for stream in counts:
                # The last chunk comes at once, with what was confirmed before in it.
                self._consume(stream, "last", partial(note, stream))
            awaited = {stream for stream, count in counts.items() if count or has_messages}
            connection.wait_until(lambda: awaited <= lasts.keys())
        with suppress(TimeoutError), connection.within(BUSY):
            while True:
                with connection.within(_QUIET if counts.keys() <= lasts.keys() else _COUNTED):
                    connection.drain_events()
        self.close()
        return {stream: Extent(count, lasts.get(stream, -1)) for stream, count in counts.items()}

    def follow(self, places: Mapping[Stream, Place | None]) -> None:
        """Make `receive` return the messages of some streams, or only those after a place; looks now and then for those
        that do not exist yet.

        Raises `NotPermitted`, `StreamUnavailable`, `StreamReplaced`.
        """
        self._lacking.update(places)
        self._look()

    def look_soon(self) -> None:
        """Look for new streams at the next `receive`. Another thread may call this."""
        self._looked = -math.inf

    def receive(self, seconds: float = 0) -> StreamMessage | None:
        """Return the next message of the streams that are followed; None if none comes for some seconds.

        Raises as `StreamConsumer.receive` and `follow`.
        """
        if self._lacking and time.monotonic() > self._looked + self._pause:
            self._look()
        return super().receive(seconds)

    def _look(self) -> None:
        """Follow the streams that exist by now."""
        with Follower(self._client) as reader:
            extents = reader.extents(self._lacking) if self._lacking else {}
        for stream, place in self._lacking.items():
            reached = -1 if place is None else place.offset
            last = extents[stream].last if stream in extents else -1
            last = reached if last is None else last
            if last < reached:
                raise StreamReplaced(f"the stream {stream.name!r} was deleted")
            if stream in extents:
                self.ends[stream.name] = last
                self._begin(stream, place)
        for stream in extents:
            del self._lacking[stream]
        # RabbitMQ logs each stream that is missing.
        self._looked, self._pause = time.monotonic(), PAUSE if extents else min(2 * self._pause, 6 * PAUSE)


def _count(channel: Any, stream: Stream) -> int | None:
    """Return the number of messages in a stream; None if it does not exist. Raises `StreamUnavailable`."""
    try:
        return int(declare.passive_declare_queue(channel, stream.name).message_count)
    except NotFound as exc:
        if "no queue" in exc.reply_text:
            return None
        raise StreamUnavailable(exc.reply_text) from exc
    except AccessRefused:  # of any permission: consuming the stream names the one that is needed
        return 0


def _advice(exc: Exception) -> str:
    """Return what to do about a stream that cannot be read."""
    if isinstance(exc, NotAllowed):  # of a limit, which the error names
        return "try again once there is room"
    if is_lost(exc):
        return "the connection is lost again and again: the log of RabbitMQ says why"
    return (
        "start the nodes that it is on. If that does not help, its data is lost, because a node was killed just after "
        "the stream was created: delete it, and it is created again when needed"
    )

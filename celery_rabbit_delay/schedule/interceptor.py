"""What the schedule does on the way of a message: it records what is sent, follows changes, and drops what they say."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import kombu
from amqp import Message
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from ..delay.amqp import declare
from ..delay.amqp.confirms import ConfirmedChannel
from ..delay.amqp.connecting import PerClient
from ..delay.amqp.interceptor import Interceptor
from ..delay.amqp.limited import PAUSE
from ..delay.amqp.publisher import DelayedPublisher
from ..delay.amqp.sender import Turn
from ..delay.core.errors import DelayError, NotPermitted
from ..delay.core.headers import State, message_id
from ..delay.core.options import Options
from ..delay.core.plan import Plan
from ..delay.core.topology import Cascade, Stream
from ..unreadable import Unreadable
from .amqp.create_streams import lead_to_streams, make_streams
from .amqp.follower import Follower
from .amqp.stream_consumer import BUSY, StreamMessage
from .amqp.stream_writer import StreamWriter, record_of
from .core import streams
from .core.changes import Changes
from .core.errors import StreamUnavailable
from .core.fates import Fate, fate
from .core.journal import Record

logger = logging.getLogger(__name__)

#: What says that a task is cancelled must not wait until a busy consumer acknowledges what came before it, for the task
#: itself may be there already. More messages do not fit into the buffers of a socket, and RabbitMQ closes a connection
#: that takes nothing for 15 s.
_PREFETCH = 10_000


@dataclass
class Known:
    """What the streams have said so far about messages that a `kombu.Connection` may receive."""

    changes: Changes = field(default_factory=lambda: Changes(time.time))
    #: Is called with the id of a cancelled task that arrives; returns whether it discards the task.
    on_cancelled: Callable[[str], bool] | None = None


known_to: PerClient[Known] = PerClient(Known)

#: The names of streams that do not work, and the time (`time.monotonic`) of the next attempt, for a `kombu.Connection`.
paused_of: PerClient[dict[str, float]] = PerClient(dict)


class ScheduleInterceptor(Interceptor):
    """Records what is sent, and drops what was cancelled or moved before its consumer sees it."""

    def __init__(self, client: kombu.Connection) -> None:
        self._client = client
        self.options: Options = client.transport.delay_options
        self._following: Following | None = None
        self._lost: list[tuple[Stream, Record]] = []  # records of which the broker's answer was lost
        self.ticket = partial(streams.ticket, self.options)  # type: ignore[method-assign]

    @property
    def following(self) -> Following:
        """What follows the streams, over a connection of its own."""
        if self._following is None:
            self._following = Following(self._client)
        return self._following

    @cached_property
    def known(self) -> Known:
        """What the streams have said about messages that this connection may receive."""
        return known_to[self._client]

    def stored(self, publisher: DelayedPublisher, sent: Sequence[tuple[Plan, Message]]) -> None:
        writer = self._writer(publisher)
        if len(sent) == 1 and not self._lost:
            writer.record(*sent[0])
        else:
            lost = [*self._lost]
            self._lost.clear()
            records = ((plan.ticket, record_of(plan, message)) for plan, message in sent)
            writer.store([*lost, *((ticket.stream, record) for ticket, record in records if ticket and record)])

    def write(self, stream: Stream, bodies: Iterable[bytes], seconds: float | None = None) -> None:
        """Store messages in a stream beside the cascade. Raises as `StreamWriter.write`."""
        sender = self._client.connection.sender
        with Turn(sender, seconds):
            self._writer(sender.publisher()).write(stream, bodies)

    def _writer(self, publisher: DelayedPublisher) -> StreamWriter:
        writer: StreamWriter | None = publisher.kept
        if writer is None:
            writer = publisher.kept = StreamWriter(publisher, paused_of[self._client], self._lost)
        return writer

    def drops(self, message: Any, state: State | None) -> bool:
        """Return whether a message must be acknowledged instead of delivered.

        This is so if a copy with another due time has replaced it, or if it was cancelled. If `Known` has
        `on_cancelled`, a cancelled task is delivered, and Celery discards it.
        """
        headers, own = message.headers or {}, self.options
        if not headers:
            return False
        known = self.known
        # Celery discards only tasks; a worker may have consumers of its own for other messages.
        discards = known.on_cancelled if "task" in headers else None
        # A task with an eta may have been an orphan, or was sent without this package; a retry may have been delayed
        # before. Other undelayed messages are not filtered.
        if state is None and not (headers.get("eta") or headers.get("retries")):
            return False
        number, options = state and state.number, own
        if state and state.root != own.cascade.root:
            # Apps with different prefixes may share a queue, and what was sent before that was changed arrives later.
            other = streams.options_of(state.root)
            options = other if other and other.prefix != own.prefix else own
        if number is not None or known.on_cancelled is not None:  # others than workers look only for what is recorded
            for one in [own] if options is own else [own, options]:
                _keep_current(self, one)
        id_ = message_id(message.properties, headers)  # the same id as in a record, which `list` shows
        found = fate(known.changes, number, id_, lambda: headers)
        if found is Fate.CANCELLED:
            return discards is None or not discards(id_)
        if found is Fate.MOVED:
            logger.info("A message that was moved or cancelled is dropped here: %s", id_)
        return found is not Fate.WAITS

    def learn(self) -> None:
        """Read which messages were cancelled or moved so far; from then on `drops` says so of each.

        Raises `StreamUnavailable`, `NotPermitted`.
        """
        self.known.on_cancelled = self.known.on_cancelled or (lambda id_: False)
        self.following.catch_up(streams.changes_of(self.options), self.known.changes.apply, create=False)

    def streams(self, wanted: bool = False) -> list[Stream]:
        if wanted:
            return streams.wanted(self.options)
        return streams.all_streams(self.options.cascade, self.options.max_delay)

    def create(self, channel: ConfirmedChannel, cascade: Cascade) -> None:
        lead_to_streams(channel, cascade, streams.wanted(self.options))

    def problems(self) -> Iterator[str]:
        channel = self._client.default_channel
        needed = streams.wanted(self.options) if self.options.declare == "passive" else []
        there = [one for one in self.streams() if declare.message_count(channel, one.name) is not None]
        return probe_streams(self._client, dict.fromkeys([*needed, *there]))

    def close(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()
        if self._lost:
            logger.warning("The connection was lost: %d stored messages may be missing in lists", len(self._lost))
        self._lost.clear()


def probe_streams(client: kombu.Connection, streams: Iterable[Stream]) -> Iterator[str]:
    """Yield the reason for each stream that cannot be read."""
    for stream in streams:
        try:
            with Follower(client) as follower:
                follower.extents([stream], patience=2)
        except StreamUnavailable as exc:
            yield str(exc)


def _keep_current(receiver: ScheduleInterceptor, options: Options) -> None:
    """Read the changes and follow them, once per `amqp.Connection`, and keep up with them from then on.

    Logs a warning the first time that this fails, and tries again when a message arrives some time later. Creates no
    stream beside a cascade other than the connection's, because its root may be forged.
    """
    following, apply, stream = receiver.following, receiver.known.changes.apply, streams.changes_of(options)
    is_own = options is receiver.options
    if stream.name in following.until:
        following.keep_up(stream, apply, create=is_own)
    else:
        try:
            following.catch_up(stream, apply, create=is_own)
        except DelayError as exc:
            logger.warning(
                "Messages that were moved or cancelled may still be delivered, until the next attempt to read the "
                "changes succeeds: %s",
                exc,
            )


class Following:
    """The streams that a `kombu.Connection` follows to drop messages. One thread uses it at a time.

    It says when a stream is read, or tried again.
    """

    def __init__(self, client: kombu.Connection) -> None:
        self._client = client
        self._follower = Follower(client, prefetch=_PREFETCH)
        self._lock = threading.RLock()
        self._apply: dict[str, Callable[[bytes], object]] = {}  # by the name of a stream: what takes its messages
        #: Name of a stream -> the time (`time.monotonic`) to try again to read it.
        self.until: dict[str, float] = {}
        self.failing: dict[str, float] = {}  # the time at which the first attempt to read it began that failed
        self._warned: set[str] = set()  # of which this was logged as a warning

    def close(self) -> None:
        """Close the connection, and wait for nothing. What was followed is read on when it is needed."""
        self.until.update(dict.fromkeys(self._follower.streams, time.monotonic()))
        self._follower.close()

    def follows(self, stream: Stream) -> bool:
        return stream.name in self._follower.streams

    def poll(self) -> None:
        """Apply what has come; waits for the broker only now and then, as `StreamConsumer.receive` does."""
        if self._follower.streams and self._lock.acquire(blocking=False):
            try:
                with self._using():
                    while (message := self._follower.receive()) is not None:
                        self._take(message)
            except (AMQPError, OSError, DelayError) as exc:
                logger.info("The streams have to be read again: %s", exc)
            finally:
                self._lock.release()

    def _take(self, message: StreamMessage) -> None:
        """Apply a message of a stream; log a warning if it is malformed."""
        try:
            self._apply[message.stream](message.body)
        except Unreadable as exc:
            logger.warning("Message %d of the stream %r is skipped: %s", message.offset, message.stream, exc)

    def keep_up(self, stream: Stream, apply: Callable[[bytes], Any], create: bool) -> None:
        """Apply what has come; read a stream and follow it again if that has ended, and log why it cannot be read.

        A worker's timer calls this, and each message that comes. It waits for `BUSY` seconds at most, several times if
        nobody answers. Logs a warning if a stream cannot be read for longer than `PAUSE`.
        """
        self.poll()
        if self.until.get(stream.name, math.inf) > time.monotonic():
            return
        try:
            if self.catch_up(stream, apply, create, patience=0, silence=BUSY):
                logger.info("The contents of the stream %r are known from now on", stream.name)
        except DelayError as exc:
            lasts = stream.name not in self._warned and time.monotonic() > self.failing[stream.name] + PAUSE
            if lasts:
                self._warned.add(stream.name)
            logger.log(
                logging.WARNING if lasts else logging.INFO,
                "The stream %r cannot be read, so what was cancelled or moved of late may run: %s",
                stream.name,
                exc,
            )

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Close the connection after an error, and have streams that are followed no more read on when needed."""
        before = set(self._follower.streams)
        try:
            yield
        except BaseException:
            self._follower.close()
            raise
        finally:
            self.until.update(dict.fromkeys(before - set(self._follower.streams), time.monotonic()))

    def catch_up(self, stream: Stream, apply: Callable[[bytes], Any], create: bool = True, **limits: float) -> bool:
        """Read a stream to its end, and follow it. `apply` is the same each time, and so it goes on where it was left.

        If the stream is missing, `create` it, or return False. Raises `CascadeMissing`, `NotPermitted`,
        `StreamUnavailable`. Then messages are delivered without the stream for some time, so that not every message
        waits for it. `limits` are those of `Follower.catch_up`.
        """
        self._apply[stream.name] = apply
        with self._lock:
            began = time.monotonic()
            try:
                with self._using():
                    self._read(stream, **limits)
                    if create and not self.follows(stream):
                        make_streams(self._client, [stream], limits.get("silence"))
                        self._read(stream, **limits)
            except Exception as exc:
                self._follower.forget(stream)
                now = time.monotonic()
                failing = now - self.failing.setdefault(stream.name, began)
                # At first soon, then the less often the longer it fails: when a node of a cluster goes or comes,
                # RabbitMQ restarts the replicas of streams. It logs each try of a user without the permission.
                pause = min(PAUSE, max(0.5, now - began, failing / 5))
                self.until[stream.name] = now + (30 * PAUSE if isinstance(exc, NotPermitted) else pause)
                if isinstance(exc, (AMQPError, OSError, OperationalError)):  # the consumer's own connection goes on
                    raise StreamUnavailable(f"the stream {stream.name!r} cannot be read: {exc}") from exc
                raise
            self.failing.pop(stream.name, None)
            self._warned.discard(stream.name)
            found = self.follows(stream)
            self.until[stream.name] = math.inf if found else time.monotonic() + PAUSE
            return found

    def _read(self, stream: Stream, **limits: float) -> None:
        for message in self._follower.catch_up(stream, **limits):
            self._take(message)

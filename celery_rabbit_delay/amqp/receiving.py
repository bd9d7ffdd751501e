"""Filters received messages before their consumer sees them: some must no longer be delivered."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import kombu
from amqp.exceptions import AMQPError, ChannelError
from amqp.exceptions import ConnectionError as AMQPConnectionError
from kombu.exceptions import OperationalError

from ..core import streams
from ..core.changes import Changes
from ..core.errors import DelayError, StreamUnavailable
from ..core.headers import X_DELAY_KEY, State, message_id, read_state
from ..core.keys import Keys
from ..core.options import Options, options_of
from ..core.streams import Unreadable
from ..core.topology import Stream
from .clients import PerClient
from .connecting import abandon, connect, copy_of
from .limited import LimitedConnection
from .stream_reader import StreamMessage, StreamReader
from .subscription import Subscription

logger = logging.getLogger(__name__)

#: Seconds that the first message waits for a stream that exists but cannot be read.
PATIENCE = 15

#: Seconds after which a message that comes makes the connection try again to read a stream: one that may come back by
#: itself, at first and in the end, and one that somebody has to see to. When a node of a cluster goes or comes,
#: RabbitMQ restarts the replicas of streams, and refuses to send them meanwhile.
SOON, AGAIN, MUCH_LATER = 0.5, 10, 300

#: While a stream cannot be read, trying takes at most one part in so many of the time.
SHARE = 5

#: Seconds after which a message that comes renews the subscription to a stream.
RENEWAL = 5

#: Seconds for which a message waits for the broker's answer when a stream is tried again.
SILENCE = 2

#: Streams of other cascades that cannot be read, and may be made up, which a connection knows of at a time.
MOST_UNKNOWN = 20


@dataclass
class Known:
    """What the streams have said so far about messages that a `kombu.Connection` may receive."""

    changes: Changes = field(default_factory=lambda: Changes(time.time))
    #: Of each cascade, by its root, because keys of different cascades are unrelated.
    keys: dict[str, Keys] = field(default_factory=lambda: defaultdict(lambda: Keys(time.monotonic)))
    #: Is called with the id of a cancelled task that arrives; returns whether it discards the task.
    on_cancelled: Callable[[str], bool] | None = None
    #: Is called with the id of a task that arrives and was sent after the id had been cancelled.
    on_sent_again: Callable[[str], object] = lambda id_: None


known_to: PerClient[Known] = PerClient(Known)


class Receiver(Protocol):
    """The connection of a user who receives."""

    @property
    def known(self) -> Known: ...

    @property
    def following(self) -> Following: ...

    @property
    def delay_options(self) -> Options: ...


def state_of(message: Any) -> State | None:
    """Return what the package's header of an `amqp.Message` says; None if there is none, or if it is malformed."""
    known = vars(message)
    if "delay_state" not in known:
        message.delay_state = read_state(message.headers or {})
    state: State | None = known["delay_state"]
    return state


def is_dropped(connection: Receiver, message: Any) -> bool:
    """Return whether a message must be acknowledged instead of delivered.

    This is so if a later message with its key, or a copy with another due time, has replaced it, or if it was
    cancelled. If `Known` has `on_cancelled`, a cancelled task is delivered, and Celery discards it.
    """
    headers, state = message.headers, state_of(message)
    if not connection.delay_options.streams:
        return False
    if state is None:
        # A task with an eta may have been an orphan, or was sent without this package; a retry may have been delayed
        # before. Undelayed messages are not filtered.
        if not headers or not (headers.get("eta") or headers.get("retries")):
            return False
        known = connection.known
        if known.on_cancelled is not None:
            _follow_changes(connection, known, None)
        return _is_cancelled(known, message)
    known, number = connection.known, state.number
    # Apps with different options may share a queue, and what was sent before an option was changed arrives later.
    other = None if state.prefix == connection.delay_options.cascade.root else options_of(state.prefix)
    if number is not None or known.on_cancelled is not None:
        _follow_changes(connection, known, other)
    if number is not None:
        if known.changes.voids(number):
            logger.info("A message that was moved is dropped here: %s", headers.get("id"))
            return True
        key = headers.get(X_DELAY_KEY)
        if isinstance(key, str):
            options = other or connection.delay_options
            cascade = options.cascade
            # Only streams that exist have keys: there is no end of made up roots.
            _follow_once(connection, options, streams.keys(cascade), lambda body: known.keys[cascade.root].apply(body))
            if cascade.root in known.keys and known.keys[cascade.root].replaces(number):
                logger.info(
                    "A message with the key %r is dropped, because another was sent later: %s", key, headers.get("id")
                )
                return True
    return _is_cancelled(known, message)


def _is_cancelled(known: Known, message: Any) -> bool:
    id_ = message_id(message.properties, message.headers)  # the same id as in a record, which `list` shows
    if not known.changes.cancels(id_, message.headers):
        if known.changes.cancelled_at(id_):
            known.on_sent_again(id_)
        return False
    # Celery discards only tasks; a worker may have consumers of its own for other messages.
    return known.on_cancelled is None or "task" not in message.headers or not known.on_cancelled(id_)


def _follow_changes(connection: Receiver, known: Known, other: Options | None) -> None:
    for options in filter(None, (connection.delay_options, other)):
        _follow_once(connection, options, streams.changes(options.cascade), known.changes.apply)


def _follow_once(connection: Receiver, options: Options, stream: Stream, apply: Callable[[bytes], Any]) -> None:
    """Read a stream and follow it, once per `amqp.Connection`, and renew the subscription now and then.

    Logs a warning the first time that this fails, and tries again when a message arrives some time later. Creates no
    parts of a cascade other than the connection's, because its root may be forged.
    """
    following = connection.following
    following.poll()
    until = following.until.get(stream.name)
    if until is None:
        if options is not connection.delay_options and not following.has_room():
            return
        try:
            following.catch_up(stream, apply, PATIENCE, options=options)
        except DelayError as exc:
            logger.warning(
                "Messages that were moved, cancelled or replaced may still be delivered, until the next attempt "
                "to read the changes succeeds: %s",
                exc,
            )
    elif until <= time.monotonic() and not following.renew(stream):
        following.try_again(stream, apply, options=options)


class Following:
    """The streams that a `kombu.Connection` follows, on an AMQP connection of our own. One thread uses it at a time."""

    def __init__(self, client: kombu.Connection) -> None:
        self._own = copy_of(client, "follower")
        self._options: Options = client.transport.delay_options
        self._lock = threading.RLock()
        #: Name of a stream -> the time (`time.monotonic`) to try again to read it, or to renew its subscription.
        self.until: dict[str, float] = {}
        self.failing: dict[str, float] = {}  # the time at which the first attempt to read it began that failed
        self.subscriptions: dict[str, Subscription] = {}

    def close(self) -> None:
        """Close the connection, and wait for nothing. What was followed is read again when it is needed."""
        for name in self.subscriptions:
            self.until[name] = time.monotonic()
        self.subscriptions = {}
        abandon(self._own)

    def poll(self) -> None:
        """Call back for what has come, and wait for nothing."""
        if self.subscriptions and self._lock.acquire(blocking=False):
            try:
                with self._closing():
                    self._own.connection.read_all()
            except (AMQPError, OSError) as exc:
                logger.info("The streams have to be read again: %s", exc)
            finally:
                self._lock.release()

    def keep_up(self, stream: Stream, apply: Callable[[bytes], Any]) -> None:
        """Call back for what has come; read a stream again that was followed until it ended, or its connection."""
        self.poll()
        until = self.until.get(stream.name)
        if until is not None and until <= time.monotonic() and stream.name not in self.subscriptions:
            self.try_again(stream, apply, create=False)

    def try_again(self, stream: Stream, apply: Callable[[bytes], Any], **options: Any) -> None:
        """Read and follow a stream as `catch_up` does, without waiting for it; log why it cannot be read."""
        try:
            if self.catch_up(stream, apply, patience=0, silence=SILENCE, **options):
                logger.info("The contents of the stream %r are known from now on", stream.name)
        except DelayError as exc:
            logger.info("The stream %r cannot be read yet: %s", stream.name, exc)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Close the connection on whatever is not an answer of the broker."""
        try:
            yield
        except (ChannelError, DelayError):
            raise
        except BaseException:
            self.close()
            raise

    def renew(self, stream: Stream) -> bool:
        """Renew the subscription to a stream; return False if there is none, or if nothing comes: it has ended."""
        with self._lock:
            subscription = self.subscriptions.get(stream.name)
            if subscription is None:
                return False
            self.until[stream.name] = time.monotonic() + RENEWAL
            try:
                with self._closing():
                    subscription.renew(SILENCE)
            except (AMQPError, StreamUnavailable, OSError) as exc:
                logger.info("The stream %r has to be read again: %s", stream.name, exc)
                subscription.close()
                self.subscriptions.pop(stream.name, None)
                return False
            return True

    def has_room(self) -> bool:
        """Return whether a stream that may be made up can be looked for, after such streams were forgotten in time."""
        unknown = [name for name in self.until if name not in self.subscriptions]
        if len(unknown) < MOST_UNKNOWN:
            return True
        over = [name for name in unknown if self.until[name] <= time.monotonic()]
        for name in over:
            del self.until[name]
            self.failing.pop(name, None)
        return bool(over)

    def catch_up(
        self,
        stream: Stream,
        apply: Callable[[bytes], Any],
        patience: float,
        silence: float | None = None,
        options: Options | None = None,
        create: bool = True,
    ) -> bool:
        """Read a stream to its end, through another connection, and then follow it.

        Without `create`, or with the `options` of another cascade than the connection's, return False if the stream is
        missing; otherwise create it. Raises `CascadeMissing`, `NotPermitted`, `StreamUnavailable`. Then messages are
        delivered without the stream for some time, so that not every message waits for it. `silence` is that of
        `StreamReader`.
        """
        of_others = options is not None and options is not self._options
        with self._lock:
            began = time.monotonic()
            try:
                found = self._catch_up(
                    stream, apply, patience, silence, options or self._options, create and not of_others
                )
            except Exception as exc:
                comes_back = isinstance(exc, (StreamUnavailable, AMQPError, OSError))
                self.until[stream.name] = time.monotonic() + (self._pause(stream, began) if comes_back else MUCH_LATER)
                raise
            self.failing.pop(stream.name, None)
            if found or of_others:
                self.until[stream.name] = time.monotonic() + (RENEWAL if found else AGAIN)
            else:  # the first message that the stream may concern asks again, and creates it
                self.until.pop(stream.name, None)
            return found

    def _pause(self, stream: Stream, began: float) -> float:
        """Return the seconds until the next attempt: more, the longer the last one took and the stream has failed."""
        now = time.monotonic()
        failing: float = now - self.failing.setdefault(stream.name, began)
        return min(AGAIN, max(SOON, (SHARE - 1) * (now - began), failing / SHARE))

    def _catch_up(
        self,
        stream: Stream,
        apply: Callable[[bytes], Any],
        patience: float,
        silence: float | None,
        options: Options,
        create: bool,
    ) -> bool:
        try:
            with StreamReader(self._own, patience, silence, options) as reader:
                deadline = time.monotonic() + reader.patience
                last = _read(reader, stream, apply, create)
        except OperationalError as exc:  # the consumer has its connection, and goes on
            raise StreamUnavailable(f"the stream {stream.name!r} cannot be read: {exc}") from exc
        if last < 0:
            return False
        if known := self.subscriptions.pop(stream.name, None):
            known.close()

        def on_end() -> None:
            """Let the next message of a consumer read the stream again."""
            self.subscriptions.pop(stream.name, None)
            self.until[stream.name] = time.monotonic()

        callback = partial(apply_readable, apply, stream)
        while True:
            try:
                self.subscriptions[stream.name] = self._subscribe(stream, last, callback, on_end)
                return True
            except StreamUnavailable:  # the replica on this node has stopped, or the reader was connected to another
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    def _subscribe(
        self, stream: Stream, last: int, callback: Callable[[StreamMessage], None], on_end: Callable[[], None]
    ) -> Subscription:
        try:
            with self._closing():
                connect(self._own)
                connection: LimitedConnection = self._own.connection
                with connection.within(PATIENCE):
                    return Subscription(connection, stream, last, callback, on_end)
        except (AMQPConnectionError, OSError) as exc:
            raise StreamUnavailable(f"the stream {stream.name!r} cannot be followed: {exc}") from exc


def _read(reader: StreamReader, stream: Stream, apply: Callable[[bytes], Any], create: bool) -> int:
    """Read a stream to its end, and return its last offset; -1 if it is missing, and is not created."""
    last = -1
    for _ in range(2):
        for message in reader.read_exactly(stream):
            last = message.offset
            apply_readable(apply, stream, message)
        if last >= 0 or not create:
            break
        reader.create(stream)
    return last


def learn(client: kombu.Connection) -> None:
    """Read which messages were cancelled, moved or replaced so far. Raises `StreamUnavailable`, `NotPermitted`.

    Each message that the client takes from then on is dropped if it was cancelled in the meantime. Without streams
    there is nothing to know.
    """
    if not client.transport.delay_options.streams:
        return
    cascade = client.transport.delay_options.cascade
    known = known_to[client]
    known.on_cancelled = known.on_cancelled or (lambda id_: False)
    with StreamReader(client) as reader:
        for stream, apply in (
            (streams.changes(cascade), known.changes.apply),
            (streams.keys(cascade), known.keys[cascade.root].apply),
        ):
            for message in reader.read_exactly(stream):
                apply_readable(apply, stream, message)


def apply_readable(apply: Callable[[bytes], object], stream: Stream, message: StreamMessage) -> None:
    """Call a function with a message of a stream; log a warning if the message is malformed."""
    try:
        apply(message.body)
    except Unreadable as exc:
        logger.warning("Message %d of the stream %r is skipped: %s", message.offset, stream.name, exc)

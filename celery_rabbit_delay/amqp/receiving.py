"""Filters received messages before their consumer sees them: some must no longer be delivered."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import kombu
from amqp.exceptions import AMQPError, ChannelError
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


def state_of(message: Any) -> State | None:
    """Return what the package's header of an `amqp.Message` says; None if there is none, or if it is malformed."""
    known = vars(message)
    if "delay_state" not in known:
        message.delay_state = read_state(message.headers or {})
    state: State | None = known["delay_state"]
    return state


def is_dropped(connection: Any, message: Any) -> bool:
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


def _follow_changes(connection: Any, known: Known, other: Options | None) -> None:
    for options in filter(None, (connection.delay_options, other)):
        _follow_once(connection, options, streams.changes(options.cascade), known.changes.apply)


def _follow_once(connection: Any, options: Options, stream: Stream, apply: Callable[[bytes], Any]) -> None:
    """Read a stream and follow it, once per `amqp.Connection`, and renew the subscription now and then.

    Logs a warning the first time that this fails, and tries again when a message arrives some time later. Creates no
    parts of a cascade other than the connection's, because its root may be forged.
    """
    until = connection.followed.get(stream.name)
    if until is None:
        if options is not connection.delay_options and not _has_room(connection):
            return
        try:
            catch_up(connection, stream, apply, PATIENCE, options=options)
        except DelayError as exc:
            logger.warning(
                "Messages that were moved, cancelled or replaced may still be delivered, until the next attempt "
                "to read the changes succeeds: %s",
                exc,
            )
    elif until <= time.monotonic() and not _renew(connection, stream):
        try:
            if catch_up(connection, stream, apply, patience=0, silence=SILENCE, options=options):
                logger.info("The contents of the stream %r are known from now on", stream.name)
        except DelayError as exc:
            logger.info("The stream %r cannot be read yet: %s", stream.name, exc)


def _renew(connection: Any, stream: Stream) -> bool:
    """Renew the subscription to a stream; return False if there is none, or if nothing comes, so that it has ended."""
    subscription = connection.subscriptions.get(stream.name)
    if subscription is None:
        return False
    connection.followed[stream.name] = time.monotonic() + RENEWAL  # messages that come meanwhile do not try it as well
    try:
        subscription.renew(SILENCE)
    except (ChannelError, StreamUnavailable, TimeoutError) as exc:
        logger.info("The stream %r has to be read again: %s", stream.name, exc)
        subscription.close()
        connection.subscriptions.pop(stream.name, None)
        return False
    return True


def _has_room(connection: Any) -> bool:
    """Return whether a stream that may be made up can be looked for, after such streams were forgotten in time."""
    followed = connection.followed
    unknown = [name for name in followed if name not in connection.subscriptions]
    if len(unknown) < MOST_UNKNOWN:
        return True
    over = [name for name in unknown if followed[name] <= time.monotonic()]
    for name in over:
        del followed[name]
        connection.failing.pop(name, None)
    return bool(over)


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


def catch_up(
    connection: Any,
    stream: Stream,
    apply: Callable[[bytes], Any],
    patience: float,
    silence: float | None = None,
    options: Options | None = None,
    create: bool = True,
) -> bool:
    """Read a stream to its end, through another connection, and then follow it on an `amqp.Connection`.

    Without `create`, or with the `options` of another cascade than the connection's, return False if the stream is
    missing; otherwise create it. Raises `CascadeMissing`, `NotPermitted`, `StreamUnavailable`. Then messages are
    delivered without the stream for some time, so that not every message waits for it. `silence` is that of
    `StreamReader`.
    """
    with connection.deliveries.hold():
        began = time.monotonic()
        try:
            of_others = options is not None and options is not connection.delay_options
            create = create and not of_others
            try:
                found = _catch_up(
                    connection, stream, apply, patience, silence, options or connection.delay_options, create
                )
            except OperationalError as exc:  # the consumer has its connection, and goes on
                raise StreamUnavailable(f"the stream {stream.name!r} cannot be read: {exc}") from exc
        except Exception as exc:
            # While deliveries are held: the next one is not to try it again.
            comes_back = isinstance(exc, (StreamUnavailable, AMQPError, OSError))
            wait = _pause(connection, stream, began) if comes_back else MUCH_LATER
            connection.followed[stream.name] = time.monotonic() + wait
            raise
        connection.failing.pop(stream.name, None)
        if found or of_others:  # else the first message that the stream may concern asks for it again, and creates it
            connection.followed[stream.name] = time.monotonic() + (RENEWAL if found else AGAIN)
        return found


def _pause(connection: Any, stream: Stream, began: float) -> float:
    """Return the seconds until the next attempt: the more, the longer the last one took and the stream has failed."""
    now = time.monotonic()
    failing: float = now - connection.failing.setdefault(stream.name, began)
    return min(AGAIN, max(SOON, (SHARE - 1) * (now - began), failing / SHARE))


def _catch_up(
    connection: Any,
    stream: Stream,
    apply: Callable[[bytes], Any],
    patience: float,
    silence: float | None,
    options: Options,
    create: bool,
) -> bool:
    last = -1
    with StreamReader(connection.client, patience, silence, options) as reader:
        deadline = time.monotonic() + reader.patience
        for _ in range(2):
            for message in reader.read_exactly(stream):
                last = message.offset
                apply_readable(apply, stream, message)
            if last >= 0:
                break
            if not create:
                return False
            reader.create(stream)
    if known := connection.subscriptions.pop(stream.name, None):
        known.close()

    def on_end() -> None:
        """Let the next message of a consumer read the stream again."""
        connection.subscriptions.pop(stream.name, None)
        connection.followed[stream.name] = time.monotonic()

    callback = partial(apply_readable, apply, stream)
    while True:
        try:
            connection.subscriptions[stream.name] = Subscription(connection, stream, last, callback, on_end)
            return True
        except StreamUnavailable:  # the replica on this node has stopped since, or the reader is connected to another
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.2)


def apply_readable(apply: Callable[[bytes], object], stream: Stream, message: StreamMessage) -> None:
    """Call a function with a message of a stream; log a warning if the message is malformed."""
    try:
        apply(message.body)
    except Unreadable as exc:
        logger.warning("Message %d of the stream %r is skipped: %s", message.offset, stream.name, exc)

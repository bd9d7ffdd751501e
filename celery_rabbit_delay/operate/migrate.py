"""Moves waiting messages into another cascade."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

import kombu
from amqp import Message
from amqp.exceptions import ResourceLocked

from ..amqp import declare
from ..amqp.clocks import sent_now
from ..amqp.connecting import own_channel
from ..amqp.receiving import known_to, learn
from ..amqp.schedule import write_changes
from ..amqp.waiting import Allowed, send_on, take
from ..core import changes, streams
from ..core.destination import Destination
from ..core.due import x_delay_until
from ..core.headers import (
    X_DELAY,
    X_DELAY_KEY,
    X_DELAY_NUMBER,
    X_DELAY_OF,
    X_DELAY_SENT,
    State,
    milliseconds,
    read_state,
)
from .cascades import waiting_queues
from .management import Management


class Moved(NamedTuple):
    """A message that `migrate` has processed, and its queue. `refused` is the reason why it stays, if it does."""

    queue: str
    refused: str | None


def migrate(
    source: kombu.Connection,
    target: kombu.Connection,
    allowed: Allowed,
    destinations: Iterable[Destination] = (),
    management: Management | None = None,
) -> Iterator[Moved]:
    """Move waiting messages from the cascades of `source` into the cascade of `target`; each keeps its due time.

    Takes those in levels, and those in outboxes: of `destinations`, or with the management API in all.

    `source` delivers messages that become due in the meantime. An interruption loses no message; start it again. The
    message that was being moved may be delivered twice. A message that cannot be moved stays, and does not stop the
    others. Cancelled, moved and replaced messages are dropped. A message with a key becomes the last one of its key,
    unless the target knows the key: then it is delivered besides that later message. Workflows that are cancelled in
    `source` are cancelled in `target` as well, if that has streams.
    """
    learn(source)
    learn(target)
    sent: set[str] = set()  # keys
    shared = _share_streams(source, target)
    if not shared and target.transport.delay_options.streams and (workflows := cancelled_workflows(source)):
        write_changes(target, changes.cancelled_workflows(workflows, sent_now()))
    moved: list[State] = []  # states of moved messages that are in the journal
    try:
        with own_channel(source) as channel:
            for queue in waiting_queues(source, destinations, management):
                for message in take(channel, queue):
                    refused = _move(message, target, allowed, sent, shared)
                    if refused is None:
                        channel.basic_ack(message.delivery_tag)
                        state = read_state(message.headers)
                        keeps_number = shared and isinstance(message.headers.get(X_DELAY_KEY), str)
                        moved += [state] if state and state.number is not None and not keeps_number else []
                    if len(moved) >= 100:
                        _forget(source, moved)
                    yield Moved(queue, refused)
    finally:
        _forget(source, moved)


def cancelled_workflows(source: kombu.Connection) -> list[str]:
    """Return the ids of the workflows that are cancelled, as far as a connection has learned of them."""
    return known_to[source].changes.cancelled_workflows


def is_same(source: kombu.Connection, target: kombu.Connection) -> bool:
    """Return whether two connections are for the same cascade."""
    roots = {one.transport.delay_options.cascade.root for one in (source, target)}
    return len(roots) == 1 and _share_streams(source, target)


def _share_streams(source: kombu.Connection, target: kombu.Connection) -> bool:
    """Return whether two connections are for cascades of one prefix: each also sees the other's exclusive queue."""
    cascade = target.transport.delay_options.cascade
    if source.transport.delay_options.prefix != cascade.prefix:
        return False
    name = f"{cascade.root}.migrate.{uuid.uuid4()}"
    target.default_channel.queue_declare(name, exclusive=True)
    try:
        return declare.queue_exists(source.default_channel, name)
    except ResourceLocked:  # the other connection owns the queue
        return True


def _forget(source: kombu.Connection, moved: list[State]) -> None:
    """Mark moved messages as void in the journal of the source."""
    if moved and source.transport.delay_options.streams:
        voids = [changes.void(state.number, milliseconds(state.due)) for state in moved if state.number is not None]
        write_changes(source, voids)
        moved.clear()


def _move(message: Message, target: kombu.Connection, allowed: Allowed, sent: set[str], shared: bool) -> str | None:
    """Publish a message as it was sent, with its remaining delay; return the reason if that fails, or None.

    `sent` are the keys of the messages that have become the last ones. With `shared` streams, a message with a key
    keeps its number, so that it stays the last one of its key, or is replaced.
    """
    keys = known_to[target].keys[target.transport.delay_options.prefix]

    def publish(copy: Message, exchange: str, routing_key: str, state: State) -> None:
        # The number of the message becomes void. Consumers that follow both cascades must not drop the copy with it.
        copy.headers.pop(X_DELAY_NUMBER, None)
        copy.headers.setdefault(X_DELAY_SENT, "")  # a copy is not sent later than its original, whenever that was
        key = copy.headers.get(X_DELAY_KEY)
        if isinstance(key, str) and (shared or key in keys or key in sent):
            copy.headers[X_DELAY_NUMBER] = state.number if shared else streams.new_number()
            copy.headers[X_DELAY_OF] = {"id": copy.headers.get("id")}
        # A due message takes one tick, so that it is confirmed like any delayed message.
        copy.headers[X_DELAY] = x_delay_until(state.due, datetime.now(timezone.utc))
        target.default_channel.basic_publish(copy, exchange, routing_key)
        if isinstance(key, str):
            sent.add(key)

    return send_on(message, allowed, publish)

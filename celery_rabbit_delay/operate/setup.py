"""`setup` and `teardown`: creates cascades, with outboxes and streams, and deletes them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import kombu
from amqp.exceptions import PreconditionFailed

from ..delay.amqp import declare
from ..delay.amqp.confirms import ConfirmedChannel
from ..delay.amqp.create import choose, create_cascade
from ..delay.amqp.limited import PAUSE
from ..delay.core.destination import Destination
from ..delay.core.errors import DelayError, DestinationNotFound
from ..delay.core.options import HOLDS_MESSAGES, Options
from ..delay.core.topology import Cascade
from .all_parts import Topology
from .broker_connection import own_channel
from .cascades import cascades, existing, existing_outboxes, longest
from .management import Management, Snapshot
from .status import status


def wanted(connection: kombu.Connection) -> list[Cascade]:
    """Return the cascades that `setup` is to create: without levels, where RabbitMQ is found to hold messages."""
    options: Options = connection.transport.delay_options
    chosen, _ = choose(ConfirmedChannel(connection.connection), options, options.cascade)
    found = cascades(connection)
    return found if chosen in found else [chosen, *found]  # the broker's clock is wrong now


class NotEmpty(DelayError):
    """Messages wait in a cascade that is to be deleted, or are orphans, or it cannot be seen whether they do."""


class Deleted(NamedTuple):
    """What `teardown` has done."""

    amount: int  # of exchanges and queues
    kept: list[str]  # outboxes
    keeps_streams: bool  # because other cascades of the prefix lead to them, or the options know no schedule


def setup(
    connection: kombu.Connection,
    wanted: Iterable[Cascade],
    destinations: Iterable[Destination],
    ahead: bool = False,
) -> list[Destination]:
    """Create cascades, streams, and the outboxes of destinations; return the destinations that do not exist.

    With `ahead`, also create what publishers with `declare="auto"` create when they need it often: all outboxes of the
    option for each destination that is a queue. Streams come last, because a broker that cannot create them closes the
    connection. Raises `CascadeConflict`, `LimitReached`, `NotPermitted`, `InvalidDestination`,
    `UnsupportedConfiguration`.
    """
    options: Options = connection.transport.delay_options
    wanted, destinations = list(wanted), list(destinations)
    channel = ConfirmedChannel(connection.connection)
    for cascade in wanted:
        create_cascade(channel, cascade)
    lacking, led = [], list[tuple[Cascade, Destination, tuple[int, ...]]]()
    for destination in destinations:
        try:
            declare.require_destination(channel.get_channel(), destination)
        except DestinationNotFound:
            lacking.append(destination)
        else:
            for cascade in wanted if not destination.is_short_lived else ():
                outboxes = _outboxes(options, cascade, destination, ahead)
                declare.declare_outboxes(channel.get_channel(), cascade, destination, outboxes)
                led.append((cascade, destination, outboxes))
    if led:
        time.sleep(declare.SAVED_AFTER)
    for one in led:
        declare.bind_outboxes(channel.get_channel(), *one)
    for cascade in wanted:
        connection.connection.interceptor.create(channel, cascade)
    return lacking


def _outboxes(options: Options, cascade: Cascade, destination: Destination, ahead: bool) -> tuple[int, ...]:
    """Return the delays of the outboxes that `setup` creates, in ticks."""
    if ahead and not destination.exchange and not cascade.by_time:
        return (0, *options.outbox_ticks)
    return (0, *options.combined_in(cascade))


def teardown(
    connection: kombu.Connection,
    destinations: Iterable[Destination],
    management: Management | None = None,
    delete_messages: bool = False,
) -> Deleted:
    """Delete all cascades, and the outboxes of `destinations`; with the management API all others, too.

    Streams stay if other cascades of the prefix lead to them.

    Raises `NotEmpty` and deletes nothing if messages wait, also cancelled ones, or are orphans, unless
    `delete_messages`. The management API is asked twice for that, some seconds apart. Without it, outboxes that may
    hold messages are kept. Raises `NotPermitted`. After an interruption, call it again.
    """
    destinations = list(destinations)
    kept: list[str] = []
    if not delete_messages:
        _require_empty(connection, destinations, None)
        _ask_leaders(connection)
        if management:
            time.sleep(PAUSE)  # the counts of the management API are five seconds late
            _require_empty(connection, destinations, management.snapshot())
        elif status(connection, destinations).is_partial:
            raise NotEmpty(
                "RabbitMQ may hold messages until they are due, which AMQP does not count: use --management-url, or "
                "--delete-messages to delete them"
            )
        else:
            kept = _opaque_outboxes(connection, destinations)
    snapshot = management.snapshot() if management else None
    deleted = _delete_all(connection, destinations, snapshot, kept)
    beside = _delete_streams(connection)
    return Deleted(deleted + (beside or 0), kept, beside is None)


def _require_empty(
    connection: kombu.Connection, destinations: Iterable[Destination], snapshot: Snapshot | None
) -> None:
    found = status(connection, destinations, snapshot)
    waiting = found.waiting + found.stuck
    # Whoever lists orphans, such as the page, holds them for a moment: only the management API counts these.
    orphans = max(found.orphans or 0, found.all_orphans)
    if waiting or orphans:
        raise NotEmpty(
            f"{waiting:,} messages wait and {orphans:,} are orphans: wait until they are due, send orphans on with "
            "`orphans replay`, or delete all with --delete-messages"
        )


def _ask_leaders(connection: kombu.Connection) -> None:
    """Read from each level. Raises `NotEmpty`, and the errors of py-amqp where one does not answer.

    RabbitMQ says of a queue whose leader does not answer that it is empty (rabbit_quorum_queue, `stat`).
    """
    with own_channel(connection) as channel:
        for level in (level for cascade in existing(connection) for level in cascade.levels):
            if declare.queue_exists(connection.default_channel, level.queue) and channel.peek(level.queue) is not None:
                raise NotEmpty(f"messages wait in {level.queue!r}: wait until they are due, or use --delete-messages")


def _opaque_outboxes(connection: kombu.Connection, destinations: Iterable[Destination]) -> list[str]:
    """Return the outboxes of `destinations` that exist: AMQP does not show what their destinations do not take."""
    shared = connection.transport.delay_options.cascade.short_lived_outbox
    found = [shared] if declare.queue_exists(connection.default_channel, shared) else []
    return found + [outbox.queue for outbox in existing_outboxes(connection, destinations)]


def _delete_all(
    connection: kombu.Connection, destinations: Iterable[Destination], snapshot: Snapshot | None, kept: list[str]
) -> int:
    found = existing(connection)
    if connection.connection.server_version >= HOLDS_MESSAGES:  # of which some may be left of a try
        found = [*found, connection.transport.delay_options.by_time_cascade]
    topology = Topology.of(found)
    # Messages go from levels into outboxes. The shortest level goes last: it shows that levels may be left.
    outboxes = [outbox.queue for outbox in existing_outboxes(connection, destinations, snapshot)]
    if snapshot is not None:  # others that somebody gave such a name, too
        outboxes += [name for name in snapshot.queues if name.startswith(found[0].outbox_prefix)]
    queues = dict.fromkeys([*outboxes, *reversed(topology.queues)])
    last = [*(cascade.marker for cascade in found if cascade.by_time), found[0].root]  # they show that some is left
    exchanges = [name for name in topology.exchanges if name not in last]
    deleted = _delete(connection, exchanges, [name for name in queues if name not in kept])
    _delete_markers(connection)
    return deleted + _delete(connection, last, [])


def _delete_markers(connection: kombu.Connection) -> None:
    """Delete what shows that levels exist, of processes with any `max_delay`. To delete what is missing is no error."""
    cascade: Cascade = connection.transport.delay_options.cascade
    with declare.translate_errors(cascade):
        for powers in range(1, longest(cascade).powers + 1):
            connection.default_channel.exchange_delete(replace(cascade, powers=powers).marker)


def _delete_streams(connection: kombu.Connection) -> int | None:
    """Delete the streams of the prefix, unless another cascade leads to them; return what was deleted, or None.

    Also None if there are streams of which the options say nothing.
    """
    cascade, beside = connection.transport.delay_options.cascade, connection.connection.interceptor.streams()
    with declare.translate_errors(cascade):
        if not beside:
            return None if declare.exchange_exists(connection.default_channel, cascade.streams_root) else 0
        try:
            connection.default_channel.exchange_delete(cascade.streams_root, if_unused=True)
        except PreconditionFailed:
            return None
    return _delete(connection, [], [stream.name for stream in beside])


def _delete(connection: kombu.Connection, exchanges: Iterable[str], queues: Iterable[str]) -> int:
    """Delete exchanges and then queues, as far as they exist; return their number. Raises `NotPermitted`."""
    channel = connection.default_channel
    deleted = 0
    with declare.translate_errors(connection.transport.delay_options.cascade):
        for name in exchanges:  # ingest first, so that no new message enters
            if declare.exchange_exists(channel, name):
                channel.exchange_delete(name)
                deleted += 1
        for name in queues:
            if declare.queue_exists(channel, name):
                channel.queue_delete(name)
                deleted += 1
    return deleted

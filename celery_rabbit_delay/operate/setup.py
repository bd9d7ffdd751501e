"""Creates and deletes cascades."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import kombu

from ..amqp import declare
from ..amqp.confirms import ConfirmedChannel
from ..amqp.create import create_cascade
from ..core import streams
from ..core.destination import Destination
from ..core.errors import DestinationNotFound
from ..core.layouts import Layout1
from ..core.options import Options
from ..core.topology import Cascade, Topology
from .cascades import ever_declared
from .management import Management


def setup(
    connection: kombu.Connection, wanted: Iterable[Cascade], destinations: Iterable[Destination]
) -> list[Destination]:
    """Create cascades and their streams, and bind them to destinations; return the destinations that do not exist.

    The streams come last, because a broker without streams closes the connection. Raises `CascadeConflict`,
    `NotPermitted`, `InvalidDestination`, `UnsupportedConfiguration`.
    """
    options: Options = connection.transport.delay_options
    wanted = [cascade for cascade in wanted if cascade.shard == 1]
    for cascade in wanted:
        create_cascade(ConfirmedChannel(connection.connection), options.shards_of(cascade), options.confirm_timeout)
    lacking = []
    for destination in destinations:
        try:
            declare.bind_destination(connection.default_channel, options.shards_of(options.cascade), destination)
        except DestinationNotFound:
            lacking.append(destination)
    for cascade in wanted:
        for stream in options.streams:
            declare.bind_stream(connection.default_channel, cascade, stream)
    return lacking


def opaque_outboxes(connection: kombu.Connection, destinations: Iterable[Destination]) -> list[str]:
    """Return the outboxes that exist of `destinations` if AMQP does not show what their destinations do not take.

    That is so for quorum queues: such messages are not ready. Classic queues keep none.
    """
    if connection.transport.delay_options.queue_type == "classic":
        return []
    found = ever_declared(connection)
    topology = Topology.of(found, destinations)
    return [
        name
        for name in topology.queues
        if found[0].outbox_of(name) and declare.queue_exists(connection.default_channel, name)
    ]


def teardown(
    connection: kombu.Connection,
    destinations: Iterable[Destination],
    management: Management | None = None,
    kept: Collection[str] = (),
) -> int:
    """Delete all cascades with their messages, except the queues `kept`; return the number of deleted parts.

    Deletes the outboxes of `destinations`, and with the management API all others, which AMQP cannot list. Raises
    `NotPermitted`. After an interruption, call it again.
    """
    found = ever_declared(connection)
    topology = Topology.of(found, destinations, streams.all_streams(found[0]))
    # Last go those by which `ever_declared` finds all others: the shortest level of each shard, then the records.
    queues = list(reversed(topology.queues))
    if management is not None:
        queues = [*filter(found[0].outbox_of, management.queues()), *queues]
    exchanges, records = [found[0].record, found[0].root], [found[0].records]
    deleted = _delete(
        connection,
        [name for name in topology.exchanges if name not in exchanges],
        [name for name in dict.fromkeys(queues) if name not in (*kept, *records)],
    )
    return deleted + _delete(connection, exchanges, records)


def teardown_earlier(connection: kombu.Connection, earlier: Iterable[Layout1]) -> int:
    """Delete cascades of an earlier layout with their messages; return the number of deleted queues and exchanges.

    Raises `NotPermitted`.
    """
    return sum(_delete(connection, cascade.exchange_names(), [*cascade.queue_names()][::-1]) for cascade in earlier)


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

"""Creates and deletes cascades."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import kombu

from ..amqp import declare
from ..amqp.confirms import ConfirmedChannel
from ..amqp.create import create_cascade
from ..core import streams
from ..core.destination import Destination
from ..core.errors import DestinationNotFound
from ..core.options import Options
from ..core.topology import Cascade, Topology
from .cascades import existing, longest
from .management import Management
from .outboxes import existing_outboxes

#: Stands for all of them.
_SHORT_LIVED = Destination("", ("",), short_lived=True)


def setup(
    connection: kombu.Connection,
    wanted: Iterable[Cascade],
    destinations: Iterable[Destination],
    with_outboxes: bool = False,
) -> list[Destination]:
    """Create cascades and their streams, and bind them to destinations; return the destinations that do not exist.

    With `with_outboxes`, also create the outboxes of the option for each destination that is a queue. The streams come
    last, because a broker without streams closes the connection. Raises `CascadeConflict`, `NotPermitted`,
    `InvalidDestination`, `UnsupportedConfiguration`.
    """
    options: Options = connection.transport.delay_options
    wanted = list(wanted)
    for cascade in wanted:
        create_cascade(ConfirmedChannel(connection.connection), cascade)
    lacking = []
    for destination in destinations:
        outboxes = options.outbox_ticks if with_outboxes and not destination.exchange else ()
        try:
            declare.bind_destination(connection.default_channel, options.cascade, destination, (0, *outboxes))
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
    options: Options = connection.transport.delay_options
    if options.queue_type == "classic":
        return []
    shared = options.cascade.outbox_name(_SHORT_LIVED)
    found = [shared] if declare.queue_exists(connection.default_channel, shared) else []
    return found + [outbox.queue for outbox in existing_outboxes(connection, destinations)]


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
    found = existing(connection)
    topology = Topology.of(found, (), streams.all_streams(found[0]))
    # Messages go from levels into outboxes. The shortest level goes last: it shows that levels may be left.
    outboxes = [outbox.queue for outbox in existing_outboxes(connection, destinations, management)]
    if management is not None:  # others that somebody gave such a name, too
        outboxes += filter(found[0].outbox_address, management.queues())
    queues = dict.fromkeys([*outboxes, *reversed(topology.queues)])
    exchanges = [name for name in topology.exchanges if name != found[0].root]
    deleted = _delete(connection, exchanges, [name for name in queues if name not in kept])
    _delete_markers(connection)
    return deleted + _delete(connection, [found[0].root], [])


def _delete_markers(connection: kombu.Connection) -> None:
    """Delete the markers of processes with another `max_delay`. To delete what does not exist is no error."""
    with declare.translate_errors(connection.transport.delay_options.cascade):
        for cascade in connection.transport.delay_options.cascades(priorities=True):
            for powers in range(1, longest(cascade).powers + 1):
                connection.default_channel.exchange_delete(replace(cascade, powers=powers).marker)


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

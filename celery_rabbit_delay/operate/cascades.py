"""Finds the cascades, levels and outboxes that exist on a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import kombu
from amqp.exceptions import AccessRefused

from ..delay.amqp import declare
from ..delay.core.destination import Destination
from ..delay.core.errors import CascadeMissing
from ..delay.core.options import HOLDS_MESSAGES, TEN_YEARS, Options
from ..delay.core.topology import Cascade
from .addresses import Outbox, outbox_of
from .management import Snapshot


def cascades(connection: kombu.Connection) -> list[Cascade]:
    """Return the cascades that the options ask for, with their levels.

    A cascade `by_time` that exists is the last one. It is the only one if no levels exist, and publishers with the
    options use it.
    """
    options: Options = connection.transport.delay_options
    if not is_by_time(connection):
        return [options.cascade]
    uses_it = options.may_wait_by_time(connection.connection.server_version)
    is_only_one = uses_it and not _queue_exists(connection, options.cascade.levels[0].queue)
    return [*([] if is_only_one else [options.cascade]), options.by_time_cascade]


def is_by_time(connection: kombu.Connection) -> bool:
    """Return whether a cascade `by_time` exists, as far as this user may see it: RabbitMQ holds messages there."""
    options: Options = connection.transport.delay_options
    if connection.connection.server_version < HOLDS_MESSAGES:
        return False  # RabbitMQ would log an error
    with suppress(AccessRefused):
        return declare.exchange_exists(connection.default_channel, options.by_time_cascade.marker)
    return False


def require(connection: kombu.Connection, recorded: bool = False, are_there: bool = False) -> None:
    """Make sure that the cascade is there, or with `recorded` streams of its prefix, as far as this user may see it.

    With `are_there`, a cascade without streams will not do. Raises `CascadeMissing`.
    """
    options: Options = connection.transport.delay_options
    beside = connection.connection.interceptor.streams() if recorded else ()
    channel, root = connection.default_channel, options.cascade.root
    with suppress(AccessRefused):  # whatever is done next says what is not permitted
        if any(declare.queue_exists(channel, stream.name) for stream in beside):
            return
        if not declare.exchange_exists(channel, root):
            raise CascadeMissing(f"there is no cascade {root!r}: check --prefix and --tick, or run `setup`")
        if are_there:
            raise CascadeMissing(
                f"nothing is recorded beside the cascade {root!r}: add schedule=True to install(app), for its workers "
                "and publishers, or run `setup` with --schedule"
            )


def existing(connection: kombu.Connection) -> list[Cascade]:
    """Return the same as `cascades`, with the longer levels that processes with a larger `max_delay` have declared."""
    return [with_longer_levels(connection, cascade) for cascade in cascades(connection)]


def with_longer_levels(connection: kombu.Connection, cascade: Cascade) -> Cascade:
    """Return a cascade with the longer levels that exist."""
    for level in reversed(longest(cascade).levels[cascade.powers :]):
        if _queue_exists(connection, level.queue):
            return replace(cascade, powers=level.ticks.bit_length())
    return cascade


def longest(cascade: Cascade) -> Cascade:
    """Return a cascade with all levels that any process can have declared."""
    options = Options(tick=cascade.tick.total_seconds(), max_delay=TEN_YEARS)
    return replace(cascade, powers=max(cascade.powers, options.cascade.powers))


def existing_outboxes(
    connection: kombu.Connection, destinations: Iterable[Destination] = (), snapshot: Snapshot | None = None
) -> list[Outbox]:
    """Return the outboxes that exist, those without a delay first.

    AMQP does not list queues. Without a snapshot these are outboxes of `destinations`, with the delays of the option.
    RabbitMQ logs an error for each missing one that is asked for, so nothing more is asked where the outbox without a
    delay is missing.
    """
    options: Options = connection.transport.delay_options
    names = snapshot.queues if snapshot else _outboxes_of(connection, destinations)
    found = filter(None, (outbox_of(options.cascade, name) for name in names))
    return sorted(found, key=lambda outbox: (outbox.ticks, outbox.queue))


def _outboxes_of(connection: kombu.Connection, destinations: Iterable[Destination]) -> Iterator[str]:
    options: Options = connection.transport.delay_options
    for destination in destinations:
        if destination.is_short_lived:
            continue
        for ticks in (0, *options.outbox_ticks):
            name = options.cascade.outbox_name(destination, ticks)
            if _queue_exists(connection, name):
                yield name
            elif not ticks:
                break


def _queue_exists(connection: kombu.Connection, name: str) -> bool:
    """Return whether a queue exists, as far as this user may see it: RabbitMQ 4.3 hides others."""
    with suppress(AccessRefused):
        return declare.queue_exists(connection.default_channel, name)
    return False

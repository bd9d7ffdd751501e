"""Finds the cascades and levels that exist on a broker."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import kombu
from amqp.exceptions import AccessRefused

from ..amqp import declare
from ..core.errors import CascadeMissing
from ..core.options import TEN_YEARS, Options
from ..core.topology import Cascade


def cascades(connection: kombu.Connection, priorities: bool | None = None) -> list[Cascade]:
    """Return the cascade for normal messages, and with `priorities` also that for priorities above 4.

    With None, the latter is included if it exists. Their levels are those of the options.
    """
    options: Options = connection.transport.delay_options
    if priorities is None:
        priorities = _exists(connection, options.high_cascade)
    return options.cascades(priorities)


def require(connection: kombu.Connection) -> None:
    """Make sure that the cascade is there, as far as this user may see it. Raises `CascadeMissing`."""
    root = connection.transport.delay_options.cascade.root
    with suppress(AccessRefused):  # whatever is done next says what is not permitted
        if not declare.exchange_exists(connection.default_channel, root):
            raise CascadeMissing(
                f"there is no cascade {root!r}: check --prefix, --tick and --queue-type, or run `setup`"
            )


def existing(connection: kombu.Connection, priorities: bool | None = None) -> list[Cascade]:
    """Return the same as `cascades`, with the longer levels that processes with a larger `max_delay` have declared."""
    return [_with_longer_levels(connection, cascade) for cascade in cascades(connection, priorities)]


def longest(cascade: Cascade) -> Cascade:
    """Return a cascade with all levels that any process can have declared."""
    options = Options(tick=cascade.tick.total_seconds(), max_delay=TEN_YEARS)
    return replace(cascade, powers=max(cascade.powers, options.cascade.powers))


def _with_longer_levels(connection: kombu.Connection, cascade: Cascade) -> Cascade:
    for level in reversed(longest(cascade).levels[cascade.powers :]):
        with suppress(AccessRefused):
            if declare.queue_exists(connection.default_channel, level.queue):
                return replace(cascade, powers=level.ticks.bit_length())
    return cascade


def _exists(connection: kombu.Connection, cascade: Cascade) -> bool:
    """Return whether a cascade exists. An interrupted `teardown` has deleted ingest, but not yet the shortest level."""
    channel = connection.default_channel
    try:
        ingest_exists = declare.exchange_exists(channel, cascade.ingest)
        return ingest_exists or declare.queue_exists(channel, cascade.levels[0].queue)
    except AccessRefused:  # RabbitMQ 4.3 hides it; the next operation raises an error about the permission
        return False

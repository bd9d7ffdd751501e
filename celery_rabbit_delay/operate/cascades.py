"""Finds the cascades and levels that exist on a broker."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import kombu
from amqp.exceptions import AccessRefused

from ..amqp import declare
from ..amqp.only_reader import only_reader
from ..amqp.waiting import look
from ..core.errors import CascadeMissing
from ..core.layouts import Layout1
from ..core.levels import is_power_of_two
from ..core.options import TEN_YEARS, Options
from ..core.topology import Cascade

logger = logging.getLogger(__name__)


def cascades(connection: kombu.Connection, priorities: bool | None = None) -> list[Cascade]:
    """Return all shards of the cascade for normal messages, and with `priorities` of that for priorities above 4.

    With None, the latter is included if it exists. Shards and levels are those of the options.
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
    """Return the same as `cascades`, with all shards and levels that any process has declared.

    Of a shard that only other processes ask for, only the levels that exist: they may use other lanes.
    """
    options: Options = connection.transport.delay_options
    shards = _shards(connection, priorities)
    recorded = _recorded(connection, shards)
    found = []
    for shard in shards:
        others = [one for one in recorded if one.base_name == shard.base_name]
        if shard.shard <= options.shards:
            found.append(_with_levels_of(connection, shard, others))
        else:
            found.append(_with_levels_of(connection, replace(shard, powers=0, lanes=()), [shard, *others]))
    return found


def ever_declared(connection: kombu.Connection) -> list[Cascade]:
    """Return all cascades that may have been declared under these names, each with its levels at that time."""
    shards = _shards(connection, priorities=True)
    return [*shards, *_recorded(connection, shards)]


def _shards(connection: kombu.Connection, priorities: bool | None) -> list[Cascade]:
    """Return the same as `cascades`, with all shards that exist."""
    wanted = cascades(connection, priorities)
    found = []
    for first in wanted:
        for number in itertools.count(1) if first.shard == 1 else ():
            shard = replace(first, shard=number)
            if shard not in wanted and not _exists(connection, shard):
                break
            found.append(shard)
    return found


def _exists(connection: kombu.Connection, shard: Cascade) -> bool:
    """Return whether a shard exists. An interrupted `teardown` has deleted ingest, but not yet the shortest level."""
    channel = connection.default_channel
    try:
        ingest_exists = declare.exchange_exists(channel, shard.ingest)
        return ingest_exists or declare.queue_exists(channel, shard.levels[0].queue)
    except AccessRefused:  # RabbitMQ 4.3 hides it; the next operation raises an error about the permission
        return False


def _with_levels_of(connection: kombu.Connection, cascade: Cascade, others: Iterable[Cascade]) -> Cascade:
    """Return a cascade, also with those levels of others that exist on the broker."""
    levels = {level for other in others for level in other.levels}.difference(cascade.levels)
    there = {level.ticks for level in levels if declare.queue_exists(connection.default_channel, level.queue)}
    powers = max((ticks.bit_length() for ticks in there if is_power_of_two(ticks)), default=cascade.powers)
    lanes = sorted({*cascade.lanes, *(ticks for ticks in there if not is_power_of_two(ticks))})
    return replace(cascade, powers=powers, lanes=tuple(lanes))


def _recorded(connection: kombu.Connection, shards: Sequence[Cascade]) -> list[Cascade]:
    """Return the shards with each recorded set of levels, and log a warning about malformed records."""
    records = _records(connection, shards[0])
    found = [shard.with_recorded_levels(record) for shard in shards for record in records]
    known = [cascade for cascade in found if cascade is not None]
    if made_up := (len(found) - len(known)) // len(shards):
        logger.warning("%d malformed messages of the queue %r are skipped", made_up, shards[0].records)
    return known


def _records(connection: kombu.Connection, cascade: Cascade) -> list[str | bytes]:
    """Return the records of all sets of levels; none without permission to read them."""
    with suppress(AccessRefused), only_reader(connection.default_channel, cascade.records):
        return [message.body for message in look(connection, cascade.records)]
    return []


def earlier_layout(connection: kombu.Connection, layout: int) -> list[Layout1]:
    """Return the cascades of an earlier layout with all possible levels, even if they do not exist."""
    assert layout == Layout1.layout
    options: Options = connection.transport.delay_options
    longest = Options(tick=options.tick, max_delay=TEN_YEARS).cascade
    return [
        Layout1(replace(longest, prefix=options.prefix, queue_type=options.queue_type, high=high))
        for high in (False, True)
    ]

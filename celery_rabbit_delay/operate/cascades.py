"""Which cascades of a broker an operator means."""

from __future__ import annotations

from dataclasses import replace

import kombu
from amqp.exceptions import AccessRefused

from ..amqp import declare
from ..core.layouts import Layout1
from ..core.options import TEN_YEARS, Options
from ..core.topology import Cascade


def cascades(connection: kombu.Connection, priorities: bool | None = None) -> list[Cascade]:
    """Return the cascade for normal messages, and that for priorities above 4 if wanted or, with None, if it exists."""
    options: Options = connection.transport.delay_options
    found = [options.cascade]
    if options.high_cascade != options.cascade_for(9):  # classic levels have no second one
        return found
    if priorities is None:
        try:
            priorities = declare.exchange_exists(connection.default_channel, options.high_cascade.ingest)
        except AccessRefused:  # RabbitMQ 4.3 hides it; whatever is done next says what is not permitted
            priorities = False
    return [*found, options.high_cascade] if priorities else found


def with_all_levels(connection: kombu.Connection, cascade: Cascade) -> Cascade:
    """Return a cascade with the longer levels that others, with a larger `max_delay`, have added on the broker."""
    longest = Options(tick=cascade.tick.total_seconds(), max_delay=TEN_YEARS).cascade.powers
    powers = cascade.powers
    while powers < longest and declare.queue_exists(
        connection.default_channel, replace(cascade, powers=powers + 1).levels[-1].queue
    ):
        powers += 1
    return replace(cascade, powers=powers)


def earlier_layout(connection: kombu.Connection, layout: int, priorities: bool | None = None) -> list[Layout1]:
    """Return the cascades of an earlier layout, with all their levels, whether they exist or not."""
    assert layout == Layout1.layout
    options: Options = connection.transport.delay_options
    longest = Options(tick=options.tick, max_delay=TEN_YEARS).cascade
    return [
        Layout1(replace(longest, prefix=options.prefix, queue_type=options.queue_type, high=high))
        for high in (False, True)
    ]

"""Chooses between the kinds of cascade, and creates one, over several channels."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from amqp.exceptions import NotFound

from ..core.errors import CascadeMissing
from ..core.options import Options
from ..core.topology import Cascade
from . import declare, delivery_time
from .confirms import ANSWERS, ConfirmedChannel
from .delivery_time import BrokerClock

logger = logging.getLogger(__name__)

#: The broker processes the declarations of one channel one by one. More than four channels are barely faster.
CHANNELS = 4


def choose(channel: ConfirmedChannel, options: Options, cascade: Cascade) -> tuple[Cascade, BrokerClock | None]:
    """Return the cascade to publish into, and the clock if it is `by_time`. Asks the broker if this process has to.

    It is the one with levels where the options or the release of RabbitMQ are against the other, where messages do not
    wait, and where this cannot be found out.
    """
    if not options.may_wait_by_time(channel.server_version):
        return cascade, None
    by_time, connection = options.by_time_cascade, channel.get_channel().connection
    key = connection.host, connection.virtual_host, by_time.root
    clock = delivery_time.known.get(key)
    if clock is None or clock.is_old:
        clock = _find_out(channel, by_time)
        other = delivery_time.known.get(key, clock)
        if clock.ahead is None and not other.is_old:  # another thread may have had to wait for less
            clock = other
        delivery_time.known[key] = clock
    return (cascade, None) if clock.ahead is None else (by_time, clock)


def _find_out(channel: ConfirmedChannel, by_time: Cascade) -> BrokerClock:
    try:
        if declare.exchange_exists(channel.get_channel(), by_time.marker):
            with suppress(CascadeMissing):  # some of its parts may be gone
                clock = delivery_time.ask(channel, by_time, is_proved=True)
                if clock.ahead is not None:
                    return clock
        create_parts(channel, by_time)
        clock = delivery_time.ask(channel, by_time, is_proved=False)
        if clock.ahead is not None:
            create_marker(channel, by_time)
        return clock
    except ANSWERS as exc:
        logger.info("Delayed messages pass levels: whether RabbitMQ holds them itself cannot be found out: %s", exc)
        return delivery_time.unknown()


def create_cascade(channel: ConfirmedChannel, cascade: Cascade) -> None:
    """Declare all parts of a cascade, including those that exist already.

    Safe in many processes at once, because declarations are idempotent. Raises `CascadeConflict`, `NotPermitted`.
    """
    create_parts(channel, cascade)
    create_marker(channel, cascade)


def create_parts(channel: ConfirmedChannel, cascade: Cascade) -> None:
    """Declare all parts of a cascade but its marker. Raises as `create_cascade`."""
    with channel.several(CHANNELS) as channels, declare.translate_errors(cascade):
        try:
            _declare(channels, cascade)
        except NotFound:
            # RabbitMQ with Mnesia looks for a queue in two tables, one after the other. If another connection creates
            # the queue in between, it reports a node that is down (rabbit_amqqueue:not_found_or_absent_dirty).
            _declare(channels, cascade)
        if channel.server_version < declare.SHOWS_WHAT_STARTED:  # another process may just be creating them
            time.sleep(declare.STARTED_AFTER)


def create_marker(channel: ConfirmedChannel, cascade: Cascade) -> None:
    """Show that all other parts are there. Raises as `create_cascade`."""
    with declare.translate_errors(cascade):
        declare.declare_exchange(channel.get_channel(), list(cascade.exchanges())[-1])


def _declare(channels: Sequence[Any], cascade: Cascade) -> None:
    *exchanges, _ = cascade.exchanges()
    _declare_all(channels[:1], exchanges, declare.declare_exchange)
    _declare_all(channels, list(cascade.queues()), declare.declare_queue)
    declare.save(channels[0], cascade)
    _declare_all(channels, list(cascade.bindings()), declare.bind)


def _declare_all(channels: Sequence[Any], parts: Sequence[Any], ask_for: Callable[..., None]) -> None:
    """Declare parts on all channels in parallel, and wait for the answer to the last part on each."""
    ways = [(channel, parts[number :: len(channels)]) for number, channel in enumerate(channels)]
    for channel, some in ways:
        for part in some[:-1]:
            ask_for(channel, part, nowait=True)
    for channel, some in ways:
        for part in some[-1:]:
            ask_for(channel, part)

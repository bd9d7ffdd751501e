"""Creates a cascade, and the streams beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from amqp.exceptions import NotFound

from ..core.errors import CascadeMissing
from ..core.options import Options
from ..core.topology import Cascade, Stream
from . import declare
from .confirms import ConfirmedChannel

#: The broker processes the declarations of one channel one by one. More than four channels are barely faster.
CHANNELS = 4


def create_cascade(channel: ConfirmedChannel, cascade: Cascade) -> None:
    """Declare all parts of a cascade, including those that exist already.

    Safe in many processes at once, because declarations are idempotent. Raises `CascadeConflict`, `NotPermitted`.
    """
    with channel.several(CHANNELS) as channels, declare.translate_errors(cascade):
        try:
            _declare(channels, cascade)
        except NotFound:
            # RabbitMQ with Mnesia looks for a queue in two tables, one after the other. If another connection creates
            # the queue in between, it reports a node that is down (rabbit_amqqueue:not_found_or_absent_dirty).
            _declare(channels, cascade)


def _declare(channels: Sequence[Any], cascade: Cascade) -> None:
    *exchanges, marker = cascade.exchanges()
    _declare_all(channels[:1], exchanges, declare.declare_exchange)
    _declare_all(channels, list(cascade.queues()), declare.declare_queue)
    _declare_all(channels, list(cascade.bindings()), declare.bind)
    if not declare.exchange_exists(channels[0], marker.name):
        time.sleep(declare.SAVED_AFTER)
        declare.declare_exchange(channels[0], marker)  # it shows that all others are there, and are on the disk


def _declare_all(channels: Sequence[Any], parts: Sequence[Any], ask_for: Callable[..., None]) -> None:
    """Declare parts on all channels in parallel, and wait for the answer to the last part on each."""
    ways = [(channel, parts[number :: len(channels)]) for number, channel in enumerate(channels)]
    for channel, some in ways:
        for part in some[:-1]:
            ask_for(channel, part, nowait=True)
    for channel, some in ways:
        for part in some[-1:]:
            ask_for(channel, part)


def ensure_stream(channel: ConfirmedChannel, options: Options, cascade: Cascade, stream: Stream) -> None:
    """Create a stream, and its cascade if that is missing, and lead to the stream from ingest.

    Raises `UnsupportedConfiguration` without streams, `CascadeMissing` with `declare="passive"`, and the errors of
    `create_cascade` and `declare.bind_stream`.
    """
    options.require_streams()
    if options.declare == "passive":
        raise CascadeMissing(
            f'declare="passive", and the broker lacks the stream {stream.name!r}: run `celery -A APP delay setup`'
        )
    try:
        declare.bind_stream(channel.get_channel(), cascade, stream)
    except CascadeMissing:
        create_cascade(channel, cascade)
        declare.bind_stream(channel.get_channel(), cascade, stream)

"""Creates the streams beside a cascade: workers do it when they start, `setup`, and whoever writes a change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import kombu
from amqp import Message
from amqp.exceptions import InternalError, PreconditionFailed

from ...delay.amqp import declare
from ...delay.amqp.confirms import ConfirmedChannel, NotStored
from ...delay.amqp.connecting import copy_of
from ...delay.amqp.create import choose, create_cascade
from ...delay.core.errors import CascadeConflict, CascadeMissing, UnsupportedConfiguration
from ...delay.core.options import Options
from ...delay.core.topology import Cascade, Stream
from ...operate.broker_connection import connected
from ..core import streams


def create_streams(channel: ConfirmedChannel, options: Options, cascade: Cascade, wanted: Sequence[Stream]) -> None:
    """Create streams, and the cascade if that is missing, and lead to the streams from ingest.

    Workers call this when they start, whoever writes a change that must not be lost, and nobody who publishes. Raises
    `UnsupportedConfiguration` without streams, `CascadeMissing` with `declare="passive"`, and the errors of
    `create_cascade` and `bind_stream`.
    """
    streams.require_schedule(options)
    if options.declare == "passive":
        raise CascadeMissing(
            f'declare="passive", and the broker lacks the stream {wanted[0].name!r}: run `celery -A APP delay setup`'
        )
    try:
        lead_to_streams(channel, cascade, wanted)
    except CascadeMissing:
        cascade, _ = choose(channel, options, cascade)
        create_cascade(channel, cascade)
        lead_to_streams(channel, cascade, wanted)


def lead_to_streams(channel: ConfirmedChannel, cascade: Cascade, wanted: Iterable[Stream]) -> None:
    """Create streams, and lead to them from ingest. Raises as `bind_stream`.

    That of changes gets a first message, which says nothing: who follows a stream asks for the last one again to see
    whether RabbitMQ still sends it.
    """
    mark, binding = cascade.streams_mark
    declare.declare_exchange(channel.get_channel(), mark, nowait=True)
    declare.bind(channel.get_channel(), binding, nowait=True)  # before the streams, which a `teardown` may be deleting
    for stream in wanted:
        bind_stream(channel.get_channel(), cascade, stream)
        if stream.name == streams.changes(cascade).name and not declare.message_count(
            channel.get_channel(), stream.name
        ):
            with suppress(NotStored):
                channel.publish(Message(b"", delivery_mode=2), cascade.ingest, stream.routing_key)


def make_streams(client: kombu.Connection, wanted: Sequence[Stream], seconds: float | None = None) -> None:
    """Create streams over a connection of its own, which a broker without streams closes, within so many seconds.

    Raises as `create_streams`; without a connection `kombu.exceptions.OperationalError`.
    """
    options: Options = client.transport.delay_options
    with connected(copy_of(client, "follower")) as connection, connection.connection.within(seconds):
        create_streams(ConfirmedChannel(connection.connection), options, options.cascade, wanted)


def bind_stream(channel: Any, cascade: Cascade, stream: Stream) -> None:
    """Create a stream and lead to it from ingest.

    Raises `CascadeMissing`, and `NotPermitted`; `UnsupportedConfiguration` if the broker cannot create streams, for
    which it closes the connection.
    """
    with declare.translate_errors(cascade):
        try:
            declare.declare_queue(channel, stream.queue, nowait=True)
            declare.bind(channel, cascade.stream_binding(stream))
        except PreconditionFailed as exc:
            if declare.is_limit(exc):
                raise
            raise CascadeConflict(
                f"the stream {stream.name!r} exists, but keeps its messages for another time ({exc.reply_text}): give "
                "apps with the same prefix the same `max_delay` if one is longer than a year, or another prefix"
            ) from None
        except InternalError as exc:
            raise UnsupportedConfiguration(
                f"RabbitMQ cannot create the stream {stream.name!r} ({exc}). If it has no streams, leave schedule=True "
                "out: delayed tasks work without, but none can be listed, cancelled or moved"
            ) from None

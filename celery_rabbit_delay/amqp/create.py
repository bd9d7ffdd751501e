"""Creates a cascade, and says on the broker what was created."""

from __future__ import annotations

from collections.abc import Sequence

from amqp import Message

from ..core.errors import CascadeMissing
from ..core.topology import Cascade, Stream
from . import declare
from .confirms import ConfirmedChannel

#: The broker declares what comes on one channel part by part. More than four channels are hardly faster.
CHANNELS = 4


def create_cascade(channel: ConfirmedChannel, shards: Sequence[Cascade], timeout: float | None = None) -> None:
    """Declare all shards of a cascade, whatever of them is there already.

    Safe in many processes at once. A set of levels that is new is recorded: what is in no record is not found once
    nobody's options name it any more. Raises `CascadeConflict`, `NotPermitted`, `NotStored`.
    """
    first = shards[0]
    amqp = channel.get_channel()
    with declare.translate_errors(first):
        is_new = not all(declare.exchange_exists(amqp, shard.marker) for shard in shards)
        with channel.several(CHANNELS) as channels:
            declare.declare_shards(channels, shards)
        if is_new:
            record = Message(first.levels_record(), delivery_mode=2)
            channel.publish(record, first.record, "", confirm_timeout=timeout)
        declare.declare_markers(amqp, shards)


def ensure_stream(
    channel: ConfirmedChannel, shards: Sequence[Cascade], stream: Stream, timeout: float | None = None
) -> None:
    """Create a stream, and the cascade if it is missing, and lead ingest to it. Raises as `create_cascade`."""
    try:
        declare.bind_stream(channel.get_channel(), shards[0], stream)
    except CascadeMissing:
        create_cascade(channel, shards, timeout)
        declare.bind_stream(channel.get_channel(), shards[0], stream)

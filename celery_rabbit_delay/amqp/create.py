"""Creates a cascade, and records its levels on the broker."""

from __future__ import annotations

from collections.abc import Sequence

from amqp import Message

from ..core.errors import CascadeMissing
from ..core.options import Options
from ..core.topology import Cascade, Stream
from . import declare
from .confirms import ConfirmedChannel, patiently

#: The broker processes the declarations of one channel one by one. More than four channels are barely faster.
CHANNELS = 4


def create_cascade(channel: ConfirmedChannel, shards: Sequence[Cascade], timeout: float | None = None) -> None:
    """Declare all shards of a cascade, including the parts that exist already.

    Safe in many processes at once. Records a new set of levels: without a record, levels cannot be found once no
    process has options for them. Raises `CascadeConflict`, `NotPermitted`, `NotStored`.
    """
    first = shards[0]
    amqp = channel.get_channel()
    with declare.translate_errors(first):
        is_new = not all(declare.exchange_exists(amqp, shard.marker) for shard in shards)
        with channel.several(CHANNELS) as channels:
            declare.declare_shards(channels, shards)
        if is_new:
            record = Message(first.levels_record(), delivery_mode=2)
            patiently(lambda: channel.publish(record, first.record, "", confirm_timeout=timeout))
        declare.declare_markers(amqp, shards)


def ensure_stream(channel: ConfirmedChannel, options: Options, cascade: Cascade, stream: Stream) -> None:
    """Create a stream, and its cascade if that is missing, and bind the stream to ingest.

    Raises `CascadeMissing` with `declare="passive"`, and the errors of `create_cascade` and `declare.bind_stream`.
    """
    if options.declare == "passive":
        raise CascadeMissing(
            f'declare="passive", and the broker lacks the stream {stream.name!r}: run `celery -A APP delay setup`'
        )
    shards = options.shards_of(cascade)
    try:
        declare.bind_stream(channel.get_channel(), shards[0], stream)
    except CascadeMissing:
        create_cascade(channel, shards, options.confirm_timeout)
        declare.bind_stream(channel.get_channel(), shards[0], stream)

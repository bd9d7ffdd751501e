"""Creates a cascade, and the streams beside it."""

from __future__ import annotations

from ..core.errors import CascadeMissing
from ..core.options import Options
from ..core.topology import Cascade, Stream
from . import declare
from .confirms import ConfirmedChannel

#: The broker processes the declarations of one channel one by one. More than four channels are barely faster.
CHANNELS = 4


def create_cascade(channel: ConfirmedChannel, cascade: Cascade) -> None:
    """Declare a cascade, including the parts that exist already.

    Safe in many processes at once. Raises `CascadeConflict`, `NotPermitted`.
    """
    with channel.several(CHANNELS) as channels:
        declare.declare_cascade(channels, cascade)


def ensure_stream(channel: ConfirmedChannel, options: Options, cascade: Cascade, stream: Stream) -> None:
    """Create a stream, and its cascade if that is missing, and lead to the stream from ingest.

    Raises `CascadeMissing` with `declare="passive"`, and the errors of `create_cascade` and `declare.bind_stream`.
    """
    if options.declare == "passive":
        raise CascadeMissing(
            f'declare="passive", and the broker lacks the stream {stream.name!r}: run `celery -A APP delay setup`'
        )
    try:
        declare.bind_stream(channel.get_channel(), cascade, stream)
    except CascadeMissing:
        create_cascade(channel, cascade)
        declare.bind_stream(channel.get_channel(), cascade, stream)

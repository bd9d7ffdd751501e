"""Moves waiting messages into another cascade."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Container, Iterator
from functools import partial

import kombu
from amqp.exceptions import ResourceLocked

from ..amqp import declare
from ..amqp.clocks import utc_ms
from ..amqp.receiving import known_to, learn
from ..amqp.replaying import ANYWHERE, Allowed
from ..amqp.reschedule import REFUSALS, TOO_LATE, move
from ..amqp.schedule import Progress, Report, headers_in, skipped, waiting, write_changes
from ..core import headers as headers_
from ..core import streams
from ..core.errors import DelayError
from ..core.fates import Fate, fate
from ..core.streams import Unreadable

logger = logging.getLogger(__name__)


def migrate(
    source: kombu.Connection,
    target: kombu.Connection,
    allowed: Allowed = ANYWHERE,
    progress: Progress | None = None,
    report: Report = logger.warning,
) -> Iterator[tuple[str, DelayError | None]]:
    """Move the recorded messages that wait in the cascade of `source` into that of `target`; each keeps its due time.

    Yields the id of each, and why it was not moved. What has no record, or is due within two seconds, stays, and is
    delivered when due. An interruption loses no message; start it again. The message that was being moved may be
    delivered twice. One with a key becomes the last of its key, unless the target knows the key: then it is delivered
    besides that later message. Raises the errors of `reschedule` and `scheduled`.
    """
    own_options, options = source.transport.delay_options, target.transport.delay_options
    write_changes(source, [streams.marker()])  # so that the stream is there to be followed
    learn(source)
    learn(target)
    known, keys = known_to[source], known_to[source].keys[own_options.prefix]
    #: Keys of which the target may have a later message.
    later: Container[str] = ()
    if not _share_streams(source, target):
        later = known_to[target].keys[options.prefix]
    moved: set[int] = set()
    for record in waiting(source, progress, report):
        # The streams also have what waits with other ticks, and twice what was published again after an error.
        try:
            state = headers_.read_state(headers_in(record))
        except Unreadable as exc:
            report(skipped(record, exc))
            continue
        if state is None or state.root != own_options.cascade.root or record.number in moved:
            continue
        source.connection.following.poll()  # it may be cancelled meanwhile
        became = fate(known.changes, keys, record.number, record.id, partial(headers_in, record))
        if became is not Fate.WAITS or record.due < utc_ms() + TOO_LATE:
            continue
        moved.add(record.number)
        try:
            move(source, [record], headers_.moment(record.due), allowed, target, keeps_key=record.key not in later)
            refused: DelayError | None = None
        except REFUSALS as exc:
            refused = exc
        yield record.id, refused


def is_same(source: kombu.Connection, target: kombu.Connection) -> bool:
    """Return whether two connections are for the same cascade."""
    roots = {one.transport.delay_options.cascade.root for one in (source, target)}
    return len(roots) == 1 and _share_streams(source, target)


def _share_streams(source: kombu.Connection, target: kombu.Connection) -> bool:
    """Return whether two connections are for cascades of one prefix: each also sees the other's exclusive queue."""
    cascade = target.transport.delay_options.cascade
    if source.transport.delay_options.prefix != cascade.prefix:
        return False
    name = f"{cascade.root}.migrate.{uuid.uuid4()}"
    target.default_channel.queue_declare(name, exclusive=True)
    try:
        return declare.queue_exists(source.default_channel, name)
    except ResourceLocked:  # the other connection owns the queue
        return True

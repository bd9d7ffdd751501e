"""Counts the messages in the queues of a cascade."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import kombu

from ..amqp import declare
from ..core import streams
from ..core.destination import SHORT_LIVED, Destination, decode, is_address
from ..core.layouts import Layout1
from ..core.routing_key import SENTINEL
from ..core.topology import Binding, Cascade
from .management import Management

#: The columns of a queue in the management API.
Row = Mapping[str, Any]

#: The reason for messages in an outbox if no problem is known.
_PASSING = "it may be on its way"

#: The maximum number of short-lived queues to name.
_FEW = 5


class LevelStatus(NamedTuple):
    """A level's queue. `ready` messages wait; `unsettled` ones are between this queue and the next (None: unknown)."""

    queue: str
    shard: int | None  # None: all, and `queue` is that of the first
    ttl: int  # milliseconds
    ready: int | None  # None: the queue is missing
    unsettled: int | None


class OutboxStatus(NamedTuple):
    """An outbox with messages that its destination has not accepted."""

    queue: str
    destination: str
    stuck: int
    reason: str  # as far as it can be known
    is_stuck: bool  # whether the cause is known; otherwise the messages may be there only for a moment
    text: str  # the part of the name that says what the destination is, the same in all shards

    def __str__(self) -> str:
        return f"{self.stuck:,} due for {self.destination}: {self.reason}"


class StreamStatus(NamedTuple):
    """A stream beside the cascade. RabbitMQ deletes its messages by age, not on delivery."""

    queue: str
    messages: int | None  # None: there is none


class Status(NamedTuple):
    """The message counts of cascades and of what stands beside them."""

    levels: list[LevelStatus]
    first_shard: dict[str, str]  # a level's queue -> the queue of the same level in the first shard
    orphans: int | None  # None: the queue is missing
    destinations: list[str] | None  # of the cascade; None: unknown
    outboxes: list[OutboxStatus] | None  # those that hold messages; None: unknown
    streams: list[StreamStatus]
    #: The number of orphans some seconds ago, including those that somebody was looking at; 0 if unknown.
    all_orphans: int = 0

    @property
    def waiting(self) -> int:
        return sum((level.ready or 0) + (level.unsettled or 0) for level in self.levels)

    @property
    def stuck(self) -> int:
        """The number of due messages that their destinations have not accepted, as far as known."""
        return sum(outbox.stuck for outbox in self.outboxes or ())

    @property
    def has_problems(self) -> bool:
        """Whether something is missing, or takes what is due from nobody as far as it is known."""
        held_up = any(outbox.is_stuck for outbox in self.outboxes or ())
        return bool(self.blocked or self.orphans or held_up) or any(level.ready is None for level in self.levels)

    @property
    def outboxes_added_up(self) -> list[OutboxStatus] | None:
        """Each destination once for each reason, with the sums of all shards."""
        return None if self.outboxes is None else add_up(self.outboxes)

    @property
    def added_up(self) -> list[LevelStatus]:
        """Each level once, with the sums of all shards."""
        shards: dict[str, list[LevelStatus]] = {}
        for level in self.levels:
            shards.setdefault(self.first_shard[level.queue], []).append(level)
        return [
            levels[0]._replace(
                queue=queue,
                shard=None,
                ready=_sum(level.ready for level in levels),
                unsettled=_sum(level.unsettled for level in levels),
            )
            for queue, levels in shards.items()
        ]

    @property
    def blocked(self) -> list[LevelStatus]:
        """Levels with as many unsettled messages as at-least-once dead lettering allows. A burst looks the same.

        https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
        """
        return [level for level in self.levels if (level.unsettled or 0) >= 32]


def status(connection: kombu.Connection, wanted: Iterable[Cascade], management: Management | None = None) -> Status:
    """Return the message counts. Messages between two queues are visible only with the management API."""
    wanted = list(wanted)
    channel = connection.default_channel
    rows = management.queues() if management else {}
    levels, first_shard = [], {}
    for cascade in wanted:
        # Down, as messages go: none may pass from a level that is not counted yet to one that is.
        ready = {level.queue: declare.message_count(channel, level.queue) for level in reversed(cascade.levels)}
        for level, first in zip(cascade.levels, replace(cascade, shard=1).levels, strict=True):
            first_shard[level.queue] = first.queue
            on_the_way = unsettled(rows[level.queue]) if level.queue in rows else None
            levels.append(LevelStatus(level.queue, cascade.shard, level.ttl, ready[level.queue], on_the_way))
    orphans = declare.message_count(channel, wanted[0].orphans)
    beside = [
        StreamStatus(stream.name, declare.message_count(channel, stream.name))
        for stream in streams.all_streams(wanted[0])
    ]
    if management is None:
        return Status(levels, first_shard, orphans, None, None, beside)
    bindings = management.bindings()
    destinations = {binding.destination for binding in bindings if binding.source in wanted[0].exits}
    stuck = _outboxes(wanted, rows, bindings)
    all_orphans = int(rows.get(wanted[0].orphans, {}).get("messages") or 0)
    return Status(levels, first_shard, orphans, sorted(destinations - {wanted[0].discard}), stuck, beside, all_orphans)


def outboxes(wanted: Iterable[Cascade], management: Management) -> list[OutboxStatus]:
    """Return the outboxes of cascades that hold messages."""
    return _outboxes(wanted, management.queues(), management.bindings())


def add_up(found: Iterable[OutboxStatus]) -> list[OutboxStatus]:
    """Return each destination once for each reason, with the sums of all shards and the first shard's queue."""
    shards: dict[tuple[str, str], list[OutboxStatus]] = {}
    for outbox in found:
        shards.setdefault((outbox.text, outbox.reason), []).append(outbox)
    return [same[0]._replace(stuck=sum(outbox.stuck for outbox in same)) for same in shards.values()]


def _outboxes(wanted: Iterable[Cascade], rows: Mapping[str, Row], bindings: Collection[Binding]) -> list[OutboxStatus]:
    first = next(iter(wanted))
    return [
        _outbox(first, row, text, rows, bindings)
        for name, row in rows.items()
        if row.get("messages") and (text := first.outbox_of(name))
    ]


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if any is missing."""
    counts = list(counts)
    return None if None in counts else sum(filter(None, counts))


def _outbox(
    cascade: Cascade, row: Row, text: str, rows: Mapping[str, Row], bindings: Collection[Binding]
) -> OutboxStatus:
    """Return the status of an outbox, with the cause that the API shows for its destination."""
    queues: Iterable[str] = ()
    reason, is_stuck = _PASSING, False
    exchange, *names = _names(cascade, row["name"], text, bindings) or ("",)
    if f"{SENTINEL}.{text}" == SHORT_LIVED:
        queues = sorted({b.destination for b in bindings if b.source == cascade.short_lived_exit})
        destination = "short-lived queues"
        if 0 < len(queues) <= _FEW:
            destination += f" {', '.join(map(repr, queues))}"
    elif not names:
        destination = "a destination with a long name"
    elif exchange:
        key = names[0] or None
        destination = str(Destination(exchange, key=key))
        bound = [b for b in bindings if b.source == exchange and key in (None, b.routing_key)]
        queues = sorted(b.destination for b in bound if b.destination_type == "queue")
        if not bound:
            reason, is_stuck = "no queue is bound for it: bind one", True
        elif key is None:  # the routing key is unknown, so the matching queue is unknown
            reason = f"{_PASSING}, or no queue is bound for its routing key: bind one"
    else:
        destination, queues = str(Destination("", tuple(names))), names
    for queue in queues:
        target = rows.get(queue, {})
        refuses_more = _refuses_more(target)
        if refuses_more:
            reason, is_stuck = f"queue {queue!r} is full and refuses more: consume from it, or raise its limit", True
            break
        if refuses_more is False:
            reason = f"queue {queue!r} was full, and has room now: RabbitMQ tries again within six minutes"
            is_stuck = True
        elif target and target.get("state") not in (None, "running", "flow"):
            reason, is_stuck = f"queue {queue!r} is {target['state']}: start the node that it is on", True
    return OutboxStatus(row["name"], destination, int(row.get("messages") or 0), reason, is_stuck, text)


def _names(cascade: Cascade, outbox: str, text: str, bindings: Collection[Binding]) -> Sequence[str] | None:
    """Return what the destination of an outbox is called: "" and queues, or an exchange and its routing key or "".

    None if that cannot be seen: somebody else gave a queue such a name, or bindings of a hash are missing.
    """
    address = f"{SENTINEL}.{text}"
    if text.startswith("!"):  # a hash of a long address, or of an address that is too long with the prefix
        address = next(
            (b.routing_key for b in bindings if b.destination == outbox and is_address(b.routing_key)), address
        )
    names = decode(address)
    if names is None and address != SHORT_LIVED:
        names = ("", *sorted(b.destination for b in bindings if (b.source, b.routing_key) == (cascade.exit, address)))
    return names if names is not None and len(names) > 1 else None


def _refuses_more(queue: Row) -> bool | None:
    """Return whether a queue is full; None if it has no limit beyond which it refuses messages.

    Messages that consumers hold do not count (https://www.rabbitmq.com/docs/maxlength).
    """
    policy, arguments = queue.get("effective_policy_definition") or {}, queue.get("arguments") or {}
    if "reject" not in str(arguments.get("x-overflow", policy.get("overflow"))):
        return None
    refusing = None
    for limit, counts in (
        ("max-length", ("messages_ready", "messages_dlx")),
        ("max-length-bytes", ("message_bytes_ready", "message_bytes_dlx")),
    ):
        limits = [found for found in (policy.get(limit), arguments.get(f"x-{limit}")) if found is not None]
        if limits:  # the lesser one is in force
            refusing = refusing or sum(queue.get(count) or 0 for count in counts) >= min(limits)
    return refusing


def count_earlier(
    connection: kombu.Connection, cascades: Iterable[Layout1], management: Management | None = None
) -> int | None:
    """Return how many messages wait in cascades of an earlier layout; None if no such cascade exists.

    Messages between two queues are visible only with the management API.
    """
    channel = connection.default_channel
    rows = management.queues() if management else {}
    found = None
    for cascade in cascades:
        # RabbitMQ logs an error for each part that is missing.
        if not declare.exchange_exists(channel, cascade.ingest) and not declare.queue_exists(
            channel, cascade.levels[0].queue
        ):
            continue
        for level in reversed(cascade.levels):  # down, as messages go
            ready = declare.message_count(channel, level.queue)
            if ready is not None:
                found = (found or 0) + ready + unsettled(rows.get(level.queue, {}))
    return found


def message_count(connection: kombu.Connection, queue: str) -> int | None:
    """Return how many messages are ready in a queue; None if it does not exist."""
    return declare.message_count(connection.default_channel, queue)


def unsettled(row: dict[str, Any]) -> int:
    """Return the number of unsettled messages of a queue, from its columns in the management API."""
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)

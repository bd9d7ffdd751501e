"""Counts the messages in the queues of a cascade."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import kombu

from ..amqp import declare
from ..core import streams
from ..core.destination import SHORT_LIVED, Destination, decode, is_address
from ..core.parts import Binding
from ..core.routing_key import SENTINEL
from ..core.topology import Cascade
from .management import Management
from .outboxes import existing_outboxes

#: The columns of a queue in the management API.
Row = Mapping[str, Any]

#: The reason for messages in an outbox if no problem is known.
_PASSING = "it may be on its way"

#: The destination of an outbox whose name contains a hash.
_LONG_NAME = "a destination with a long name"

#: The maximum number of short-lived queues to name.
_FEW = 5


class LevelStatus(NamedTuple):
    """A level's queue. `ready` messages wait; `unsettled` ones are between this queue and the next (None: unknown)."""

    queue: str
    ttl: int  # milliseconds
    ready: int | None  # None: the queue is missing
    unsettled: int | None


class OutboxStatus(NamedTuple):
    """An outbox with a delay. `ready` messages wait; `unsettled` ones are due (None: unknown)."""

    queue: str
    destination: str
    delay: int  # milliseconds
    ready: int
    unsettled: int | None


class HeldUp(NamedTuple):
    """Due messages in an outbox that their destination has not accepted."""

    queue: str
    destination: str
    stuck: int
    reason: str  # as far as it can be known
    is_stuck: bool  # whether the cause is known; otherwise the messages may be there only for a moment

    def __str__(self) -> str:
        return f"{self.stuck:,} due for {self.destination}: {self.reason}"


class StreamStatus(NamedTuple):
    """A stream beside the cascade. RabbitMQ deletes its messages by age, not on delivery."""

    queue: str
    messages: int | None  # None: there is none


class Status(NamedTuple):
    """The message counts of cascades and of what stands beside them."""

    levels: list[LevelStatus]
    outboxes: list[OutboxStatus]  # those with a delay that are known and hold messages
    orphans: int | None  # None: the queue is missing
    destinations: list[str] | None  # of the cascade; None: unknown
    held_up: list[HeldUp] | None  # None: unknown
    streams: list[StreamStatus]
    #: The number of orphans some seconds ago, including those that somebody was looking at; 0 if unknown.
    all_orphans: int = 0

    @property
    def waiting(self) -> int:
        """The number of messages that are not due yet, as far as known."""
        in_levels = sum((level.ready or 0) + (level.unsettled or 0) for level in self.levels)
        return in_levels + sum(outbox.ready for outbox in self.outboxes)

    @property
    def stuck(self) -> int:
        """The number of due messages that their destinations have not accepted, as far as known."""
        return sum(one.stuck for one in self.held_up or ())

    @property
    def has_problems(self) -> bool:
        """Whether something is missing, or takes what is due from nobody as far as it is known."""
        held_up = any(one.is_stuck for one in self.held_up or ())
        return bool(self.blocked or self.orphans or held_up) or any(level.ready is None for level in self.levels)

    @property
    def blocked(self) -> list[LevelStatus]:
        """Levels with as many unsettled messages as at-least-once dead lettering allows. A burst looks the same.

        https://www.rabbitmq.com/docs/quorum-queues#dead-lettering
        """
        return [level for level in self.levels if (level.unsettled or 0) >= 32]


def status(
    connection: kombu.Connection,
    wanted: Iterable[Cascade],
    known: Iterable[Destination] = (),
    management: Management | None = None,
) -> Status:
    """Return the message counts. Messages between two queues are visible only with the management API.

    Without it, outboxes with a delay count only if they are of `known` destinations and have a delay of the option.
    """
    wanted = list(wanted)
    channel = connection.default_channel
    rows = management.queues() if management else {}
    levels = []
    for cascade in wanted:
        # Down, as messages go, and outboxes last: none may pass from a queue that is not counted yet to one that is.
        ready = {level.queue: declare.message_count(channel, level.queue) for level in reversed(cascade.levels)}
        for level in cascade.levels:
            levels.append(LevelStatus(level.queue, level.ttl, ready[level.queue], _unsettled(rows, level.queue)))
    waiting = []
    for outbox in existing_outboxes(connection, known, management):
        if outbox.delay:
            count, due = declare.message_count(channel, outbox.queue) or 0, _unsettled(rows, outbox.queue)
            if count or due:
                waiting.append(OutboxStatus(outbox.queue, outbox.destination or _LONG_NAME, outbox.delay, count, due))
    orphans = declare.message_count(channel, wanted[0].orphans)
    beside = [
        StreamStatus(stream.name, declare.message_count(channel, stream.name))
        for stream in streams.all_streams(wanted[0])
    ]
    if management is None:
        return Status(levels, waiting, orphans, None, None, beside)
    bindings = management.bindings()
    destinations = {binding.destination for binding in bindings if binding.source in wanted[0].exits}
    stuck = list(_held_up(wanted[0], rows, bindings))
    all_orphans = int(rows.get(wanted[0].orphans, {}).get("messages") or 0)
    shown = sorted(destinations - {wanted[0].discard})
    return Status(levels, waiting, orphans, shown, add_up(stuck), beside, all_orphans)


def held_up(cascade: Cascade, management: Management) -> list[HeldUp]:
    """Return the outboxes of a cascade with due messages."""
    return list(_held_up(cascade, management.queues(), management.bindings()))


def add_up(found: Iterable[HeldUp]) -> list[HeldUp]:
    """Return each destination once for each reason, with the sums of all its outboxes and the queue of the first."""
    same: dict[tuple[str, str], list[HeldUp]] = {}
    for one in found:
        name = one.queue if one.destination == _LONG_NAME else one.destination
        same.setdefault((name, one.reason), []).append(one)
    return [ones[0]._replace(stuck=sum(one.stuck for one in ones)) for ones in same.values()]


def _held_up(cascade: Cascade, rows: Mapping[str, Row], bindings: Collection[Binding]) -> Iterator[HeldUp]:
    for name, row in rows.items():
        address = cascade.outbox_address(name)
        if address is None:
            continue
        outbox = cascade.outbox_of(name)
        # Messages that are ready in an outbox without a delay are due as well.
        due = unsettled(row) if outbox and outbox.delay else int(row.get("messages") or 0)
        if due:
            yield _cause(cascade, name, due, address, rows, bindings)


def _unsettled(rows: Mapping[str, Row], queue: str) -> int | None:
    return unsettled(rows[queue]) if queue in rows else None


def _cause(
    cascade: Cascade, outbox: str, due: int, address: str, rows: Mapping[str, Row], bindings: Collection[Binding]
) -> HeldUp:
    """Return what an outbox holds up, with the cause that the API shows for its destination."""
    queues: Iterable[str] = ()
    reason, is_stuck = _PASSING, False
    exchange, *names = _names(cascade, outbox, address, bindings) or ("",)
    if address == SHORT_LIVED:
        queues = sorted({b.destination for b in bindings if b.source == cascade.short_lived_exit})
        destination = "short-lived queues"
        if 0 < len(queues) <= _FEW:
            destination += f" {', '.join(map(repr, queues))}"
    elif not names:
        destination = _LONG_NAME
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
    return HeldUp(outbox, destination, due, reason, is_stuck)


def _names(cascade: Cascade, outbox: str, address: str, bindings: Collection[Binding]) -> Sequence[str] | None:
    """Return what the destination of an outbox is called: "" and queues, or an exchange and its routing key or "".

    None if that cannot be seen: somebody else gave a queue such a name, or bindings of a hash are missing.
    """
    names = decode(address)
    if names is None and address != SHORT_LIVED:
        # A hash of a long address, or of an address that is too long with the prefix.
        address = next(
            (b.routing_key for b in bindings if b.destination == outbox and is_address(b.routing_key)), address
        )
        names = decode(address)
    if names is None and address != SHORT_LIVED:
        of_destination = f"{SENTINEL}.={address.rpartition('.')[2]}"
        leads_to = (b.destination for b in bindings if (b.source, b.routing_key) == (cascade.exit, of_destination))
        names = ("", *sorted(leads_to))
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


def message_count(connection: kombu.Connection, queue: str) -> int | None:
    """Return how many messages are ready in a queue; None if it does not exist."""
    return declare.message_count(connection.default_channel, queue)


def unsettled(row: Row) -> int:
    """Return the number of unsettled messages of a queue, from its columns in the management API."""
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)

"""Finds due messages that their destinations have not accepted, and why, in a snapshot of the management API. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.destination import SHORT_LIVED, decode, is_address
from ..core.parts import Binding
from ..core.routing_key import SENTINEL
from ..core.topology import Cascade
from .cascades import destination_named
from .management import Rows, Snapshot

#: The destination of an outbox whose name contains a hash.
LONG_NAME = "a destination with a long name"

#: The maximum number of short-lived queues to name.
_FEW = 5


class HeldUp(NamedTuple):
    """Due messages in an outbox that their destination has not accepted."""

    queue: str
    destination: str
    stuck: int
    reason: str  # as far as it can be known
    is_stuck: bool  # whether the cause is known; otherwise the messages may be there only for a moment

    def __str__(self) -> str:
        return f"{self.stuck:,} due for {self.destination}: {self.reason}"


class _Cause(NamedTuple):
    reason: str
    is_known: bool


_PASSING = _Cause("it may be on its way", False)


class _Target(NamedTuple):
    """What an outbox leads to, and the cause if none of the queues is it."""

    name: str
    queues: Iterable[str] = ()
    cause: _Cause = _PASSING


def held_up(cascade: Cascade, snapshot: Snapshot) -> list[HeldUp]:
    """Return the due messages in the outboxes of a cascade, with the cause that the snapshot shows.

    Each destination is there once for each cause, with the sum of all its outboxes and the queue of the first.
    """
    found: dict[tuple[str, str], HeldUp] = {}
    for name, row in snapshot.queues.items():
        address = cascade.outbox_address(name)
        if address is None:
            continue
        outbox = cascade.outbox_of(name)
        # Messages that are ready in an outbox without a delay are due as well, but not those that RabbitMQ holds.
        held = int(row.get("messages_delayed") or 0)
        due = unsettled(row) if outbox and outbox.delay else int(row.get("messages") or 0) - held
        if due:
            target = _target(cascade, name, address, snapshot.bindings)
            cause = _cause(target, snapshot.queues)
            key = (name if target.name == LONG_NAME else target.name, cause.reason)
            before = found.get(key, HeldUp(name, target.name, 0, *cause))
            found[key] = before._replace(stuck=before.stuck + due)
    return list(found.values())


def held(cascade: Cascade, snapshot: Snapshot) -> Iterator[tuple[str, str, int]]:
    """Yield each outbox in which RabbitMQ holds messages until they are due, with its destination and their number."""
    for name, row in snapshot.queues.items():
        address = cascade.outbox_address(name)
        if address and (amount := int(row.get("messages_delayed") or 0)):
            yield name, _target(cascade, name, address, snapshot.bindings).name, amount


def unsettled(row: Mapping[str, Any]) -> int:
    """Return the number of unsettled messages of a queue, from its columns in the management API."""
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)


def _target(cascade: Cascade, outbox: str, address: str, bindings: Collection[Binding]) -> _Target:
    if address == SHORT_LIVED:
        queues = sorted({b.destination for b in bindings if b.source == cascade.short_lived_exit})
        named = f" {', '.join(map(repr, queues))}" if 0 < len(queues) <= _FEW else ""
        return _Target(f"short-lived queues{named}", queues)
    destination = destination_named(_names(cascade, outbox, address, bindings))
    if destination is None:  # somebody else gave a queue such a name, or bindings of a hash are missing
        return _Target(LONG_NAME)
    if not destination.exchange:
        return _Target(str(destination), destination.queues)
    bound = [b for b in bindings if b.source == destination.exchange and destination.key in (None, b.routing_key)]
    cause = _PASSING
    if not bound:
        cause = _Cause("no queue is bound for it: bind one", True)
    elif destination.key is None:  # the routing key is unknown, so the matching queue is unknown
        cause = _Cause(f"{_PASSING.reason}, or no queue is bound for its routing key: bind one", False)
    return _Target(str(destination), sorted(b.destination for b in bound if b.destination_type == "queue"), cause)


def _names(cascade: Cascade, outbox: str, address: str, bindings: Collection[Binding]) -> Sequence[str]:
    """Return the names in the address of an outbox, and what the bindings of a hash show."""
    names = decode(address)
    if names is None:
        # A hash of a long address, or of an address that is too long with the prefix.
        address = next(
            (b.routing_key for b in bindings if b.destination == outbox and is_address(b.routing_key)), address
        )
        names = decode(address)
    if names is None:
        of_destination = f"{SENTINEL}.={address.rpartition('.')[2]}"
        leads_to = (b.destination for b in bindings if (b.source, b.routing_key) == (cascade.exit, of_destination))
        names = ("", *sorted(leads_to))
    return names


def _cause(target: _Target, rows: Rows) -> _Cause:
    """Return why a target accepts nothing: the queue that is full, or else the last that was full or is down."""
    cause = target.cause
    for queue in target.queues:
        row = rows.get(queue, {})
        refuses_more = _refuses_more(row)
        if refuses_more:
            return _Cause(f"queue {queue!r} is full and refuses more: consume from it, or raise its limit", True)
        if refuses_more is False:
            cause = _Cause(f"queue {queue!r} was full, and has room now: RabbitMQ tries again within six minutes", True)
        elif row.get("state") not in (None, "running", "flow"):
            cause = _Cause(f"queue {queue!r} is {row['state']}: start the node that it is on", True)
    return cause


def _refuses_more(queue: Mapping[str, Any]) -> bool | None:
    """Return whether a queue is full; None if it has no limit beyond which it refuses messages.

    Messages that consumers hold do not count (https://www.rabbitmq.com/docs/maxlength); those that RabbitMQ holds do.
    """
    policy, arguments = queue.get("effective_policy_definition") or {}, queue.get("arguments") or {}
    if "reject" not in str(arguments.get("x-overflow", policy.get("overflow"))):
        return None
    refusing = None
    for limit, counts in (
        ("max-length", ("messages_ready", "messages_dlx", "messages_delayed")),
        ("max-length-bytes", ("message_bytes_ready", "message_bytes_dlx")),
    ):
        limits = [found for found in (policy.get(limit), arguments.get(f"x-{limit}")) if found is not None]
        if limits:  # the lesser one is in force
            refusing = refusing or sum(queue.get(count) or 0 for count in counts) >= min(limits)
    return refusing

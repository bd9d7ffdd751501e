"""Finds due messages that their destinations have not accepted, and why, in a snapshot of the management API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..delay.core.destination import Destination
from ..delay.core.topology import Cascade
from .addresses import outbox_of
from .management import Rows, Snapshot


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
    """The queues that an outbox leads to, and the cause if none of them is it."""

    queues: Iterable[str]
    cause: _Cause = _PASSING


def held_up(cascade: Cascade, snapshot: Snapshot) -> list[HeldUp]:
    """Return the due messages in the outboxes of a cascade, with the cause that the snapshot shows.

    Each destination is there once for each cause, with the sum of all its outboxes and the queue of the first.
    """
    found: dict[tuple[str, str], HeldUp] = {}
    for name, row in snapshot.queues.items():
        if (outbox := outbox_of(cascade, name)) is None:
            continue
        # Messages that are ready in an outbox without a delay are due as well, but not those that RabbitMQ holds.
        due = unsettled(row) if outbox.ticks else int(row.get("messages") or 0) - int(row.get("messages_delayed") or 0)
        if due:
            cause = _cause(_target(outbox.destination, snapshot), snapshot.queues)
            key = str(outbox.destination), cause.reason
            before = found.get(key, HeldUp(name, str(outbox.destination), 0, *cause))
            found[key] = before._replace(stuck=before.stuck + due)
    return list(found.values())


def held(cascade: Cascade, snapshot: Snapshot) -> Iterator[tuple[str, str, int]]:
    """Yield each outbox in which RabbitMQ holds messages until they are due, with its destination and their number."""
    for name, row in snapshot.queues.items():
        if (outbox := outbox_of(cascade, name)) and (amount := int(row.get("messages_delayed") or 0)):
            yield name, str(outbox.destination), amount


def unsettled(row: Mapping[str, Any]) -> int:
    """Return the number of unsettled messages of a queue, from its columns in the management API."""
    return int(row.get("messages_dlx") or 0) + int(row.get("messages_unacknowledged") or 0)


def _target(destination: Destination, snapshot: Snapshot) -> _Target:
    if not destination.exchange:
        if destination.key in snapshot.queues:
            return _Target([str(destination.key)])
        return _Target(
            [], _Cause("it does not exist: declare it, and they come within minutes, or purge the outbox", True)
        )
    bound = [
        b for b in snapshot.bindings if b.source == destination.exchange and destination.key in (None, b.routing_key)
    ]
    cause = _PASSING
    if not bound:
        cause = _Cause("no queue is bound for it: bind one", True)
    elif destination.key is None:  # the routing key is unknown, so the matching queue is unknown
        cause = _Cause(f"{_PASSING.reason}, or no queue is bound for its routing key: bind one", False)
    return _Target(sorted(b.destination for b in bound if b.destination_type == "queue"), cause)


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

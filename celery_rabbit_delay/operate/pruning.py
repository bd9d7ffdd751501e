"""Deletes what the cascade keeps for queues, exchanges and bindings that are gone, and outboxes that nobody uses."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import kombu

from ..amqp import declare
from ..core.destination import Destination, decode
from ..core.parts import Binding
from ..core.topology import Cascade
from .cascades import Outbox, longest, outbox_named
from .management import Management, Rows, Snapshot

#: Seconds after which the counts of the management API, which are five late, show what was on its way.
QUIET = 12

#: Milliseconds: what stays so long in an outbox shows in the API's history, which has a count for each minute.
SEEN = 120_000


def wait_for_counts() -> None:
    """Wait until the management API counts all messages that were on their way, if no more are published."""
    time.sleep(QUIET)


def prune(
    connection: kombu.Connection, management: Management, kept: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Delete empty outboxes that lead nowhere, and idle ones with a delay, except `kept`; return the names of each.

    Outboxes lead nowhere whose queues or exchange are gone, or whose direct exchange has no binding with their routing
    key any more. Those are idle that nothing was led to in the last hour. Nothing is lost: a round delay returns to its
    publisher, which creates the outbox again, and what else comes for an outbox becomes an orphan. So does what comes
    for a fanout exchange that is gone; until now it was dropped. Raises `NotPermitted`.
    """
    cascade = connection.transport.delay_options.cascade
    channel = connection.default_channel
    with declare.translate_errors(cascade):
        before, exchanges = management.snapshot(), management.exchanges()
        _keep_messages_of_lost_fanouts(channel, cascade, before.bindings, exchanges)
        useless = _leading_nowhere(cascade, before, exchanges)
        idle = idle_outboxes(cascade, management) - useless - set(kept)
        if not useless | idle:
            return [], []
        # An interrupted run has unbound them already.
        bindings = [binding for binding in before.bindings if binding.destination in useless | idle]
        for binding in bindings:
            channel.queue_unbind(binding.destination, binding.source, binding.routing_key)
        wait_for_counts()
        after = management.snapshot()
        useless &= _leading_nowhere(cascade, after, management.exchanges())
        # What a publisher has created again meanwhile is bound.
        idle = {name for name in idle & _empty(after.queues) if not declare.message_count(channel, name)}
        idle -= {binding.destination for binding in after.bindings}
        for name in useless | idle:
            channel.queue_delete(name)
        for binding in bindings:
            if binding.destination not in useless | idle:  # it is needed again
                declare.bind(channel, binding)
        return sorted(useless), sorted(idle)


def delete_markers(connection: kombu.Connection) -> None:
    """Delete what shows that levels exist, of processes with any `max_delay`. To delete what is missing is no error."""
    with declare.translate_errors(connection.transport.delay_options.cascade):
        for cascade in connection.transport.delay_options.cascades(priorities=True):
            for powers in range(1, longest(cascade).powers + 1):
                connection.default_channel.exchange_delete(replace(cascade, powers=powers).marker)


def _keep_messages_of_lost_fanouts(
    channel: Any, cascade: Cascade, bindings: Iterable[Binding], exchanges: Collection[str]
) -> None:
    """Delete the bindings that drop messages for fanout exchanges without queues, where the exchange is gone."""
    for binding in bindings:
        if (binding.source, binding.destination) == (cascade.exit, cascade.discard):
            exchange, *_ = decode(binding.routing_key) or ("",)
            if exchange and exchange not in exchanges:
                channel.queue_unbind(binding.destination, binding.source, binding.routing_key)


def _empty(rows: Rows) -> set[str]:
    return {name for name, row in rows.items() if row.get("messages") == 0}


def _outboxes(cascade: Cascade, rows: Rows) -> list[tuple[Outbox, Destination]]:
    """Return the empty outboxes whose names say their destination, with it."""
    found = filter(None, (outbox_named(cascade, name) for name in _empty(rows)))
    return [(outbox, outbox.destination) for outbox in found if outbox.destination]


def _leading_nowhere(cascade: Cascade, snapshot: Snapshot, exchanges: Rows) -> set[str]:
    """Return the outboxes that are empty and lead nowhere."""
    bound = {(binding.source, binding.routing_key) for binding in snapshot.bindings}

    def is_gone(destination: Destination) -> bool:
        exchange, key = destination.exchange, destination.key
        if not exchange:
            return snapshot.queues.keys().isdisjoint(destination.queues)
        if exchange not in exchanges:
            return True
        return key is not None and _needs_this_key(exchanges[exchange]) and (exchange, key) not in bound

    return {outbox.queue for outbox, destination in _outboxes(cascade, snapshot.queues) if is_gone(destination)}


def _needs_this_key(exchange: Mapping[str, Any]) -> bool:
    """Return whether an exchange passes a message to nobody without a binding that has exactly its routing key."""
    has_alternate = "alternate-exchange" in (exchange.get("arguments") or {}) or exchange.get("policy")
    return exchange["type"] == "direct" and not has_alternate


def idle_outboxes(cascade: Cascade, management: Management) -> set[str]:
    """Return the outboxes with a delay that nothing was led to in the last hour, as far as that is certain.

    The API counts what publishers send to a queue, but not what comes from a level. This shows in its history of the
    number of messages, or else in that of the queue that the outbox leads to. The history begins when a node starts.
    """
    if not management.has_history():
        return set()
    rows = management.histories()
    return {
        outbox.queue
        for outbox, destination in _outboxes(cascade, rows)
        if outbox.delay and _was_empty(rows[outbox.queue]) and (outbox.delay >= SEEN or _got_nothing(destination, rows))
    }


def _got_nothing(destination: Destination, rows: Rows) -> bool:
    """Return whether a destination is queues that have got nothing."""
    queues = destination.queues
    return bool(queues) and all(name in rows and _was_empty(rows[name]) for name in queues)


def _was_empty(row: Mapping[str, Any]) -> bool:
    """Return whether a queue has held nothing in the last hour, and nothing was published into it or delivered."""
    history, rates = row.get("messages_details") or {}, row.get("message_stats") or {}
    moved = [(rates.get(f"{what}_details") or {}).get("avg_rate") for what in ("publish", "deliver_get")]
    return row.get("messages") == 0 and history.get("avg") == 0 and not any(moved)

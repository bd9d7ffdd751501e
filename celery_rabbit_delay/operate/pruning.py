"""Deletes what the cascade keeps for queues, exchanges and bindings that are gone."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import kombu

from ..amqp import declare
from ..core.destination import decode
from ..core.routing_key import SENTINEL
from ..core.topology import Binding, Cascade
from .management import Management

#: What the management API says of queues or exchanges, by their names.
Rows = Mapping[str, Mapping[str, Any]]

#: Seconds after which the counts of the management API, which are five late, show what was on its way.
QUIET = 12


def wait_for_counts() -> None:
    """Wait until the management API counts all messages that were on their way, if no more are published."""
    time.sleep(QUIET)


def prune(connection: kombu.Connection, management: Management) -> list[str]:
    """Delete empty outboxes that lead nowhere; return their names.

    Their queues or their exchange are gone, or their direct exchange has no binding with their routing key any more.
    What comes for them meanwhile, or later, becomes an orphan: nothing is lost. So does what comes for a fanout
    exchange that is gone; until now it was dropped. Raises `NotPermitted`.
    """
    cascade = connection.transport.delay_options.cascade
    channel = connection.default_channel
    with declare.translate_errors(cascade):
        existing, exchanges = management.bindings(), management.exchanges()
        _keep_messages_of_lost_fanouts(channel, cascade, existing, exchanges)
        unused = _unused(cascade, management.queues(), existing, exchanges)
        if not unused:
            return []
        # An interrupted run has unbound them already.
        bindings = [binding for binding in existing if binding.destination in unused]
        for binding in bindings:
            channel.queue_unbind(binding.destination, binding.source, binding.routing_key)
        wait_for_counts()
        still_unused = unused & _unused(cascade, management.queues(), management.bindings(), management.exchanges())
        for name in still_unused:
            channel.queue_delete(name)
        for binding in bindings:
            if binding.destination not in still_unused:  # it is needed again
                declare.bind(channel, binding)
        return sorted(still_unused)


def _keep_messages_of_lost_fanouts(
    channel: Any, cascade: Cascade, bindings: Iterable[Binding], exchanges: Collection[str]
) -> None:
    """Delete the bindings that drop messages for fanout exchanges without queues, where the exchange is gone."""
    for binding in bindings:
        if (binding.source, binding.destination) == (cascade.exit, cascade.discard):
            exchange, *_ = decode(binding.routing_key) or ("",)
            if exchange and exchange not in exchanges:
                channel.queue_unbind(binding.destination, binding.source, binding.routing_key)


def _unused(cascade: Cascade, rows: Rows, bindings: Iterable[Binding], exchanges: Rows) -> set[str]:
    """Return the outboxes that are empty and lead nowhere."""
    bound = {(binding.source, binding.routing_key) for binding in bindings}
    found = set()
    for name, row in rows.items():
        text = cascade.outbox_of(name)
        names = decode(f"{SENTINEL}.{text}") if text else None
        if names is None or len(names) < 2 or row.get("messages") != 0:
            continue
        exchange, *rest = names
        if not exchange:
            leads_nowhere = rows.keys().isdisjoint(rest)
        elif exchange in exchanges:
            unbound = _needs_this_key(exchanges[exchange]) and (exchange, rest[0]) not in bound
            leads_nowhere = unbound and len(rest) == 1 and rest[0] != ""
        else:
            leads_nowhere = True
        if leads_nowhere:
            found.add(name)
    return found


def _needs_this_key(exchange: Mapping[str, Any]) -> bool:
    """Return whether an exchange passes a message to nobody without a binding that has exactly its routing key."""
    has_alternate = "alternate-exchange" in (exchange.get("arguments") or {}) or exchange.get("policy")
    return exchange["type"] == "direct" and not has_alternate

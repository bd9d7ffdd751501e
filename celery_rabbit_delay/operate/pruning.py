"""Deletes outboxes of queues and exchanges that are gone."""

from __future__ import annotations

import time

import kombu

from ..amqp import declare
from ..core.destination import decode
from ..core.routing_key import SENTINEL
from ..core.topology import Cascade
from .management import Management

#: Seconds after which the counts of the management API, which are five late, show what was on its way.
QUIET = 12


def wait_for_counts() -> None:
    """Wait until the management API counts all messages that were on their way, if no more are published."""
    time.sleep(QUIET)


def prune(connection: kombu.Connection, management: Management) -> list[str]:
    """Delete empty outboxes whose queues or exchange are gone; return their names.

    What comes for them meanwhile, or later, becomes an orphan, as it would without: nothing is lost. Raises
    `NotPermitted`.
    """
    cascade = connection.transport.delay_options.cascade
    channel = connection.default_channel
    with declare.translate_errors(cascade):
        unused = _unused(cascade, management)
        bindings = [binding for binding in management.bindings() if binding.destination in unused]
        if not bindings:
            return []
        for binding in bindings:
            channel.queue_unbind(binding.destination, binding.source, binding.routing_key)
        wait_for_counts()
        unused = [name for name in _unused(cascade, management) if name in unused]  # others are still bound
        for name in unused:
            channel.queue_delete(name)
        for binding in bindings:
            if binding.destination not in unused:  # it is needed again
                declare.bind(channel, binding)
        return unused


def _unused(cascade: Cascade, management: Management) -> list[str]:
    """Return the outboxes that are empty and lead nowhere."""
    rows, exchanges = management.queues(), management.exchanges()
    found = []
    for name, row in rows.items():
        text = cascade.outbox_of(name)
        names = decode(f"{SENTINEL}.{text}") if text else None
        if names is None or len(names) < 2 or row.get("messages") != 0:
            continue
        exchange, *queues = names
        if exchange not in exchanges if exchange else rows.keys().isdisjoint(queues):
            found.append(name)
    return found

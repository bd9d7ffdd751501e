"""Makes RabbitMQ try at once what it would try again within minutes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import kombu

from ..core.topology import Cascade
from .management import Management
from .status import HeldUp, held_up

#: What our queues are declared with, so that a policy of it changes nothing.
_NOTHING_NEW = {"delivery-limit": 1_000_000_000}


def hurry(connection: kombu.Connection, management: Management) -> Iterator[tuple[HeldUp, str | None]]:
    """Make RabbitMQ try again to deliver what is stuck in outboxes, where it can be made to.

    It does when the policy of an outbox changes, with messages that had no queue to go to. What it has sent to a queue
    that refused it, it sends again after its own time. Yields each outbox with due messages, with the reason if
    nothing was done. Raises `NotPermitted` for a user of the management API without the tag policymaker.
    """
    cascade = connection.transport.delay_options.cascade
    policy = f"{cascade.root}.again"
    policies = {name: row.get("policy") for name, row in management.queues().items()}
    for outbox in held_up(cascade, management):
        refused = _refused(cascade, outbox, policies.get(outbox.queue), policy)
        if refused is None:
            try:
                management.set_policy(policy, f"^{re.escape(outbox.queue)}$", _NOTHING_NEW)
            finally:
                management.delete_policy(policy)
        yield outbox, refused


def _refused(cascade: Cascade, outbox: HeldUp, policy: str | None, ours: str) -> str | None:
    if outbox.is_stuck:
        return outbox.reason
    address = cascade.outbox_of(outbox.queue)
    if address and address.names and not address.names[0]:  # a queue
        return f"{outbox.reason}, or the queue has refused it: RabbitMQ tries again within six minutes"
    if policy not in (None, "", ours):  # only one is in force
        return f"the policy {policy!r} applies to it and stays as it is: RabbitMQ tries again within six minutes"
    return None

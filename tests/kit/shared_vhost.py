"""A virtual host with a cascade for one test after the other.

To create and delete its quorum queues costs RabbitMQ more than most tests do. What a test leaves in it is removed.
It is used again only if it then is what it was at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

from amqp.exceptions import AMQPError

from celery_rabbit_delay import operate
from celery_rabbit_delay.delay.core.headers import read_state
from tests.kit.broker import Broker


def assert_no_orphans(queues: Iterable[str], count: Callable[[str], int]) -> None:
    """Assert that no due message of a test has missed its destination without the test's expecting it."""
    left = {name for name in queues if name.endswith(".orphans") and count(name)}
    assert not left, f"due messages are left in {left}: a fault, or mark the test with `leaves_orphans`"


class SharedVhost:
    def __init__(self, broker: Broker) -> None:
        self._stack = ExitStack()
        self.vhost = self._stack.enter_context(broker.vhost())
        with self.vhost.connection(schedule=False) as connection:
            operate.setup(connection, [self.vhost.cascade], [])
        self._at_first = self._describe()
        self._free_since = datetime.now(timezone.utc)
        with self.vhost.plain() as connection:
            names = self.vhost.names("queues")
            self._counts = {name: self._count(connection.default_channel, name) for name in names}

    def remove(self) -> None:
        self._stack.close()

    def reset(self, leaves_orphans: bool) -> bool:
        """Remove what a test has left, and return whether the virtual host is what it was at first."""
        vhost, api, first = self.vhost, self.vhost.broker.api, self._at_first
        for policy in api("GET", f"/policies/{vhost.name}"):
            api("DELETE", f"/policies/{vhost.name}/{policy['name']}")
        while vhost.users:
            api("DELETE", f"/users/{vhost.users.pop()}")
        queues, exchanges = (set(vhost.names(kind)) for kind in ("queues", "exchanges"))
        try:
            with vhost.plain() as connection:
                channel = connection.default_channel
                if not leaves_orphans:
                    assert_no_orphans(queues, lambda name: self._orphans(channel, name))
                if not (first["queues"] <= queues and first["exchanges"] <= exchanges):
                    return False
                self._purge(channel)  # before the outboxes go: what is on the way to one that is gone becomes an orphan
                for queue in queues - first["queues"]:
                    channel.queue_delete(queue)
                for exchange in exchanges - first["exchanges"]:
                    channel.exchange_delete(exchange)
                self._free_since = datetime.now(timezone.utc)
                return vhost.bindings() == first["bindings"] and self._purge(channel) == 0
        except AMQPError:  # such as for an exclusive queue, whose connection is just being closed
            return False

    def _orphans(self, channel: Any, queue: str) -> int:
        """Take the orphans; return how many the last test has sent.

        What was due before it began is of a test before, whose end came while the message went from one queue to the
        next. No count shows such a message, and a purge does not reach it.
        """
        sent = 0
        while message := channel.basic_get(queue, no_ack=True):
            state = read_state(message.headers)
            sent += state is None or state.due >= self._free_since
        return sent

    def _purge(self, channel: Any) -> int:
        """Purge the queues that were empty at first; return by how many messages any queue was not as at first.

        Counts first: for a quorum queue, a purge is a command to be written down, even of nothing.
        """
        too_many = 0
        for name, count in self._counts.items():
            if more := self._count(channel, name) - count:
                too_many += abs(more) if count else channel.queue_purge(name)
        return too_many

    @staticmethod
    def _count(channel: Any, name: str) -> int:
        return int(channel.queue_declare(name, passive=True).message_count)

    def _describe(self) -> dict[str, set[Any]]:
        vhost = self.vhost
        return {
            "queues": set(vhost.names("queues")),
            "exchanges": set(vhost.names("exchanges")),
            "bindings": vhost.bindings(),
        }

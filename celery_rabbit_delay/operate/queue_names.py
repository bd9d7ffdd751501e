"""The queues that an exchange and a routing key lead to: which ones an operator's command is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import kombu

from ..delay.amqp.queue_destinations import bindings_of
from ..delay.core.destination import check_key
from ..delay.core.errors import InvalidDestination
from .addresses import is_match

#: The types of exchanges that route by the routing key alone, or not at all.
_BY_KEY = ("direct", "topic", "fanout")


def may_pause(queue: kombu.Queue) -> bool:
    """Return whether a queue keeps its messages for its consumers while they do not consume from it."""
    arguments = queue.queue_arguments or {}
    return not queue.auto_delete and "x-expires" not in arguments and arguments.get("x-queue-type") != "stream"


class QueueNames:
    """Finds the queues that an exchange and a routing key lead to, among some queues, such as those of an app."""

    def __init__(self, queues: Iterable[kombu.Queue] = (), only: bool = False) -> None:
        """With `only`, other queues are none of the caller's business: see `leads_to_one`."""
        queues = list(queues)
        bindings = [(queue.name, bound) for queue in queues for bound in bindings_of(queue)]
        self._bindings = [(name, bound) for name, bound in bindings if not bound.arguments]
        self._queues = frozenset(queue.name for queue in queues)
        self._not_to_pause = {queue.name for queue in queues if not may_pause(queue)}
        #: Exchanges that route by more than the key, as far as is known here.
        self._opaque = {
            bound.exchange.name for _, bound in bindings if bound.arguments or bound.exchange.type not in _BY_KEY
        }
        self._known = lru_cache(maxsize=1024)(self._names)
        self.only = only

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def __iter__(self) -> Iterator[str]:
        return iter(self._queues)

    def name(self, exchange: str, routing_key: str, wanted: str | None = None) -> str:
        """Return the name of a queue, `wanted` if it is one of several; the routing key if none is known."""
        names = self._known(exchange, routing_key) or (routing_key,)
        return wanted if wanted in names else names[0]

    def leads_to_one(self, exchange: str, routing_key: str) -> bool:
        """Return whether a message for an exchange goes to one of the queues; always, unless it is about them `only`.

        An exchange with another rule than the key, such as headers, is one that leads there if a queue is bound to it.
        """
        if not self.only:
            return True
        if not exchange:
            return routing_key in self._queues
        return exchange in self._opaque or bool(self._known(exchange, routing_key))

    def check(self, queue: str | None) -> None:
        """Raise `InvalidDestination` for a queue that a caller names and that is none of its own, or cannot be any."""
        if queue is None:
            return
        check_key(queue, "name of a queue")
        if not queue or (self.only and queue not in self):
            raise InvalidDestination(
                f"{queue!r} is not a queue of this app, whose queues are {', '.join(sorted(self._queues)) or 'none'}: "
                "name it in task_queues or task_routes, or ask for any queue with --any-queue or any_queue=True"
            )

    def check_pause(self, queue: str) -> None:
        """Raise `InvalidDestination` for a queue that `check` refuses, or that must not be paused."""
        self.check(queue)
        if queue in self._not_to_pause:
            raise InvalidDestination(
                f"{queue!r} cannot be paused: without consumers, a queue with auto_delete or x-expires is deleted, and "
                "what comes into a stream is missed"
            )

    def _names(self, exchange: str, routing_key: str) -> tuple[str, ...]:
        return tuple(
            name
            for name, bound in self._bindings
            if bound.exchange.name == exchange and is_match(bound.exchange.type, bound.routing_key, routing_key)
        )

"""RabbitMQ as far as a cascade needs it: topic, direct and fanout routing, alternate exchanges, TTL and dead-lettering.

On a virtual clock that starts at 0, so that every delay can be tried. https://www.rabbitmq.com/tutorials/amqp-concepts
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from celery_rabbit_delay.delay.core.topology import Binding, Cascade, Exchange, Queue
from celery_rabbit_delay.operate.addresses import is_match


class BrokerModel:
    def __init__(self, cascade: Cascade, holds_messages: bool = False) -> None:
        """`holds_messages`: quorum queues, which all are, heed a delivery time, as those of RabbitMQ 4.4 do."""
        self.holds_messages = holds_messages
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.bindings: dict[str, list[Binding]] = defaultdict(list)
        self.add(cascade)

    def add(self, cascade: Cascade) -> None:
        for exchange in cascade.exchanges():
            self.exchanges[exchange.name] = exchange
        for queue in cascade.queues():
            self.queues[queue.name] = queue
        self.bind(cascade.bindings())

    def bind(self, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            if binding not in self.bindings[binding.source]:
                self.bindings[binding.source].append(binding)

    def delete_queue(self, name: str) -> None:
        del self.queues[name]
        for bindings in self.bindings.values():
            bindings[:] = [b for b in bindings if b.destination != name]

    def route(self, exchange: str, keys: tuple[str, ...]) -> set[str]:
        """Return the queues that a message reaches, with every exchange on its way visited once."""
        if not exchange:
            return self.queues.keys() & set(keys)
        queues: set[str] = set()
        seen, todo = {exchange}, [exchange] if exchange in self.exchanges else []
        while todo:
            source = self.exchanges[todo.pop()]
            bindings = self.bindings[source.name]
            targets = [b for b in bindings if any(is_match(source.type, b.routing_key, key) for key in keys)]
            queues |= {b.destination for b in targets if b.destination_type == "queue"}
            onward = {b.destination for b in targets if b.destination_type == "exchange"}
            alternate = source.arguments.get("alternate-exchange")
            if not targets and alternate in self.exchanges:
                onward.add(str(alternate))
            todo += onward - seen
            seen |= onward
        return queues

    def publish(self, exchange: str, *keys: str, until: int = 0) -> tuple[list[tuple[int, str]], list[str]]:
        """Return (milliseconds, queue) of every copy that stays somewhere, and the levels that copies went through.

        `until` is a delivery time in milliseconds of the virtual clock.
        """
        arrived, visited = [], []
        moving = [(0, queue, keys) for queue in self.route(exchange, keys)]
        while moving:
            now, name, keys = moving.pop()
            arguments = self.queues[name].arguments
            if "x-dead-letter-exchange" not in arguments:
                arrived.append((now, name))
                continue
            visited.append(name)
            due = now + max(0, int(arguments["x-message-ttl"]) - 1)  # as early as a quorum queue may
            if self.holds_messages:  # the TTL counts from the beginning, but a message that is held does not expire
                due = max(due, until)
            if "x-dead-letter-routing-key" in arguments:  # RabbitMQ takes the CC header away, too
                keys = (str(arguments["x-dead-letter-routing-key"]),)
            onward = self.route(str(arguments["x-dead-letter-exchange"]), keys)
            if not onward and arguments.get("x-dead-letter-strategy") == "at-least-once":
                arrived.append((due, name))  # stuck
            moving += [(due, queue, keys) for queue in onward]
        return arrived, visited

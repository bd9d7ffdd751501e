"""Consumers that publish delayed messages on the connection that they consume on."""

from __future__ import annotations

import kombu
import pytest

from testkit.broker import Vhost, take

DELAY = {"x-delay": 30}


def test_a_consumer_may_publish_delayed_messages_on_its_own_connection(vhost: Vhost) -> None:
    """While it waits for a confirm, more messages for it come in; it must not be called from within itself."""
    vhost.declare("in", "out")
    received: list[int] = []
    depth = [0]
    with vhost.connection() as connection:
        producer = connection.Producer()

        def on_message(message: kombu.Message) -> None:
            assert depth[0] == 0
            depth[0] += 1
            message.ack()
            producer.publish(message.payload, routing_key="out", headers=DELAY)
            received.append(message.payload)
            depth[0] -= 1

        for n in range(300):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            producer.publish(-1, routing_key="out", headers=DELAY)
            while len(received) < 300:
                connection.drain_events(timeout=20)
        assert received == list(range(300))
        assert len(take(connection, "out", 301)) == 301


def test_deliveries_held_back_survive_a_consumer_that_fails(vhost: Vhost) -> None:
    vhost.declare("in", "out")
    received: list[int] = []
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish(-1, routing_key="out", headers=DELAY)

        def on_message(message: kombu.Message) -> None:
            received.append(message.payload)
            message.ack()
            if message.payload == 0:
                producer.publish(0, routing_key="out", headers=DELAY)  # the others come in meanwhile
            if message.payload == 1:
                raise RuntimeError("consumer failed")

        for n in range(5):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            with pytest.raises(RuntimeError, match="consumer failed"):
                connection.drain_events(timeout=20)
            while len(received) < 5:
                connection.drain_events(timeout=20)
        assert received == list(range(5))
        assert len(take(connection, "out", 2)) == 2

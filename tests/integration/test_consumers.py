"""Consumers that publish delayed messages on the connection that they consume on."""

from __future__ import annotations

import kombu
import pytest

from testkit.broker import Vhost, take
from testkit.wait import wait_until

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


def test_a_connection_of_a_pool_drops_what_must_not_be_delivered(vhost: Vhost) -> None:
    vhost.declare("q")
    pool = vhost.connection().Pool(limit=1)
    try:
        with pool.acquire() as connection:
            producer = connection.Producer()
            for name, delay in (("first", 3000), ("second", 1000)):
                producer.publish(name, routing_key="q", headers={"x-delay": delay, "x-delay-key": "k"})
            producer.publish("end", routing_key="q", headers={"x-delay": 4000})
            assert [message.payload for message in take(connection, "q", 2)] == ["second", "end"]
    finally:
        pool.force_close_all()


def test_a_connection_is_closed_although_messages_come_in_meanwhile(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", *[0.05] * 200)
    wait_until(lambda: vhost.count("q") == 200, "all are due")
    connection = vhost.connection()
    consumer = kombu.Consumer(
        connection.channel(), [kombu.Queue("q", no_declare=True)], on_message=lambda message: None
    )
    consumer.consume()
    connection.release()
    assert not connection.connected
    assert len(vhost.take("q", 200)) == 200

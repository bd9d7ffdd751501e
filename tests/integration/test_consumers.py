"""Consumers that publish delayed messages on the connection that they consume on."""

from __future__ import annotations

import kombu
import pytest

from celery_rabbit_delay.delay.app.consumers import DelayedConsumer
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from tests.kit.broker import Vhost, take
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

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

        for n in range(100):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            producer.publish(-1, routing_key="out", headers=DELAY)
            while len(received) < 100:
                connection.drain_events(timeout=60)
        assert received == list(range(100))
        assert len(take(connection, "out", 101)) == 101


def test_what_comes_behind_a_message_with_which_a_consumer_fails_is_not_lost(vhost: Vhost) -> None:
    vhost.declare("in", "out")
    received: list[int] = []
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish(-1, routing_key="out", headers=DELAY)

        def on_message(message: kombu.Message) -> None:
            received.append(message.payload)
            message.ack()
            if message.payload == 0:
                producer.publish(0, routing_key="out", headers=DELAY)
            if message.payload == 1:
                raise RuntimeError("consumer failed")

        for n in range(5):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            connection.drain_events(timeout=60)
            with pytest.raises(RuntimeError, match="consumer failed"):
                connection.drain_events(timeout=60)
            while len(received) < 5:
                connection.drain_events(timeout=60)
        assert received == list(range(5))
        assert len(take(connection, "out", 2)) == 2


def test_a_connection_of_a_pool_drops_what_must_not_be_delivered(vhost: Vhost) -> None:
    vhost.declare("q")
    pool = vhost.connection(journal=0).Pool(limit=1)
    try:
        with pool.acquire() as connection:
            producer = connection.Producer()
            for name, delay in (("first", 3000), ("second", 1000), ("end", 4000)):
                producer.publish(name, routing_key="q", headers={"x-delay": delay}, correlation_id=name)
            waiting_tasks.cancel(connection, ["first"])
            assert [message.payload for message in take(connection, "q", 2)] == ["second", "end"]
    finally:
        pool.force_close_all()


def test_a_connection_is_closed_although_messages_come_in_meanwhile(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", *[0.05] * 60)
    wait_until(lambda: vhost.count("q") == 60, "all are due")
    connection = vhost.connection()
    consumer = kombu.Consumer(
        connection.channel(), [kombu.Queue("q", no_declare=True)], on_message=lambda message: None
    )
    consumer.consume()
    connection.release()
    assert not connection.connected
    assert len(vhost.take("q", 60)) == 60


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_consumer_that_changes_its_prefetch_count_receives_all_once_and_in_order(vhost: Vhost, kind: str) -> None:
    received: list[int] = []
    unacknowledged: list[kombu.Message] = []

    def on_message(message: kombu.Message) -> None:
        assert not message.delivery_info["redelivered"]
        received.append(message.payload)
        unacknowledged.append(message)
        if len(unacknowledged) >= 3:
            unacknowledged.pop(0).ack()

    queue = kombu.Queue("in", queue_arguments={"x-queue-type": kind})
    with vhost.plain() as connection:
        for n in range(100):
            connection.Producer().publish(n, routing_key="in", declare=[queue])
    with vhost.connection() as connection:
        connection.default_channel.basic_qos(0, 4, False)
        with DelayedConsumer(connection.default_channel, [queue], on_message=on_message) as consumer:
            consumer.fetches = 4
            for n in range(10):
                while len(received) < 8 * n:
                    connection.drain_events(timeout=60)
                consumer.set_prefetch_count(4 + n // 2 - n % 2)
            while len(received) < 100:
                connection.drain_events(timeout=60)
            wait_until(lambda: vhost.consumers("in") == [1, 1, 1, 1, 4], "it fetches four and so many more")
            consumer.cancel_by_queue("in")
            wait_until(lambda: vhost.consumers("in") == [], "nothing consumes")
    assert received == list(range(100))


def test_a_stream_is_consumed_once_whatever_the_prefetch_count(vhost: Vhost) -> None:
    queue = kombu.Queue("in", queue_arguments={"x-queue-type": "stream"})
    received: list[int] = []

    def on_message(message: kombu.Message) -> None:
        message.ack()
        received.append(message.payload)

    with vhost.connection() as connection:
        connection.default_channel.basic_qos(0, 4, False)
        with DelayedConsumer(connection.default_channel, [queue], on_message=on_message) as consumer:
            consumer.set_prefetch_count(10)
            for n in range(20):
                connection.Producer().publish(n, routing_key="in")
            while len(received) < 20:
                connection.drain_events(timeout=60)
    assert received == list(range(20))

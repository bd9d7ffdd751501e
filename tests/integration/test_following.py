"""Streams that are followed as they grow, by the page's index."""

from __future__ import annotations

from typing import Any

from amqp.exceptions import ConsumerCancelled, PreconditionFailed

from celery_rabbit_delay.amqp.following import Follower
from celery_rabbit_delay.amqp.schedule import cancel
from celery_rabbit_delay.core import journal
from testkit.broker import Broker, publish
from testkit.node import Node


def is_timed_out(connection: Any) -> bool:
    """Return whether RabbitMQ has had enough of a consumer that acknowledges nothing."""
    try:
        connection.drain_events(timeout=0.1)
    except TimeoutError:
        return False
    except (PreconditionFailed, ConsumerCancelled):  # by its version
        return True
    return False


def test_a_quiet_stream_is_followed_for_longer_than_a_message_may_stay_unacknowledged() -> None:
    advanced = "[{rabbit, [{consumer_timeout, 10000}, {channel_tick_interval, 1000}]}]."
    with (
        Node(plugins=("rabbitmq_management",), advanced=advanced) as node,
        Broker(node).vhost() as vhost,
        vhost.connection() as connection,
        vhost.plain() as neighbour,
        Follower(connection) as follower,
    ):
        channel = neighbour.default_channel
        arguments = {"x-queue-type": "quorum"}  # on RabbitMQ 4.3 others have no such timeout
        channel.queue_declare("q", durable=True, auto_delete=False, arguments=arguments)
        channel.basic_consume("q", callback=lambda message: None)
        publish(connection, 0.02)
        cancel(connection, ["before"])
        found: list[bytes] = []
        follower.follow({journal.changes(vhost.cascade): None}, lambda name, entry: found.append(entry.body))
        while not is_timed_out(neighbour):
            follower.read(0.1)
        cancel(connection, ["after"])
        while not found or b"after" not in found[-1]:
            assert follower.read(10)

"""Streams that are followed as they grow, by the page's index."""

from __future__ import annotations

from typing import Any

import pytest
from amqp.exceptions import ConsumerCancelled, PreconditionFailed

from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.schedule.amqp.waiting_tasks import cancel
from celery_rabbit_delay.schedule.core import streams
from tests.kit.broker import own_node, publish

pytestmark = pytest.mark.more


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
        own_node(advanced=advanced) as vhost,
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
        found: list[StreamMessage] = []
        follower.follow({streams.changes(vhost.cascade): None})
        while not is_timed_out(neighbour):
            found += receive(follower, 0.1)
        assert b"before" in found[-1].body
        cancel(connection, ["after"])
        while b"after" not in found[-1].body:
            found += receive(follower, 10)


def receive(follower: Follower, seconds: float) -> list[StreamMessage]:
    """Return the next message, if one comes."""
    message = follower.receive(seconds)
    return [] if message is None else [message]

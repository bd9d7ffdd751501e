"""What the streams of a virtual host say."""

from __future__ import annotations

from collections.abc import Callable

import kombu

from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.core import streams
from celery_rabbit_delay.schedule.core.journal import Record, unpack_records
from tests.kit.broker import Vhost
from tests.kit.wait import wait_until


def records(vhost: Vhost) -> list[Record]:
    """Return the records of messages with delays of up to ten minutes."""
    with vhost.connection() as connection, Follower(connection) as reader:
        messages = reader.read(streams.journal_for(vhost.cascade, 60))
        return [record for message in messages for record in unpack_records(message.body)]


def wait_to_learn(connection: kombu.Connection, is_known: Callable[[], bool]) -> None:
    """Wait until something is known from the streams that a connection follows."""

    def has_learned() -> bool:
        connection.connection.interceptor.following.poll()
        return is_known()

    wait_until(has_learned, "it is learned from the stream")

"""Streams that are followed as they grow, by the page's index."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import ConsumerCancelled, PreconditionFailed

from celery_rabbit_delay.amqp.following import Follower
from celery_rabbit_delay.amqp.schedule import cancel
from celery_rabbit_delay.core import streams
from celery_rabbit_delay.core.topology import Stream
from celery_rabbit_delay.operate import QueueNames
from celery_rabbit_delay.web import indexer as indexer_
from celery_rabbit_delay.web.index import Index
from celery_rabbit_delay.web.indexer import Indexer
from tests.kit.broker import Vhost, own_node, publish
from tests.kit.wait import wait_until

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
        found: list[bytes] = []
        follower.follow({streams.changes(vhost.cascade): None}, lambda name, entry: found.append(entry.body))
        while not is_timed_out(neighbour):
            follower.read(0.1)
        cancel(connection, ["after"])
        while not found or b"after" not in found[-1]:
            assert follower.read(10)


def follow_to_its_end(vhost: Vhost, stream: Stream) -> None:
    found: list[int] = []
    with vhost.connection() as connection, Follower(connection) as follower:
        assert follower.follow({stream: None}, lambda name, entry: found.append(entry.offset)) == []
        [end] = follower.streams.values()
        assert end >= 50
        while not found or found[-1] < end:
            assert follower.read(10)
    gaps = set(range(found[-1] + 1)) - set(found)  # each new segment begins with a chunk of RabbitMQ's own
    assert found == sorted(set(found))
    assert len(gaps) <= found[-1] // 1000


def test_a_stream_is_followed_while_others_write_to_it(vhost: Vhost) -> None:
    vhost.declare("q")
    stream = streams.journal_for(vhost.cascade, 60)
    stopping = threading.Event()
    written = threading.Semaphore(0)

    def write() -> None:
        with vhost.connection(journal=0) as connection:
            while not stopping.is_set():
                publish(connection, 60)
                written.release()

    with vhost.connection(journal=0) as connection:
        publish(connection, 60)  # creates the stream
    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(50):
            assert written.acquire(timeout=60)
        for _ in range(3):
            follow_to_its_end(vhost, stream)
    finally:
        stopping.set()
        for writer in writers:
            writer.join()


def test_the_index_follows_streams_anew_that_rabbitmq_does_not_send_any_more(
    vhost: Vhost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers: list[Follower] = []

    class Forgotten(Follower):
        """The first one hears nothing as soon as it has read what was there."""

        def __enter__(self) -> Follower:
            followers.append(self)
            return super().__enter__()

        def read(self, timeout: float) -> bool:
            if self is followers[0] and indexer.is_ready.is_set():
                time.sleep(timeout)
                return False
            return super().read(timeout)

    monkeypatch.setattr(indexer_, "Follower", Forgotten)
    monkeypatch.setattr(indexer_, "_RENEWAL", 1)
    vhost.declare("q")
    index = Index(tmp_path / "index.sqlite", "here")
    indexer = Indexer(index, lambda: vhost.connection(journal=0), QueueNames())
    with vhost.connection(journal=0) as connection:
        publish(connection, 60)
        indexer.start()
        try:
            wait_until(indexer.is_ready.is_set, "the index is ready")
            publish(connection, 60)
            indexer.catch_up(connection)
        finally:
            indexer.stop()
            index.close()
    assert len(followers) > 1

"""Losing a stream whose node is killed just after its first creation affects nothing else."""

from __future__ import annotations

import logging
from contextlib import suppress

import kombu
import pytest
from amqp.exceptions import AMQPError

from celery_rabbit_delay import Options
from celery_rabbit_delay.schedule.amqp.create_streams import make_streams
from celery_rabbit_delay.schedule.core import streams
from celery_rabbit_delay.schedule.interceptor import probe_streams
from tests.kit.broker import QUICK
from tests.kit.node import Node
from tests.kit.wait import wait_until

pytestmark = pytest.mark.more

JOURNAL = "celery-rabbit-delay.v3.journal.600"
STREAMS = streams.wanted(Options(**QUICK, journal=0))


def connection(node: Node, journal: float | None = None) -> kombu.Connection:
    options = {"rabbit_delay": QUICK | {"journal": journal}}
    return kombu.Connection(node.url().replace("amqp", "rabbit-delay", 1), transport_options=options)


def publish(client: kombu.Connection, name: str) -> None:
    """Publish like Celery, which retries over a new connection."""
    with client.Producer() as producer:
        producer.publish(name, routing_key="q", headers={"x-delay": 100}, retry=True, retry_policy={"max_retries": 20})


def is_kept(node: Node) -> bool:
    """Return whether the outbox is on disk: RabbitMQ with Mnesia confirms it too early."""
    tables = list(node.data.rglob("names.dets"))
    return not tables or any(b"out.+q" in table.read_bytes() for table in tables)


def test_messages_are_sent_without_a_record_when_their_stream_is_lost_and_verify_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Node() as node:
        with connection(node) as client:
            client.default_channel.queue_declare("q", durable=True, auto_delete=False)
            publish(client, "before")
        wait_until(lambda: is_kept(node), "the broker has written down what it knows")
        client = connection(node, journal=0)
        make_streams(client, STREAMS)
        publish(client, "recorded")
        node.kill()
        client.collect()
        node.start()
        found = set()
        with connection(node, journal=0) as client, caplog.at_level(logging.WARNING):
            for n in range(3):
                publish(client, f"after {n}")

            def receive() -> bool:
                with suppress(AMQPError, OSError):
                    message = client.default_channel.basic_get("q", no_ack=True)
                    found.update([str(message.body)] if message else [])
                return {"after 0", "after 1", "after 2"} <= found

            wait_until(receive, "all are delivered", timeout=90)
        warned = any(JOURNAL in record.getMessage() for record in caplog.records)
        with connection(node) as client:
            problems = [problem for problem in probe_streams(client, STREAMS) if JOURNAL in problem]
        assert bool(problems) == warned

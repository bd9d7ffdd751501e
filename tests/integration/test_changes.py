"""What consumers know of the messages that were cancelled or moved."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest

from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.schedule.amqp import reschedule as reschedule_
from celery_rabbit_delay.schedule.amqp import stream_consumer, waiting_tasks
from celery_rabbit_delay.schedule.amqp.waiting_tasks import write_changes
from celery_rabbit_delay.schedule.core import changes, streams
from celery_rabbit_delay.schedule.interceptor import known_to
from tests.kit.abilities import Ability
from tests.kit.broker import Broker, Vhost, publish, take
from tests.kit.node import cluster, is_whole
from tests.kit.wait import wait_until

from .conftest import Followed

pytestmark = pytest.mark.shared_vhost


def test_a_busy_consumer_gets_nothing_that_is_cancelled_after_many_others(vhost: Vhost) -> None:
    vhost.declare("q", "bell")
    found: list[str] = []

    def on_message(message: kombu.Message) -> None:
        found.append(message.properties["correlation_id"])
        message.ack()

    with vhost.connection(journal=0) as publisher, vhost.connection(journal=0) as consumer:
        publish(publisher, 0.1, correlation_id="begin")
        assert take(consumer, "q", 1)  # it follows what is cancelled from now on
        with kombu.Consumer(consumer, [kombu.Queue("q", no_declare=True)], on_message=on_message, auto_declare=False):
            publish(publisher, 5, correlation_id="victim")
            write_changes(publisher, [next(changes.cancelled([f"other {n}"])) for n in range(300)])
            waiting_tasks.cancel(publisher, ["victim"])
            publish(publisher, 6, "bell")
            take(publisher, "bell", 1)  # meanwhile the consumer is busy, and the victim arrives
            publish(publisher, 0.1, correlation_id="end")
            while "end" not in found:
                consumer.drain_events(timeout=60)
    assert found == ["end"]


def test_a_consumer_learns_of_changes_that_rabbitmq_does_not_send_any_more(
    vhost: Vhost, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a node was cut off for a moment: the connection stays, and the consumer of the stream is forgotten."""
    monkeypatch.setattr(stream_consumer, "RENEWAL", 0.5)
    vhost.declare("q")
    with vhost.connection(journal=0) as publisher, vhost.connection(journal=0) as consumer:
        publish(publisher, 0.1, correlation_id="begin")
        assert take(consumer, "q", 1)
        followed.forget()
        publish(publisher, 3, correlation_id="victim")
        waiting_tasks.cancel(publisher, ["victim"])
        publish(publisher, 3.5, correlation_id="end")
        assert [message.properties["correlation_id"] for message in take(consumer, "q", 1)] == ["end"]


@pytest.mark.long
@pytest.mark.cluster
def test_a_consumer_on_a_node_that_was_cut_off_learns_of_later_changes() -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(cluster(3))
        with Vhost(Broker(nodes[0]), "/").connection() as connection:
            for queue in ("q0", "q1", "q2"):
                connection.default_channel.queue_declare(
                    queue, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}
                )
        consumers = [stack.enter_context(Vhost(Broker(node), "/").connection(journal=0)) for node in nodes]
        for number, consumer in enumerate(consumers):
            publish(consumer, 0.1, f"q{number}", correlation_id="begin")
            assert take(consumer, f"q{number}", 1)
        if not Ability.HEALS_PARTITIONS.is_in(consumers[0].connection.server_version):
            pytest.skip("nodes of this RabbitMQ may stay apart until they are restarted")
        nodes[1].suspend(True)
        wait_until(lambda: not is_whole(nodes[0]), "the others have noticed")
        nodes[1].suspend(False)
        wait_until(lambda: all(map(is_whole, nodes)), "the cluster is whole")
        for number, consumer in enumerate(consumers):
            with Vhost(Broker(nodes[number]), "/").connection(journal=0, confirm_timeout=60) as publisher:
                publish(publisher, 3, f"q{number}", correlation_id="victim")
                waiting_tasks.cancel(publisher, ["victim"])
                publish(publisher, 6, f"q{number}", correlation_id="end")
            assert [one.properties["correlation_id"] for one in take(consumer, f"q{number}", 1)] == ["end"]


@pytest.mark.parametrize("option", [{"prefix": "other"}, pytest.param({"tick": 0.02}, marks=pytest.mark.more)])
def test_a_consumer_with_other_options_gets_nothing_that_was_cancelled_or_moved(
    vhost: Vhost, option: dict[str, Any]
) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as publisher, vhost.connection(**option) as consumer:
        publish(publisher, 8, correlation_id="cancelled")
        publish(publisher, 60, correlation_id="moved")
        publish(consumer, 9, correlation_id="of another publisher")
        waiting_tasks.cancel(publisher, ["cancelled"])
        reschedule_.reschedule(publisher, "moved", datetime.now(timezone.utc) + timedelta(seconds=9))
        found = [message.properties["correlation_id"] for message in take(consumer, "q", 2)]
        publish(publisher, 3, correlation_id="cancelled later")
        waiting_tasks.cancel(publisher, ["cancelled later"])
        publish(publisher, 4, correlation_id="end")
        found += [message.properties["correlation_id"] for message in take(consumer, "q", 1)]
    assert Counter(found) == Counter(["of another publisher", "moved", "end"])


def test_a_made_up_cascade_is_not_created(vhost: Vhost) -> None:
    vhost.declare("q")
    roots = ["made up", "amq.x.v3.10ms", "made-up.v3.10ms"]
    with vhost.connection() as consumer:
        publish(consumer, 0.1)
        take(consumer, "q", 1)
        with vhost.plain() as plain, plain.Producer() as producer:
            for root in roots:
                ours = {"prefix": root, "exchange": "", "due": 0, "n": 1}
                producer.publish("x", routing_key="q", headers={HEADER: ours})
        take(consumer, "q", len(roots))
        names = vhost.names("queues") + vhost.names("exchanges")
    assert not [name for name in names if name.startswith(("made", "amq"))]


@pytest.mark.parametrize("how", ["connection", "stream"])
def test_a_worker_that_receives_nothing_learns_of_changes_after_it_lost_what_it_follows(vhost: Vhost, how: str) -> None:
    stream = streams.changes(vhost.cascade)
    with vhost.connection(journal=0) as publisher, vhost.connection(journal=0) as worker:
        waiting_tasks.cancel(publisher, ["before"])
        changes_, following = known_to[worker].changes, worker.connection.interceptor.following
        following.catch_up(stream, changes_.apply)
        if how == "connection":
            vhost.close_connections("celery-rabbit-delay follower")
        else:
            vhost.delete_queue(stream.name)
        waiting_tasks.cancel(publisher, ["after"])

        def has_learned() -> bool:
            following.keep_up(stream, changes_.apply, create=True)
            return changes_.cancels("after")

        wait_until(has_learned, "it has learned of it")


@pytest.mark.parametrize("how", ["id", "stamp"])
def test_what_is_sent_after_its_id_or_stamp_was_cancelled_stays_cancelled_and_an_id_can_be_restored(
    vhost: Vhost, how: str
) -> None:
    vhost.declare("q")
    headers = {"task": "t", "id": "id", "stamps": {"customer": ["7"]}}
    with vhost.connection(journal=0) as connection:
        cancels = changes.cancelled(["id"]) if how == "id" else [changes.cancelled_stamps({"customer": "7"})]
        write_changes(connection, cancels)
        publish(connection, 1, correlation_id="id", headers=headers)
        publish(connection, 2, correlation_id="end")
        assert [message.properties["correlation_id"] for message in take(connection, "q", 1)] == ["end"]
        waiting_tasks.restore(connection, ["id"])
        publish(connection, 1, correlation_id="id", headers=headers)
        publish(connection, 2, correlation_id="end")
        found = [message.properties["correlation_id"] for message in take(connection, "q", 2 if how == "id" else 1)]
    assert found == (["id", "end"] if how == "id" else ["end"])

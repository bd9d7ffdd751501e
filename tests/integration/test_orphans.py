"""Undeliverable messages are kept, or dropped as without a delay, and block no others."""

from __future__ import annotations

import kombu
import pytest

from celery_rabbit_delay import operate
from celery_rabbit_delay.amqp import declare
from celery_rabbit_delay.amqp.waiting import look
from celery_rabbit_delay.core.headers import HEADER
from celery_rabbit_delay.operate import Management, pruning
from testkit.broker import Vhost, take
from testkit.commands import management, run
from testkit.wait import wait_until

SLOW = {"x-delay": 8000}  # long enough to delete something meanwhile


def test_orphans_block_no_other_message(vhost: Vhost) -> None:
    vhost.declare("gone", "good")
    with vhost.connection() as connection:
        producer = connection.Producer()
        for n in range(40):  # more than the 32 unsettled messages that would freeze a level
            producer.publish(n, routing_key="gone", headers=SLOW)
        vhost.delete_queue("gone")
        for n in range(50):
            producer.publish(n, routing_key="good", headers=SLOW)
        assert sorted(m.payload for m in take(connection, "good", 50, timeout=20)) == list(range(50))
    orphans = vhost.take(vhost.cascade.orphans, 40)
    assert sorted(message.payload for message in orphans) == list(range(40))
    for message in orphans:
        _, _, *later = message.headers["CC"]
        assert message.headers["CC"] == ["gone", "@.+gone", *later]
        assert all(">" in key for key in later)  # steps
        assert message.headers[HEADER]["exchange"] == ""
        assert message.headers[HEADER]["due"] > 1_700_000_000_000


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_what_an_exchange_cannot_route_waits_and_blocks_no_other_message(vhost: Vhost, kind: str) -> None:
    """As Celery publishes: with the queue that the message is meant for declared beforehand."""
    exchange = kombu.Exchange("orders", kind)
    gone, good = (kombu.Queue(name, exchange, routing_key=name) for name in ("gone", "good"))
    with vhost.connection() as connection:
        producer = connection.Producer()
        for n in range(40):
            producer.publish(n, exchange=exchange, routing_key="gone", declare=[gone], headers=SLOW)
        vhost.delete_queue("gone")
        for n in range(40):
            producer.publish(n, exchange=exchange, routing_key="good", declare=[good], headers=SLOW)
        assert len(take(connection, "good", 40, timeout=20)) == 40
        gone(connection.default_channel).declare()
        command = ("orphans", "replay", *management(vhost))
        says = "40 due for exchange 'orders' with the routing key 'gone': tried again"
        wait_until(lambda: says in run(vhost.url("amqp"), *command).out, "the management API has counted")
        assert len(take(connection, "gone", 40)) == 40  # by itself within six minutes
        assert vhost.broker.api("GET", f"/policies/{vhost.name}") == []


def test_a_policy_of_the_user_stays_as_it_is_and_what_a_queue_has_refused_is_not_tried_at_once(vhost: Vhost) -> None:
    vhost.declare(exchange="nobody")
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with vhost.plain() as connection:
        connection.default_channel.queue_declare("full", durable=True, auto_delete=False, arguments=arguments)
    with vhost.connection() as connection:
        for _ in range(3):
            connection.Producer().publish("x", exchange="nobody", headers={"x-delay": 50})
            connection.Producer().publish("x", routing_key="full", headers={"x-delay": 50})
    vhost.policy("mine", {"delivery-limit": 20}, r"\.out\.nobody")
    vhost.declare("late", exchange="nobody")
    stays = "the policy 'mine' applies to it and stays as it is: RabbitMQ tries again within six minutes"
    said = {
        "2 due for queue 'full': queue 'full' is full and refuses more: consume from it, or raise its limit",
        f"3 due for exchange 'nobody': {stays}",
    }
    command = ("orphans", "replay", *management(vhost))
    wait_until(lambda: said <= {*run(vhost.url("amqp"), *command).out.splitlines()}, "the management API has counted")
    assert run(vhost.url("amqp"), *command).code == 3
    assert [policy["name"] for policy in vhost.broker.api("GET", f"/policies/{vhost.name}")] == ["mine"]


def test_outboxes_of_what_is_gone_are_deleted_when_they_are_empty(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "QUIET", 0)
    vhost.declare("gone", "stays")
    for exchange in ("ended", "nobody"):
        vhost.declare(exchange=exchange)
    with vhost.connection(shards=2) as connection:
        for destination in ({"exchange": "ended"}, {"exchange": "nobody"}, {"routing_key": "gone"}):
            connection.Producer().publish("x", headers={"x-delay": 60_000}, **destination)
        connection.Producer().publish("x", routing_key="stays", headers={"x-delay": 60_000})
        vhost.delete_queue("gone")
        vhost.delete_exchange("ended")
        api = Management(management(vhost)[1], vhost.name)
        pruned: set[str] = set()

        def names() -> set[str]:
            pruned.update(name.split(".out.")[1] for name in operate.prune(connection, api))
            return {name.split(".out.")[1] for name in vhost.names("queues") if ".out." in name}

        wait_until(lambda: names() == {"+stays", "nobody+", "short-lived"}, "the management API has counted")
    assert pruned == {"+gone", "ended+"}
    assert not [binding for binding in vhost.bindings() if "gone" in str(binding) or "ended" in str(binding)]
    refused = run(vhost.url("amqp"), "setup", "--prune")
    assert (refused.code, "--prune needs --management-url" in refused.err) == (2, True)
    assert "0 outboxes deleted" in run(vhost.url("amqp"), "setup", "--prune", *management(vhost)).out


def test_messages_of_a_deleted_exchange_are_orphans(vhost: Vhost) -> None:
    exchange = kombu.Exchange("orders", "direct")
    queue = kombu.Queue("q", exchange, routing_key="q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", exchange=exchange, routing_key="q", declare=[queue], headers=SLOW)
        vhost.delete_exchange("orders")
    [message] = vhost.take(vhost.cascade.orphans, 1)
    assert message.headers[HEADER]["exchange"] == "orders"


@pytest.mark.long
@pytest.mark.parametrize("name", ["news", "amq.fanout"])
def test_what_no_queue_wants_any_more_is_dropped_and_blocks_no_other_message(vhost: Vhost, name: str) -> None:
    """A fanout exchange without listeners: without a delay, RabbitMQ would drop the messages as well."""
    news = kombu.Exchange(name, "fanout")
    vhost.declare("good")
    with vhost.connection() as connection:
        producer = connection.Producer()
        for n in range(40):
            producer.publish(n, exchange=news, declare=[news], headers=SLOW)
        # Each destination has an outbox of its own, so the first to come says nothing of the others. The second comes a
        # whole delay after they were due.
        for _ in range(2):
            producer.publish("x", routing_key="good", headers=SLOW)
            assert len(take(connection, "good", 1, timeout=20)) == 1
        kombu.Queue("late", news)(connection.default_channel).declare()
        vhost.policy("again", {"delivery-limit": 1_000_000}, r"\.out\.")  # an outbox would send what it has kept
        producer.publish("last", exchange=news, headers=SLOW)
        assert [message.payload for message in take(connection, "late", 1)] == ["last"]
    assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.parametrize("limit", [None, 3])
def test_a_look_hides_nothing_from_the_next(vhost: Vhost, limit: int | None) -> None:
    with vhost.connection() as one, vhost.connection() as another:
        one.default_channel.queue_declare("q", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        for _ in range(5):
            one.Producer().publish("x", routing_key="q")
        wait_until(lambda: declare.message_count(one.default_channel, "q") == 5, "all are there")
        for _ in range(15):
            assert len(look(one, "q", limit)) == (limit or 5)
            assert declare.message_count(another.default_channel, "q") == 5

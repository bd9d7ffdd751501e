"""No user can block or misroute the delayed messages of others: each defect is tested beside innocent messages."""

from __future__ import annotations

import uuid
from typing import Any

import kombu
import pytest
from amqp import Message
from amqp.exceptions import NotFound

from celery_rabbit_delay import InvalidDestination, MessageRefused
from tests.kit.abilities import Ability
from tests.kit.broker import REFUSING, Vhost, lead, take
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

SOON = {"x-delay": 200}
SLOW = {"x-delay": 15_000}


def stuck(vhost: Vhost) -> dict[str, int]:
    """Return how many messages outboxes hold, also those that are due, by their names, without empty ones."""
    rows = vhost.broker.api("GET", f"/queues/{vhost.name}?columns=name,messages")
    return {row["name"]: row["messages"] for row in rows if ".out." in row["name"] and row.get("messages")}


@pytest.mark.parametrize(
    ("kind", "outboxes"),
    [("classic", ()), ("quorum", (0.2,))],
    ids=["in general", "through outboxes that delay"],
)
def test_a_queue_that_is_full_stops_only_its_own_messages(vhost: Vhost, kind: str, outboxes: tuple[float, ...]) -> None:
    vhost.declare("full", arguments={"x-queue-type": kind, **REFUSING})
    vhost.declare("good")
    with vhost.connection(outboxes=outboxes, slack=(0.3, 0.3)) as connection:
        for queue in ("full", "good"):
            lead(connection, queue, delays=outboxes)
        producer = connection.Producer()
        for n in range(40):
            producer.publish(n, routing_key="full", headers=SOON)
        wait_until(lambda: vhost.count("full"), "the queue is full")
        for n in range(5):
            producer.publish(n, routing_key="good", headers=SOON)
        assert len(take(connection, "good", 5)) == 5
        if outboxes:
            outbox = f"{vhost.cascade.root}.out.200ms.+full"
            # A quorum queue may take one more than its limit.
            wait_until(lambda: stuck(vhost) == {outbox: 40 - vhost.count("full")}, "they are stuck where they waited")


@pytest.mark.parametrize("declared", [True, False], ids=["declared here", "unknown here"])
def test_queues_behind_one_exchange_do_not_wait_for_each_other_if_they_are_known(vhost: Vhost, declared: bool) -> None:
    vhost.declare("good", exchange="orders")
    vhost.declare("full", arguments=REFUSING)
    exchange = kombu.Exchange("orders", "direct")
    with vhost.connection() as connection:
        connection.default_channel.queue_bind("full", "orders", "full")
        producer = connection.Producer()
        for n in range(40):
            producer.publish(n, exchange="orders", routing_key="full", headers=SOON)
        wait_until(lambda: vhost.count("full"), "the queue is full")
        more = {"declare": [kombu.Queue("good", exchange, routing_key="good")]} if declared else {}
        producer.publish("x", exchange="orders", routing_key="good", headers=SOON, **more)
        assert len(take(connection, "good", 1)) == 1


@pytest.mark.leaves_orphans
def test_a_key_that_somebody_made_up_blocks_no_level(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish("first", routing_key="q", headers=SOON)
        take(connection, "q", 1)
        with vhost.plain() as forger:
            for _ in range(40):
                forger.default_channel.basic_publish(Message("forged"), vhost.cascade.ingest, "@.^9.^8.^77")
        wait_until(lambda: vhost.count(vhost.cascade.orphans) == 40, "the forged ones are orphans")
        for delay in (10, 20, 40, 80, 160, 5120 + 80):
            producer.publish(delay, routing_key="q", headers={"x-delay": delay})
        assert len(take(connection, "q", 6)) == 6


def test_a_queue_that_was_unbound_meanwhile_gets_nothing(vhost: Vhost) -> None:
    exchange = kombu.Exchange("orders", "direct")
    old = kombu.Queue("old", exchange, routing_key="new")
    with vhost.connection() as connection:
        connection.Producer().publish("x", exchange=exchange, routing_key="new", declare=[old], headers=SLOW)
        channel = connection.default_channel
        channel.queue_declare("fresh", durable=True, auto_delete=False)
        channel.queue_bind("fresh", "orders", "new")
        channel.queue_unbind("old", "orders", "new")
        connection.Producer().publish("y", exchange="orders", routing_key="new", headers=SLOW)
        assert len(take(connection, "fresh", 2)) == 2
        assert vhost.count("old") == 0


@pytest.mark.parametrize("kind", ["x-random", "x-consistent-hash"])
def test_an_exchange_that_picks_one_queue_still_picks_one(vhost: Vhost, kind: str) -> None:
    """One copy of each message, from exchanges of plug-ins too."""
    with vhost.connection() as connection:
        channel = connection.default_channel
        queues = [kombu.Queue(f"q{n}", kombu.Exchange("pick", kind), routing_key="1") for n in range(2)]
        for queue in queues:
            queue(channel).declare()
        for n in range(40):
            connection.Producer().publish(n, exchange="pick", routing_key="1", headers=SOON)
        assert len(take(connection, ["q0", "q1"], 40)) == 40
        assert vhost.count("q0") + vhost.count("q1") == 0


@pytest.mark.parametrize("exchange", ["", "replies"])
def test_short_lived_queues_leave_no_outboxes_and_no_bindings(vhost: Vhost, exchange: str) -> None:
    vhost.declare("q", exchange=exchange)
    with vhost.connection(outboxes=()) as connection:
        channel = connection.default_channel
        connection.Producer().publish("x", exchange=exchange, routing_key="q", headers=SOON)
        before = vhost.bindings(), vhost.names("queues")
        names = []
        for n in range(20):
            name = channel.queue_declare("" if n % 2 else str(uuid.uuid4()), exclusive=True, auto_delete=True).queue
            names.append(name)
            if exchange:
                channel.queue_bind(name, exchange, name)
            connection.Producer().publish(n, exchange=exchange, routing_key=name, headers=SOON)
        take(connection, names, 20)
        for name in names:
            channel.queue_delete(name)
        assert (vhost.bindings(), vhost.names("queues")) == before


def test_a_message_that_is_too_large_for_rabbitmq_is_told_so(vhost: Vhost) -> None:
    if not vhost.broker.has(Ability.LIMITS_MESSAGES_TO_16_MB):
        pytest.skip("this RabbitMQ takes up to 128 MiB")
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        with pytest.raises(MessageRefused, match="larger than configured max size"):
            producer.publish(b"x" * 17_000_000, routing_key="q", headers=SOON, content_encoding="binary")
        producer.publish("y", routing_key="q", headers=SOON)
        assert [message.payload for message in take(connection, "q", 1)] == ["y"]


def test_an_error_of_another_channel_is_no_error_of_a_message_that_was_stored(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=SOON)
        other = connection.channel()
        other.basic_publish(Message("nowhere"), "no such exchange", "k")
        connection.Producer().publish("y", routing_key="q", headers=SOON)
        with pytest.raises(NotFound, match="no such exchange"):
            take(connection, "q", 3)
        assert len(take(connection, "q", 1)) <= 2


@pytest.mark.parametrize("options", [{}, {"journal": 0}], ids=["", "recorded"])
def test_what_amqp_cannot_carry_is_an_error_and_the_connection_stays_usable(
    vhost: Vhost, options: dict[str, Any]
) -> None:
    vhost.declare("q")
    with vhost.connection(**options) as connection:
        producer = connection.Producer()
        for wrong, says in (
            ({"routing_key": ""}, "routing key is empty"),
            ({"routing_key": "x" * 256}, "has 256 bytes: use at most 255"),
            ({"routing_key": "\ud800"}, "not valid text"),
            ({"priority": "high"}, "priority='high': use a whole number from 0 to 255"),
            ({"priority": 256}, "priority=256"),
        ):
            with pytest.raises(InvalidDestination, match=says):
                producer.publish("x", **{"routing_key": "q", "headers": SOON, **wrong})
            producer.publish("y", routing_key="q", headers=SOON)
        assert len(take(connection, "q", 5)) == 5

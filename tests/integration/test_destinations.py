"""A delayed message arrives exactly where, and exactly as, it would have without a delay."""

from __future__ import annotations

import time
from typing import Any

import kombu
import pytest

from celery_rabbit_delay import DestinationNotFound, InvalidDestination
from celery_rabbit_delay.delay.amqp.routes import OFTEN
from tests.kit.broker import Vhost, lead, publish, take
from tests.kit.frames import routing_keys
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

DELAY, ROUND = {"x-delay": 30}, {"x-delay": 250}
LONG = "ü" * 127 + "x"  # 255 bytes


def declare(vhost: Vhost, exchange: str, kind: str, bindings: dict[str, list[Any]]) -> None:
    """Declare an exchange and queues bound to it by routing keys, or by arguments for a headers exchange."""
    with vhost.plain() as connection:
        channel = connection.default_channel
        if exchange and not exchange.startswith("amq."):
            channel.exchange_declare(exchange, kind, durable=True, auto_delete=False)
        for queue, keys in bindings.items():
            channel.queue_declare(queue, durable=True, auto_delete=False)
            for key in keys if exchange else ():
                if isinstance(key, dict):
                    channel.queue_bind(queue, exchange, "", arguments=key)
                else:
                    channel.queue_bind(queue, exchange, key)


def seen(connection: kombu.Connection, queues: list[str], amount: int) -> dict[str, list[Any]]:
    """Return what consumers of some queues receive with a number of messages."""
    got: dict[str, list[Any]] = {queue: [] for queue in queues}

    def have_come() -> bool:
        for queue in queues:
            message = kombu.Queue(queue, no_declare=True)(connection.default_channel).get(no_ack=True)
            if message:
                info = {key: message.delivery_info[key] for key in ("exchange", "routing_key", "redelivered")}
                got[queue].append((info, message.headers, message.properties, message.payload))
        return sum(map(len, got.values())) >= amount

    wait_until(have_come, f"{amount} messages come to {queues}")
    assert sum(map(len, got.values())) == amount
    return got


def assert_same_with_and_without_delay(
    vhost: Vhost, queues: list[str], exchange: str, routing_key: str, copies: int, headers: Any = None, **more: Any
) -> dict[str, list[Any]]:
    with vhost.connection(outboxes=[0.25], slack=(0.2, 0.2)) as connection:
        producer = connection.Producer()
        sent = {"exchange": exchange, "routing_key": routing_key, **more}
        producer.publish({"n": 1}, headers=headers, **sent)
        direct = seen(connection, queues, copies)
        if not exchange:  # another process has made the outbox
            lead(connection, routing_key, [0.25])
        with routing_keys() as keys:
            for delay in (DELAY, *[ROUND] * (OFTEN + 1 if exchange else 1)):  # through levels, and then past them
                producer.publish({"n": 1}, headers={**(headers or {}), **delay}, **sent)
                assert seen(connection, queues, copies) == direct
        assert keys[0].startswith("@.^")
        assert keys[-1].startswith("@.250ms.") or more.get("priority", 0) > 4
        time.sleep(0.2)  # for a copy too many
        assert vhost.count(*queues) == 0
        return direct


def test_a_message_reaches_its_queue_through_the_default_exchange(vhost: Vhost) -> None:
    queues = ["q", "a.b", "with space", "*", "#", "a.#.*", "größe-漢字", "0.1", "x" * 190, "x+y%2E!", "@", "@.^1"]
    bystanders = ["b", "0", "1"]
    declare(vhost, "", "", {name: [] for name in [*queues, *bystanders, LONG]})
    for queue in queues:
        got = assert_same_with_and_without_delay(vhost, [*queues, *bystanders], "", queue, copies=1)
        assert got[queue]
    with vhost.connection() as connection:
        for sent, says in (
            ({"routing_key": LONG}, "is too long for delayed messages"),
            ({"exchange": "amq.direct", "routing_key": "@"}, "begins with the word '@'"),
            ({"routing_key": "q", "headers": DELAY | {"CC": ["b"]}}, "goes to one queue or exchange"),
            ({"routing_key": "q", "headers": DELAY | {"BCC": ["b"]}}, "goes to one queue or exchange"),
        ):
            with pytest.raises(InvalidDestination, match=says):
                connection.Producer().publish("x", **{"headers": DELAY, **sent})


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        *(("orders", key) for key in ("a.b", "", "*", LONG)),
        ("amq.direct", "new"),
        *(pytest.param(name, "new", marks=pytest.mark.more) for name in ("a.b", "with space", "#", "größe")),
    ],
)
def test_a_direct_exchange_routes_as_without_a_delay(vhost: Vhost, exchange: str, key: str) -> None:
    declare(vhost, exchange, "direct", {"one": [key], "two": [key, "other"], "three": ["b"]})
    got = assert_same_with_and_without_delay(vhost, ["one", "two", "three"], exchange, key, copies=2)
    assert [len(got[queue]) for queue in ("one", "two", "three")] == [1, 1, 0]


def test_a_topic_exchange_routes_as_without_a_delay(vhost: Vhost) -> None:
    bindings = {"all": ["#"], "orders": ["order.#"], "new": ["order.new.*", "*.new.#"], "eu": ["*.*.eu"], "ab": ["a.b"]}
    declare(vhost, "events", "topic", bindings)
    for key, copies in (("order.new.eu", 4), ("order.old", 2), ("order", 2), ("b", 1), ("", 1), ("0.1.x", 1)):
        assert_same_with_and_without_delay(vhost, [*bindings], "events", key, copies)


def test_a_topic_binding_may_end_in_the_name_of_its_exchange_or_queue(vhost: Vhost) -> None:
    declare(vhost, "b", "topic", {"one": ["#.b"], "two": ["#.two"], "three": ["key"]})
    assert_same_with_and_without_delay(vhost, ["one", "two", "three"], "b", "key", copies=1)


def test_a_fanout_exchange_routes_as_without_a_delay(vhost: Vhost) -> None:
    declare(vhost, "news", "fanout", {"one": [""], "two": ["x"], "three": ["y", "z"]})
    assert_same_with_and_without_delay(vhost, ["one", "two", "three"], "news", "whatever", copies=3)


def test_a_headers_exchange_routes_as_without_a_delay(vhost: Vhost) -> None:
    eu, new = {"x-match": "all", "region": "eu", "kind": "new"}, {"x-match": "any", "kind": "new", "CC": "x"}
    declare(vhost, "matching", "headers", {"eu": [eu], "new": [new], "other": [{"x-match": "all", "region": "us"}]})
    headers = {"region": "eu", "kind": "new"}
    assert_same_with_and_without_delay(vhost, ["eu", "new", "other"], "matching", "", copies=2, headers=headers)


def test_a_message_that_was_dead_lettered_before_arrives(vhost: Vhost) -> None:
    """RabbitMQ before 4.0.1 would take its history for a cycle, and drop it or hold it for good."""
    vhost.declare("q")
    died = {"queue": "q", "exchange": "", "routing-keys": ["q"], "reason": "expired", "count": 1}
    headers = {"x-death": [died], "x-first-death-queue": "q", "x-first-death-reason": "expired", "a": 1}
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=headers | DELAY)
        [message] = take(connection, "q", 1)
    assert message.headers == {"a": 1}


def test_a_copy_of_a_due_message_goes_where_it_is_sent_and_nowhere_else(vhost: Vhost) -> None:
    """As a shovel sends it, or any program that moves messages: with all headers that RabbitMQ has left on it."""
    vhost.declare("q", "new")
    vhost.declare("bound", exchange="orders")
    with vhost.connection() as connection:
        connection.default_channel.queue_bind("bound", "orders", "bound")  # this connection knows the key
        for exchange, queue in (("", "q"), ("orders", "bound")):
            for delay in (0.03, 0.5):
                publish(connection, delay, queue, exchange=exchange)
    with vhost.plain() as plain:
        for queue in ("q", "bound"):
            for message in take(plain, queue, 2):
                assert queue not in message.headers.get("CC", ())
                plain.Producer().publish(message.body, routing_key="new", headers=message.headers)
        wait_until(lambda: vhost.count("new") == 4, "the copies are there")
        time.sleep(0.3)  # for a copy too many
        assert (vhost.count("new"), vhost.count("q", "bound")) == (4, 0)


def test_properties_and_headers_survive(vhost: Vhost) -> None:
    declare(vhost, "", "", {"q": []})
    properties = {
        "priority": 7,
        "correlation_id": "c-1",
        "reply_to": "answers",
        "message_id": "m-1",
        "timestamp": 1_700_000_000,
        "type": "order",
        "app_id": "shop",
        "delivery_mode": 1,
        "headers": {"a": 1, "nested": {"list": [1, "zwei", None]}, "compression": None},
    }
    assert_same_with_and_without_delay(vhost, ["q"], "", "q", copies=1, **properties)


def test_expiration_does_not_cut_the_delay_short(vhost: Vhost) -> None:
    declare(vhost, "", "", {"q": []})
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 300}, expiration=0.02)
        [message] = take(connection, "q", 1)
    assert "expiration" not in message.properties


@pytest.mark.parametrize("confirm_publish", [False, True])
def test_a_missing_destination_is_an_error_and_the_connection_stays_usable(vhost: Vhost, confirm_publish: bool) -> None:
    declare(vhost, "", "", {"q": []})
    with vhost.connection(confirm_publish=confirm_publish) as connection:
        producer = connection.Producer()
        channel = connection.default_channel
        for _ in range(3):
            with pytest.raises(DestinationNotFound, match="the queue 'nowhere' does not exist: declare it before"):
                producer.publish("x", routing_key="nowhere", headers=DELAY)
            with pytest.raises(DestinationNotFound, match="the exchange 'nowhere' does not exist: declare it before"):
                producer.publish("x", exchange="nowhere", headers=DELAY)
        producer.publish("delayed", routing_key="q", headers=DELAY)
        producer.publish("direct", routing_key="q")
        assert sorted(message.payload for message in take(connection, "q", 2)) == ["delayed", "direct"]
        assert connection.default_channel is channel
        assert channel.is_open
        assert len(connection.connection.channels) <= 4  # 0, the default, ours, and take()'s


def test_retries_of_the_same_message_object_send_the_same(vhost: Vhost) -> None:
    """Kombu publishes the same headers again when it retries; they must not have changed."""
    declare(vhost, "", "", {"q": []})
    headers = {"x-delay": 30, "CC": []}
    with vhost.connection() as connection:
        for _ in range(2):
            connection.Producer().publish("x", routing_key="q", headers=headers)
        assert headers == {"x-delay": 30, "CC": []}
        assert len(take(connection, "q", 2)) == 2


def test_what_the_users_own_dead_lettering_adds_afterwards_stays(vhost: Vhost) -> None:
    declare(vhost, "failed", "topic", {"dead": ["#"]})
    vhost.declare("q", arguments={"x-dead-letter-exchange": "failed"})
    got = []
    with vhost.connection() as connection:
        for headers in ({}, DELAY):
            connection.Producer().publish("x", routing_key="q", headers=headers)
            queue = kombu.Queue("q", no_declare=True)(connection.default_channel)
            wait_until(queue.get, "the message came").reject()
            [message] = take(connection, "dead", 1)
            for death in message.headers["x-death"]:
                del death["time"]
            got.append((message.delivery_info["exchange"], message.delivery_info["routing_key"], message.headers))
    assert got[0] == got[1]

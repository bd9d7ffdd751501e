"""Nothing is lost silently, and nothing without a delay changes."""

from __future__ import annotations

import logging
from typing import Any

import kombu
import pytest
from amqp import Message
from amqp.exceptions import MessageNacked

from celery_rabbit_delay import CascadeMissing, NotPermitted, NotRouted
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.headers import HEADER
from testkit.broker import QUICK, Vhost, take
from testkit.proxy import proxy
from testkit.wait import wait_until

DELAY = {"x-delay": 30}
SLOW = {"x-delay": 3000}  # long enough to delete something meanwhile


def test_orphans_are_kept_readable_and_hold_nobody_up(vhost: Vhost) -> None:
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
        assert message.headers["CC"] == ["gone", "@.+gone", "@.=+gone"]
        assert message.headers[HEADER]["exchange"] == ""
        assert message.headers[HEADER]["due"] > 1_700_000_000_000


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_what_an_exchange_cannot_route_waits_and_holds_nobody_up(vhost: Vhost, kind: str) -> None:
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
        vhost.policy("again", {"delivery-limit": 1_000_000}, r"\.out\.")  # or it takes up to three minutes
        assert len(take(connection, "gone", 40)) == 40


def test_messages_of_a_deleted_exchange_are_orphans(vhost: Vhost) -> None:
    exchange = kombu.Exchange("orders", "direct")
    queue = kombu.Queue("q", exchange, routing_key="q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", exchange=exchange, routing_key="q", declare=[queue], headers=SLOW)
        vhost.delete_exchange("orders")
    [message] = vhost.take(vhost.cascade.orphans, 1)
    assert message.headers[HEADER]["exchange"] == "orders"


def test_a_message_with_the_history_of_an_earlier_dead_lettering_arrives(vhost: Vhost) -> None:
    """RabbitMQ before 4.0.1 takes it for a cycle, drops the message, or holds it for good and stops the level."""
    vhost.declare("q")
    died = {"queue": "q", "exchange": "", "routing-keys": ["q"], "reason": "expired", "count": 1}
    headers = {"x-death": [died], "x-first-death-queue": "q", "x-first-death-reason": "expired"}
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=headers | DELAY)
        [message] = take(connection, "q", 1)
    assert message.headers == headers


def test_what_no_queue_wants_any_more_holds_nobody_up(vhost: Vhost) -> None:
    """A fanout exchange without listeners: without a delay, RabbitMQ would drop the messages as well."""
    news = kombu.Exchange("news", "fanout")
    vhost.declare("good")
    with vhost.connection() as connection:
        producer = connection.Producer()
        for n in range(40):
            producer.publish(n, exchange=news, declare=[news], headers=SLOW)
        producer.publish("x", routing_key="good", headers=SLOW)
        assert len(take(connection, "good", 1, timeout=20)) == 1


@pytest.mark.parametrize("declared", ["auto", "passive"])
def test_deleted_parts_of_the_cascade_are_made_again_or_missed_loudly(vhost: Vhost, declared: str) -> None:
    vhost.declare("q")
    cascade = vhost.cascade
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=DELAY)
        take(connection, "q", 1)
    with vhost.connection(declare=declared) as connection:
        producer = connection.Producer()
        producer.publish("x", routing_key="q", headers=DELAY)
        take(connection, "q", 1)
        for delete, name in ((vhost.delete_queue, cascade.levels[1].queue), (vhost.delete_exchange, cascade.ingest)):
            delete(name)
            if declared == "passive":
                with pytest.raises((CascadeMissing, NotRouted)):
                    producer.publish("x", routing_key="q", headers=DELAY)
            else:
                producer.publish("x", routing_key="q", headers=DELAY)
                take(connection, "q", 1)


def fill_levels(vhost: Vhost) -> None:
    """By a policy that leaves them no room, which the broker takes a while to put in force."""
    vhost.policy("full", {"max-length": 0}, pattern=r"\.delay\.")


def refusal(producer: kombu.Producer, headers: dict[str, Any] = DELAY) -> str:
    """Why a message cannot be stored now, or nothing if it can."""
    try:
        producer.publish("?", routing_key="q", headers=headers)
    except MessageNacked as exc:
        return str(exc)
    return ""


def test_a_message_that_the_broker_cannot_store_is_an_error(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish("first", routing_key="q", headers=DELAY)
        fill_levels(vhost)
        assert "could not store the message" in wait_until(lambda: refusal(producer), "the policy is in force")
        vhost.broker.api("DELETE", f"/policies/{vhost.name}/full")
        wait_until(lambda: not refusal(producer), "the same connection publishes again")


def test_an_answer_that_comes_after_a_time_out_is_not_taken_for_the_next_one(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as other:
        other.Producer().publish("declares", routing_key="q", headers={"x-delay": 30})
        options = {"rabbit_delay": QUICK}
        with (
            proxy(vhost.broker.node.port) as between,
            kombu.Connection(between.url(vhost.url()), transport_options=options) as connection,
        ):
            channel = connection.default_channel  # opened while the broker answers
            connection.connection.publisher_for().bind(Destination("", ("q",)))

            def publish(body: str, **timeouts: float) -> None:  # Kombu 5.3's producer knows no confirm_timeout
                message = Message(body, application_headers={"x-delay": 60_000})
                channel.basic_publish(message, "", "q", **timeouts)

            between.flowing.clear()
            try:
                with pytest.raises(TimeoutError):
                    publish("late", confirm_timeout=0.3)
            finally:
                between.flowing.set()
            levels = [level.queue for level in vhost.cascade.levels]
            wait_until(lambda: sum(map(vhost.count, levels)) == 1, "the message is stored after all")
            fill_levels(vhost)
            wait_until(lambda: refusal(other.Producer(), {"x-delay": 60_000}), "the policy is in force")
            with pytest.raises(MessageNacked):
                publish("refused")


@pytest.mark.parametrize(
    ("write", "read", "says"),
    [
        (r"^q$|\.out\.", ".*", "celery-rabbit-delay.v2.10ms.ingest"),  # may not publish
        (r"^celery-rabbit-delay\.(?!.*ingest$)", ".*", "'q'"),  # may not bind the queue
        (".*", "^q$", "celery-rabbit-delay.v2.10ms.delay.exit"),  # may not bind to done
    ],
)
@pytest.mark.parametrize("confirm_publish", [False, True])
def test_a_missing_permission_is_an_error_that_names_it_and_the_connection_stays_usable(
    vhost: Vhost, write: str, read: str, says: str, confirm_publish: bool
) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=DELAY)
    user = vhost.user(configure=r"\.out\.", write=write, read=read)
    with vhost.connection(user, confirm_publish) as connection:
        channel = connection.default_channel
        for _ in range(2):
            with pytest.raises(NotPermitted, match="grant the permission") as caught:
                connection.Producer().publish("x", routing_key="q", headers=DELAY)
            assert says in str(caught.value)
        assert channel.is_open
        channel.queue_declare("q", passive=True)


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

        for n in range(300):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            producer.publish(-1, routing_key="out", headers=DELAY)
            while len(received) < 300:
                connection.drain_events(timeout=20)
        assert received == list(range(300))
        assert len(take(connection, "out", 301)) == 301


def test_deliveries_held_back_survive_a_consumer_that_fails(vhost: Vhost) -> None:
    vhost.declare("in", "out")
    received: list[int] = []
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish(-1, routing_key="out", headers=DELAY)

        def on_message(message: kombu.Message) -> None:
            received.append(message.payload)
            message.ack()
            if message.payload == 0:
                producer.publish(0, routing_key="out", headers=DELAY)  # the others come in meanwhile
            if message.payload == 1:
                raise RuntimeError("consumer failed")

        for n in range(5):
            producer.publish(n, routing_key="in")
        with kombu.Consumer(connection.channel(), [kombu.Queue("in", no_declare=True)], on_message=on_message):
            with pytest.raises(RuntimeError, match="consumer failed"):
                connection.drain_events(timeout=20)
            while len(received) < 5:
                connection.drain_events(timeout=20)
        assert received == list(range(5))
        assert len(take(connection, "out", 2)) == 2


def test_without_confirm_a_returned_message_is_logged(vhost: Vhost, caplog: pytest.LogCaptureFixture) -> None:
    vhost.declare("q")
    with vhost.connection(confirm=False) as connection, caplog.at_level(logging.ERROR):
        producer = connection.Producer()
        producer.publish("x", routing_key="q", headers=DELAY)
        take(connection, "q", 1)
        vhost.delete_queue(vhost.cascade.levels[0].queue)
        vhost.delete_queue(vhost.cascade.levels[1].queue)
        producer.publish("lost", routing_key="q", headers=DELAY)
        wait_until(lambda: connection.drain_events(timeout=5) or caplog.records, "the broker returned it")
    assert "RabbitMQ returned a delayed message, it is lost: NO_ROUTE" in caplog.text


@pytest.mark.parametrize("confirm_publish", [False, True])
def test_undelayed_publishes_are_the_same_bytes_on_the_wire(vhost: Vhost, confirm_publish: bool) -> None:
    vhost.declare("q", exchange="x")
    wire: list[bytes] = []
    with proxy(vhost.broker.node.port) as proxying:
        for scheme in ("amqp", "rabbit-delay"):
            url = f"{scheme}://guest:guest@127.0.0.1:{proxying.port}/{vhost.name}"
            with kombu.Connection(url, transport_options={"confirm_publish": confirm_publish}) as connection:
                proxying.sent.clear()
                producer = connection.Producer()
                for headers in ({}, None, {"a": 1}, {"task": "t", "id": "1", "eta": None}, {"eta": "x", "CC": ["q"]}):
                    producer.publish({"n": 1}, routing_key="q", exchange="x", headers=headers, expiration=9, priority=3)
                assert len(take(connection, "q", 5)) == 5
                wire.append(bytes(proxying.sent))
    # basic.consume differs: there are consumer tags in it, and their length is in its frame's seven bytes before.
    plain, ours = (sent.split(b"\x00\x3c\x00\x14")[0][:-7] for sent in wire)
    assert plain == ours
    assert plain.count(b'{"n": 1}') == 5


def test_a_cut_between_publish_and_confirm_is_a_connection_error_and_retry_sends_again(vhost: Vhost) -> None:
    vhost.declare("q")
    with proxy(vhost.broker.node.port) as proxying:
        url = f"rabbit-delay://guest:guest@127.0.0.1:{proxying.port}/{vhost.name}"
        with kombu.Connection(url, transport_options={"rabbit_delay": QUICK}) as connection:
            producer = connection.Producer()
            producer.publish("before", routing_key="q", headers=DELAY)
            cuts = [1]
            proxying.cut_after = lambda data: b"fragile" in data and bool(cuts and cuts.pop())
            with pytest.raises(OSError, match=r"closed|reset|EOF"):
                producer.publish("fragile 1", routing_key="q", headers=DELAY)
            cuts.append(1)
            producer.publish("fragile 2", routing_key="q", headers=DELAY, retry=True, retry_policy={"max_retries": 3})
    # At least once: the broker may have stored what it could not confirm any more.
    wait_until(lambda: vhost.count("q") >= 3, "all that was confirmed arrived")
    messages = {message.payload for message in vhost.take("q", vhost.count("q"))}
    assert {"before", "fragile 2"} <= messages <= {"before", "fragile 1", "fragile 2"}


def test_messages_without_a_delay_create_nothing(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q")
        take(connection, "q", 1)
    assert vhost.names("queues") == ["q"]
    assert vhost.names("exchanges") == []

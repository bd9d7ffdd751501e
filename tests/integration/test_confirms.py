"""Publishing returns once the broker has stored a message, or raises the reason."""

from __future__ import annotations

from typing import Any

import kombu
import pytest
from amqp import Message
from amqp.exceptions import ChannelError, MessageNacked

from celery_rabbit_delay.delay.amqp import publisher
from celery_rabbit_delay.delay.core.destination import Destination
from tests.kit.broker import Vhost, lead, publishing, take
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

DELAY = {"x-delay": 30}
LONG_DELAY = {"x-delay": 20_000}  # what still waits when the next is published


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish what is refused only once: an empty level that is called full takes the first message of a channel."""
    monkeypatch.setattr(publisher, "RETRIED_FOR", 0)


def fill(vhost: Vhost, pattern: str = r"\.delay\.") -> None:
    """Make all levels, or other queues, full with a policy."""
    vhost.policy("full", {"max-length": 0}, pattern=pattern)


def refusal(producer: kombu.Producer, headers: dict[str, Any] = LONG_DELAY) -> str:
    """Return the reason why a message cannot be stored now, or ""."""
    try:
        producer.publish("?", routing_key="q", headers=headers)
    except MessageNacked as exc:
        return str(exc)
    return ""


@pytest.mark.parametrize(("outboxes", "full"), [((), r"\.(delay|out)\."), ((20.0,), r"\.out\.")])
def test_a_message_that_the_broker_cannot_store_is_an_error(
    vhost: Vhost, outboxes: tuple[float, ...], full: str
) -> None:
    vhost.declare("q")
    with vhost.connection(outboxes=outboxes) as connection:
        producer = connection.Producer()
        lead(connection, "q", delays=outboxes)
        producer.publish("first", routing_key="q", headers=DELAY)
        fill(vhost, full)
        assert "could not store the message" in wait_until(lambda: refusal(producer), "the policy is in force")
        vhost.broker.api("DELETE", f"/policies/{vhost.name}/full")
        wait_until(lambda: not refusal(producer), "the same connection publishes again")


def test_after_a_time_out_the_next_message_opens_another_connection(vhost: Vhost) -> None:
    vhost.declare("q")
    with proxy(vhost.broker.node.port) as between, vhost.connection(port=between.port) as connection:
        channel = connection.default_channel

        def publish(body: str, **timeouts: float) -> None:  # Kombu 5.3's producer knows no confirm_timeout
            channel.basic_publish(Message(body, application_headers={"x-delay": 30}), "", "q", **timeouts)

        publish("before")
        between.flowing.clear()
        try:
            with pytest.raises(TimeoutError, match="RabbitMQ has not answered in time"):
                publish("late", confirm_timeout=0.3)
        finally:
            between.flowing.set()
        publish("after")
        assert channel.is_open  # the user's connection is as it was
    arrived = {"before", "after"} - {message.payload for message in vhost.take("q", 2)}
    assert not arrived or vhost.take("q", 1)


def test_what_the_broker_has_closed_meanwhile_is_opened_again_and_nothing_is_sent_twice(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish(1, routing_key="q", headers=DELAY)
        channel = producer.channel
        vhost.close_connections("celery-rabbit-delay publisher")
        producer.publish(2, routing_key="q", headers=DELAY)
        assert producer.channel is channel  # Kombu has noticed nothing
        assert sorted(message.payload for message in vhost.take("q", 2)) == [1, 2]
    assert vhost.count("q") == 0


def test_a_cut_between_publish_and_confirm_is_a_connection_error_and_retry_sends_again(vhost: Vhost) -> None:
    vhost.declare("q")
    with proxy(vhost.broker.node.port) as between, vhost.connection(port=between.port) as connection:
        producer = connection.Producer()
        producer.publish("before", routing_key="q", headers=DELAY)
        cuts = [1]
        between.cut_after = lambda data: b"fragile" in data and bool(cuts and cuts.pop())
        with pytest.raises(OSError, match=r"closed|reset|EOF"):
            producer.publish("fragile 1", routing_key="q", headers=DELAY)
        cuts.append(1)
        producer.publish("fragile 2", routing_key="q", headers=DELAY, retry=True, retry_policy={"max_retries": 3})
    # At least once: the broker may have stored what it could not confirm any more.
    wait_until(lambda: vhost.count("q") >= 3, "all that was confirmed arrived")
    messages = {message.payload for message in vhost.take("q", vhost.count("q"))}
    assert {"before", "fragile 2"} <= messages <= {"before", "fragile 1", "fragile 2"}


@pytest.mark.leaves_orphans
@pytest.mark.parametrize("is_noticed_by", ["message", "user"])
def test_what_is_gone_when_a_lost_connection_is_opened_again_is_created_again(vhost: Vhost, is_noticed_by: str) -> None:
    vhost.declare("q")
    with proxy(vhost.broker.node.port) as between, vhost.connection(port=between.port) as connection:
        producer = connection.Producer()
        producer.publish("before", routing_key="q", headers=DELAY)
        vhost.take("q", 1)
        vhost.delete_queue(vhost.cascade.outbox_name(Destination("", "q"), 0))
        if is_noticed_by == "user":
            between.cut()
            producer.publish("at once", routing_key="q", retry=True, retry_policy={"max_retries": 3})
        else:
            between.cut_after = lambda data: b"lost" in data
            with pytest.raises(OSError, match=r"closed|reset|EOF"):
                producer.publish("lost", routing_key="q", headers=LONG_DELAY)
        producer.publish("after", routing_key="q", headers=DELAY)
        wait_until(lambda: vhost.count("q") == 1 + (is_noticed_by == "user"), "nothing becomes an orphan")


@pytest.mark.leaves_orphans
@pytest.mark.parametrize("deleted", [["outbox_ingest"], ["ingest", "marker"]], ids=str)
def test_what_is_sent_after_the_cascade_was_declared_again_is_confirmed(vhost: Vhost, deleted: list[str]) -> None:
    vhost.declare("q", "r")
    with vhost.connection(confirm_timeout=5) as connection:
        producer = connection.Producer()
        producer.publish("first", routing_key="q", headers=DELAY)
        with publishing(connection) as publisher:
            cascade = publisher.cascade
        for name in deleted:
            vhost.delete_exchange(getattr(cascade, name))
        producer.publish("second", routing_key="r", headers=DELAY)
        assert [message.payload for message in take(connection, "r", 1)] == ["second"]


def test_a_message_of_the_user_that_is_returned_is_no_error_of_a_delayed_one(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producer = connection.Producer()
        producer.publish("first", routing_key="q", headers=DELAY)
        connection.channel().basic_publish(Message("lost"), "", "nowhere", mandatory=True)
        producer.publish("second", routing_key="q", headers=DELAY)
        with pytest.raises(ChannelError, match="NO_ROUTE"):
            take(connection, "q", 2)
        assert len(take(connection, "q", 2)) == 2

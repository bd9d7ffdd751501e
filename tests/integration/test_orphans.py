"""Messages whose outbox was deleted are kept, what waits for a queue that is gone comes when it is back, and neither
blocks others.
"""

from __future__ import annotations

import time
from typing import Any

import kombu
import pytest

from celery_rabbit_delay import operate
from celery_rabbit_delay.delay.amqp import declare
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.operate.replaying import Allowed, look, replay
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from tests.kit.broker import Vhost, ensure, lead, publish, take
from tests.kit.commands import make_orphans
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

SOON = {"x-delay": 300}
SLOW = {"x-delay": 15_000}  # long enough to delete something meanwhile


def test_orphans_block_no_other_message(vhost: Vhost) -> None:
    vhost.declare("gone", "good")
    with vhost.connection(outboxes=()) as connection:
        producer = connection.Producer()
        lead(connection, "gone")
        vhost.delete_queue(vhost.cascade.outbox_name(Destination("", "gone")))  # this process does not look again
        for n in range(40):  # more than the 32 unsettled messages that would freeze a level
            producer.publish(n, routing_key="gone", headers=SOON)
        for n in range(50):
            producer.publish(n, routing_key="good", headers=SOON)
        assert sorted(m.payload for m in take(connection, "good", 50)) == list(range(50))
    orphans = vhost.take(vhost.cascade.orphans, 40)
    assert sorted(message.payload for message in orphans) == list(range(40))
    for message in orphans:
        assert message.headers["CC"] == ["@.+gone"]
        assert (message.headers[HEADER]["exchange"], message.headers[HEADER]["routing_key"]) == ("", "gone")
        assert message.headers[HEADER]["due"] > 1_700_000_000_000


def test_what_waits_for_a_queue_that_is_gone_blocks_no_other_message_and_comes_when_it_is_back(vhost: Vhost) -> None:
    vhost.declare("gone", "good")
    with vhost.connection() as connection:
        for queue in ("gone", "good"):
            lead(connection, queue)
        vhost.delete_queue("gone")
        for _ in range(40):
            publish(connection, 0.3, "gone")
        for _ in range(40):
            publish(connection, 0.3, "good")
        assert len(take(connection, "good", 40)) == 40
        vhost.declare("gone")
        vhost.policy("again", {"delivery-limit": 1_000_000_000}, r"\.out\.")  # by itself within six minutes
        assert len(take(connection, "gone", 40)) == 40
    assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.parametrize("kind", ["direct", pytest.param("topic", marks=pytest.mark.more)])
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
        assert len(take(connection, "good", 40)) == 40
        gone(connection.default_channel).declare()
        vhost.policy("again", {"delivery-limit": 1_000_000_000}, r"^celery-rabbit-delay\.")
        assert len(take(connection, "gone", 40)) == 40  # by itself within six minutes


@pytest.mark.parametrize("limit", [None, 3])
def test_a_look_hides_nothing_from_the_next(vhost: Vhost, limit: int | None) -> None:
    vhost.declare("q", arguments={"x-queue-type": "quorum"})
    with vhost.connection() as one, vhost.connection() as another:
        for _ in range(5):
            one.Producer().publish("x", routing_key="q")
        wait_until(lambda: declare.message_count(one.default_channel, "q") == 5, "all are there")
        for _ in range(15):
            assert len(look(one, "q", limit)) == (limit or 5)
            assert declare.message_count(another.default_channel, "q") == 5


Q = Destination("", "q")

#: With these options 17.56 s are a level of 2.56 s and an outbox of 15 s, even if publishing takes long.
BY_ONE_LEVEL: dict[str, Any] = {"outboxes": (15,), "slack": 0.05}


def led_into_nothing(vhost: Vhost, connection: kombu.Connection, delay: float, amount: int, **headers: str) -> None:
    """Send messages through a level into an outbox of 15 s that is deleted before they come."""
    ensure(connection, Q, 1500)
    for _ in range(amount):
        publish(connection, delay, headers=headers)
    vhost.delete_queue(vhost.cascade.outbox_name(Q, 1500))
    wait_until(lambda: vhost.count(vhost.cascade.orphans) == amount, "they are orphans")


@pytest.mark.parametrize("declared", ["auto", pytest.param("passive", marks=pytest.mark.more)])
@pytest.mark.parametrize("by", ["the command", "a worker"])
def test_an_orphan_that_is_not_due_yet_is_replayed_for_the_rest_of_its_delay(
    vhost: Vhost, by: str, declared: str
) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0, **BY_ONE_LEVEL) as connection:
        sent = time.time()
        led_into_nothing(vhost, connection, 17.56, 5, id="x")
    with vhost.connection(declare=declared) as connection:
        [*listed] = operate.orphans(connection, 10)
        assert {one.due.timestamp() >= sent + 17.55 for one in listed if one.due} == {True}
        if by == "the command":
            results = [refused for _, refused in operate.replay(connection, 10, Allowed(None))]
        else:
            found = replay(connection.connection, vhost.cascade, Allowed([kombu.Queue("q")]), 10)
            results = [refused for _, refused in found]
        assert results == [None] * 5
        assert time.time() < sent + 17.56, "too late to say anything"
        assert (vhost.count(vhost.cascade.orphans), vhost.count("q")) == (0, 0)
        assert len(take(connection, "q", 5)) == 5
        assert time.time() >= sent + 17.56
        assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.leaves_orphans
def test_a_policy_that_delays_retries_hides_no_orphan_that_was_looked_at(vhost: Vhost) -> None:
    vhost.delay_retries()
    make_orphans(vhost, 2)
    with vhost.connection() as connection:
        assert [len(list(operate.orphans(connection, 10))) for _ in range(3)] == [2, 2, 2]


@pytest.mark.leaves_orphans
def test_orphans_tell_why_they_would_not_be_replayed_and_stay_as_they_are(vhost: Vhost) -> None:
    make_orphans(vhost, 2)
    with vhost.connection() as connection:
        plain = operate.orphans(connection, 10)
        assert [orphan.refused for orphan in plain] == [None, None]
        for allowed, says in (
            (Allowed([kombu.Queue("other")]), "queue 'gone' is not one of the allowed queues"),
            (Allowed(None), "there is no queue 'gone'"),
        ):
            told = operate.orphans(connection, 10, allowed)
            assert all(orphan.refused and orphan.refused.startswith(says) for orphan in told)
            assert [orphan._replace(refused=None) for orphan in told] == plain
        vhost.declare("gone")
        assert operate.orphans(connection, 10, Allowed(None)) == plain
    assert vhost.count(vhost.cascade.orphans) == 2
    assert vhost.count("gone") == 0


def test_a_replayed_orphan_that_waits_keeps_its_record(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0, **BY_ONE_LEVEL) as connection:
        led_into_nothing(vhost, connection, 17.56, 1, id="first")
        [before] = list(waiting_tasks.scheduled(connection))
        assert [refused for _, refused in operate.replay(connection, 10, Allowed(None))] == [None]
        [after] = list(waiting_tasks.scheduled(connection))
        assert after == before
        [message] = take(connection, "q", 1)
        assert message.headers["id"] == "first"

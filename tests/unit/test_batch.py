"""A batch keeps messages until they are stored, also after errors. No broker is contacted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kombu
import pytest
from amqp import Message
from amqp.exceptions import PreconditionFailed, RecoverableConnectionError

from celery_rabbit_delay import (
    BatchFailed,
    DestinationNotFound,
    InvalidDestination,
    NotPermitted,
    NotRouted,
    UnsupportedConfiguration,
)
from celery_rabbit_delay.amqp.batch import Batch, PublishBatch, batches_of, collect
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.plan import Plan


def pending(name: str, priority: int = 0, queue: str = "q") -> Plan:
    message = Message(name, correlation_id=name, priority=priority)
    return Plan(message, {"CC": []}, Destination("", (queue,)), 0, 0)


class Publisher:
    """Stores messages, all at once or one by one."""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.prepared: list[Destination] = []
        self.rounds = 0
        self.before_each: Callable[[str], None] = lambda name: None
        self.unreachable: dict[str, Exception] = {}

    def prepare(self, one: Plan) -> None:
        self.prepared.append(one.destination)
        if failure := self.unreachable.get(one.destination.queues[0]):
            raise failure

    def publish_all(self, messages: dict[Any, Plan]) -> None:
        self.rounds += 1
        for name, one in list(messages.items()):
            self.before_each(one.message.body)
            self.stored.append(one.message.body)
            del messages[name]

    def publish(self, one: Plan) -> None:
        self.before_each(one.message.body)
        self.stored.append(f"{one.message.body} alone")


class Connection:
    def __init__(self) -> None:
        self.publishers = {False: Publisher(), True: Publisher()}

    def publisher_for(self, priority: int) -> Publisher:
        return self.publishers[priority > 4]


@pytest.fixture
def connection() -> Connection:
    return Connection()


def test_a_flush_sends_everything_in_one_round_for_each_cascade(connection: Connection) -> None:
    batch = Batch()
    for name, priority, queue in (("a", 0, "q"), ("b", 9, "q"), ("c", 0, "r"), ("d", 0, "q")):
        batch.add(connection, pending(name, priority, queue))
    assert batch.ids == ["a", "b", "c", "d"]
    batch.flush(connection)
    assert batch.ids == []
    normal, high = connection.publishers[False], connection.publishers[True]
    assert (normal.stored, high.stored) == (["a", "c", "d"], ["b"])
    assert (normal.rounds, high.rounds) == (1, 1)
    assert normal.prepared == [Destination("", (name,)) for name in "qrq"], "each may want another outbox"
    batch.flush(connection)
    assert normal.rounds == 1


def test_a_full_batch_is_sent_before_it_takes_another_message(connection: Connection) -> None:
    batch = Batch(max_size=2)
    for name in "abc":
        batch.add(connection, pending(name))
    assert connection.publishers[False].stored == ["a", "b"]
    assert batch.ids == ["c"]


def test_an_error_leaves_what_is_not_stored_for_the_next_flush(connection: Connection) -> None:
    publisher = connection.publishers[False]

    def lose(name: str) -> None:
        if name == "b":
            raise RecoverableConnectionError("lost")

    batch = Batch()
    for name in "abc":
        batch.add(connection, pending(name))
    publisher.before_each = lose
    with pytest.raises(RecoverableConnectionError):
        batch.flush(connection)
    assert batch.ids == ["b", "c"]
    publisher.before_each = lambda name: None
    batch.flush(connection)
    assert publisher.stored == ["a", "b", "c"]


def test_what_the_broker_refuses_is_sent_again_alone_to_repair_the_cascade_or_learn_why(connection: Connection) -> None:
    publisher = connection.publishers[False]

    def refuse(name: str) -> None:
        if name == "b" and publisher.rounds < 2:
            publisher.rounds += 1
            raise NotRouted

    publisher.before_each = refuse
    batch = Batch()
    for name in "abc":
        batch.add(connection, pending(name))
    batch.flush(connection)
    assert publisher.stored == ["a", "b alone", "c alone"]
    assert batch.ids == []


@pytest.mark.parametrize("failure", [DestinationNotFound("gone"), NotPermitted("forbidden"), InvalidDestination("no")])
def test_a_destination_that_cannot_be_led_to_is_told_last_and_keeps_nothing_else_from_being_sent(
    connection: Connection, failure: Exception
) -> None:
    publisher = connection.publishers[False]
    publisher.unreachable["r"] = failure
    batch = Batch(max_size=2)
    for name in "abcdefg":
        batch.add(connection, pending(name, queue="r" if name in "abd" else "q"))
    assert publisher.stored == ["c", "e", "f"]
    with pytest.raises(type(failure)):
        batch.flush(connection)
    assert publisher.stored == ["c", "e", "f", "g"]
    assert batch.ids == ["a", "b", "d"]
    assert len(publisher.prepared) < 8, "it is not tried with each message"
    publisher.unreachable.clear()
    batch.flush(connection)
    assert publisher.stored[4:] == ["a", "b", "d"]


def test_a_message_that_the_broker_refuses_is_told_last_and_keeps_no_other_from_being_sent(
    connection: Connection,
) -> None:
    publisher = connection.publishers[False]

    def refuse(name: str) -> None:
        if name == "b":
            raise PreconditionFailed("the user_id is that of somebody else")

    publisher.before_each = refuse
    batch = Batch(max_size=3)
    for name in "abcdef":
        batch.add(connection, pending(name))
    assert publisher.stored == ["a", "c alone"]
    with pytest.raises(BatchFailed, match=r"1 delayed messages are not stored, .*user_id") as failed, batch.failing():
        batch.flush(connection)
    assert failed.value.ids == ["b"]
    assert publisher.stored == ["a", "c alone", "d alone", "e alone", "f alone"]


def test_a_lost_connection_is_an_error_after_which_the_batch_is_as_it_was() -> None:
    batch = Batch()
    batch.add(None, pending("a"))
    with pytest.raises(RecoverableConnectionError):
        batch.flush(None)
    with pytest.raises(BatchFailed, match="1 delayed messages are not stored") as failed, batch.failing():
        batch.flush(None)
    assert failed.value.ids == ["a"]
    assert isinstance(failed.value.__cause__, RecoverableConnectionError)


class Channel:
    """What a producer of Kombu publishes on, for a connection that is never opened."""

    def __init__(self, client: kombu.Connection, connection: Connection) -> None:
        self.connection: Any = connection
        connection.client = client  # type: ignore[attr-defined]

    def basic_publish(self, name: str) -> None:
        batches_of[self.connection.client][-1].add(self.connection, pending(name))


class Producer:
    def __init__(self, connection: Connection) -> None:
        self.connection = kombu.Connection("rabbit-delay://")
        self.channel = Channel(self.connection, connection)

    def publish(self, name: str) -> None:
        self.channel.basic_publish(name)


def test_an_inner_batch_sends_its_own_messages_and_does_not_end_the_outer_one(connection: Connection) -> None:
    producer: Any = Producer(connection)
    stored = connection.publishers[False].stored
    with collect(producer):
        producer.publish("outer 1")
        with collect(producer):
            producer.publish("inner")
            assert stored == []
        assert stored == ["inner"]
        producer.publish("outer 2")
        assert stored == ["inner"]
    assert stored == ["inner", "outer 1", "outer 2"]
    assert batches_of[producer.connection] == []


def test_an_inner_batch_that_fails_does_not_end_the_outer_one_either(connection: Connection) -> None:
    producer: Any = Producer(connection)

    def fail() -> None:
        with collect(producer):
            producer.publish("inner")
            producer.channel.connection = None

    with collect(producer):
        producer.publish("outer 1")
        with pytest.raises(BatchFailed) as failed:
            fail()
        assert failed.value.ids == ["inner"]
        producer.channel.connection = connection
        producer.publish("outer 2")
    assert connection.publishers[False].stored == ["outer 1", "outer 2"]


def test_a_connection_that_delays_nothing_has_no_batch() -> None:
    with pytest.raises(UnsupportedConfiguration, match="install"), collect(kombu.Connection("memory://").Producer()):
        pass


def test_kombus_batch_collects_only_what_is_published_through_it(connection: Connection) -> None:
    producer: Any = Producer(connection)
    batch = PublishBatch(producer.channel, max_size=10)
    batch.publish("a")
    assert batches_of[producer.connection] == []
    batch.flush()
    batch.publish("b")
    batch.discard()
    batch.publish("c")
    producer.channel.connection = None
    with pytest.raises(BatchFailed) as failed:
        batch.flush()
    assert failed.value.ids == ["c"]
    batch.close()
    assert connection.publishers[False].stored == ["a"]

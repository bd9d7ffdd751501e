"""A batch keeps messages until they are stored, also after errors. No broker is contacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message

from celery_rabbit_delay import BatchFailed, NotRouted
from celery_rabbit_delay.amqp.batch import Batch, batches_of, collect
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.plan import Plan


def pending(name: str) -> Plan:
    message = Message(name, correlation_id=name)
    return Plan(message, {"CC": []}, Destination("", ("q",)), 0, 0, number=int(name))


class Sender:
    """Takes messages, and answers when somebody waits: those that it refuses once, with the reason."""

    options = SimpleNamespace(confirm_timeout=1)
    has_records = False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refuses: dict[str, Exception] = {}
        self.asked: list[tuple[str, Callable[[Exception | None], None]]] = []
        self.writer = self

    @contextmanager
    def turn(self, seconds: float | None) -> Iterator[Sender]:
        yield self

    def publisher_for(self, priority: int | None) -> Sender:
        return self

    @property
    def unanswered(self) -> int:
        return len(self.asked)

    def submit(self, plan: Plan, answered: Callable[[Exception | None], None]) -> None:
        self.asked.append((plan.message.body, answered))

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            body, answered = self.asked.pop(0)
            refusal = self.refuses.pop(body, None)
            self.done += [] if refusal else [body]
            answered(refusal)

    def publish(self, plan: Plan) -> None:
        self.done.append(f"{plan.message.body} alone")


@pytest.fixture
def sender() -> Any:
    return Sender()


def batch_of(sender: Any, *plans: Plan, **options: Any) -> Batch:
    batch = Batch(**options)
    for plan in plans:
        batch.add(sender, plan)
    return batch


@pytest.mark.parametrize("most", [1, 5])
def test_an_answer_that_an_interrupt_has_swallowed_is_not_waited_for(sender: Any, most: int) -> None:
    batch = batch_of(sender, pending("1"), max_size=most)
    sender.asked.clear()
    batch.add(sender, pending("2"))
    batch.flush(sender)
    assert {name.removesuffix(" alone") for name in sender.done} == {"1", "2"}
    assert not batch.ids


def test_a_message_that_was_refused_at_first_is_sent_alone(sender: Any) -> None:
    sender.refuses = {"1": NotRouted("a level is gone")}
    batch = batch_of(sender, pending("1"), pending("2"), pending("3"))
    batch.flush(sender)
    assert sender.done == ["2", "3", "1 alone"]
    assert batch.ids == []


class Client:
    """A `kombu.Connection` that delays."""

    transport = SimpleNamespace(delay_options=None)


class Producer:
    """A producer, and its channel, which puts messages into the batch that is being collected."""

    def __init__(self, sender: Any) -> None:
        self.connection: Any = Client()
        self.channel: Any = SimpleNamespace(
            connection=SimpleNamespace(client=self.connection, sender=sender), basic_publish=self.publish
        )
        self._sender = sender

    def publish(self, name: str) -> None:
        batches_of[self.connection][-1].add(self._sender, pending(name))


def test_an_inner_batch_does_not_end_the_outer_one(sender: Any) -> None:
    producer: Any = Producer(sender)
    with collect(producer):
        producer.publish("1")
        with collect(producer):
            producer.publish("2")
        assert "2" in sender.done
        producer.publish("3")
    assert sorted(sender.done) == ["1", "2", "3"]
    assert batches_of[producer.connection] == []


def test_a_batch_whose_connection_is_gone_fails_with_its_ids(sender: Any) -> None:
    producer: Any = Producer(sender)

    def fail() -> None:
        with collect(producer):
            producer.publish("1")
            producer.channel.connection = None

    with pytest.raises(BatchFailed) as failed:
        fail()
    assert failed.value.ids == ["1"]


@pytest.mark.parametrize("size", [0, -3, 2.5, "a", True, None])
def test_a_size_is_a_whole_number_of_messages(size: Any) -> None:
    with pytest.raises(ValueError, match=r"max_size=.*: use a whole number, 1 or more"):
        Batch(size)

"""A publisher keeps a message with a key until its key is stored: otherwise the message would be dropped when due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import RecoverableConnectionError

from celery_rabbit_delay import NotRouted, Options, StreamUnavailable
from celery_rabbit_delay.amqp.batch import Batch
from celery_rabbit_delay.amqp.pending import Entry, PendingMessage
from celery_rabbit_delay.amqp.publisher import DelayedPublisher
from celery_rabbit_delay.core.destination import Destination

DESTINATION = Destination("", ("q",))


class Broker:
    """Stores messages, and is told keys; takes the place of a connection, of its publisher's channel and its journal.

    It refuses or loses what it is told to, once.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused: set[str] = set()
        self.lost_after: int | None = None
        self.failure: Exception | None = None
        self.publisher = DelayedPublisher(self, Options().cascade, Options())
        self.publisher._channel = self.publisher.journal = self  # type: ignore[assignment]
        self.publisher._bound.add(DESTINATION)

    @contextmanager
    def exclusively(self, *args: Any) -> Iterator[None]:
        yield

    def publisher_for(self, priority: int | None) -> DelayedPublisher:
        return self.publisher

    def prepare(self, messages: Any) -> None:
        pass

    def records(self, messages: Any) -> dict[Any, Any]:
        return {}

    def recording(self, records: Any) -> Any:
        return nullcontext()

    def store(self, records: Any) -> None:
        pass

    def publish_all(self, messages: dict[Any, Any], *args: Any) -> None:
        for name, outgoing in list(messages.items()):
            if self.lost_after == 0:
                self.lost_after = None
                raise RecoverableConnectionError("lost")
            body = outgoing.message.body
            if body in self.refused:
                self.refused.remove(body)
                continue
            if self.lost_after is not None:
                self.lost_after -= 1
            self.done.append(body)
            del messages[name]

    def refusal(self, exchange: str, key: str) -> str:
        return "NO_ROUTE"

    def reset(self) -> None:
        self.publisher._bound.add(DESTINATION)  # again at once

    def write_keys(self, messages: Any) -> None:
        entries = [one.entry for one in messages if one.key is not None]
        failure, self.failure = self.failure, None
        if failure is not None and entries:
            raise failure
        self.done += [f"{entry.key}: {entry.number}" for entry in entries]


def pending(number: int, key: str | None = None) -> PendingMessage:
    message = Message(str(number), correlation_id=str(number))
    return PendingMessage(message, {"CC": []}, 0, 0, DESTINATION, entry=Entry(number, 0, str(number), None, key))


def batch_of(broker: Broker, *messages: PendingMessage) -> Batch:
    batch = Batch()
    for message in messages:
        batch.add(broker, message)
    return batch


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_keys_are_told_once_all_messages_of_a_batch_are_stored(broker: Broker) -> None:
    batch = batch_of(broker, pending(1, "a"), pending(2), pending(3, "a"))
    batch.flush(broker)
    assert broker.done == ["1", "2", "3", "a: 1", "a: 3"]
    assert batch.ids == []


def test_messages_with_keys_are_sent_again_after_a_loss_in_the_middle_of_a_batch(broker: Broker) -> None:
    batch = batch_of(broker, pending(0, "a"), pending(1), pending(2, "b"), pending(3, "a"))
    broker.lost_after = 3
    with pytest.raises(RecoverableConnectionError):
        batch.flush(broker)
    assert broker.done == ["0", "1", "2"]
    assert batch.ids == ["0", "2", "3"]
    batch.flush(broker)
    assert broker.done[3:] == ["0", "2", "3", "a: 0", "b: 2", "a: 3"]
    assert batch.ids == []


def test_messages_whose_keys_cannot_be_told_are_sent_again_by_the_next_flush(broker: Broker) -> None:
    batch = batch_of(broker, pending(1, "a"), pending(2))
    broker.failure = RecoverableConnectionError("lost")
    with pytest.raises(RecoverableConnectionError):
        batch.flush(broker)
    assert batch.ids == ["1"]
    batch.flush(broker)
    assert broker.done == ["1", "2", "1", "a: 1"]


def test_messages_whose_keys_a_stream_does_not_take_are_sent_again_alone(broker: Broker) -> None:
    batch = batch_of(broker, pending(1, "a"), pending(2), pending(3, "b"))
    broker.failure = StreamUnavailable("it has no leader")
    batch.flush(broker)
    assert broker.done == ["1", "2", "3", "1", "a: 1", "3", "b: 3"]
    assert batch.ids == []


def test_a_batch_fails_with_the_messages_whose_keys_no_stream_takes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(broker, pending(1, "a"), pending(2), pending(3, "b"))

    def fail(messages: Any) -> None:
        raise StreamUnavailable("it has no leader")

    monkeypatch.setattr(broker, "write_keys", fail)
    with pytest.raises(StreamUnavailable):
        batch.flush(broker)
    assert batch.ids == ["1", "3"]


def test_a_message_that_was_refused_at_first_does_not_replace_a_later_one_of_its_key(broker: Broker) -> None:
    batch = batch_of(broker, pending(1, "a"), pending(2, "a"), pending(3, "b"))
    broker.refused = {"1"}
    batch.flush(broker)
    assert broker.done == ["2", "3", "b: 3", "1", "a: 1", "2", "a: 2"]
    assert batch.ids == []


def test_the_key_of_a_message_that_is_not_stored_is_not_told(broker: Broker) -> None:
    broker.refused = {"1"}
    broker.publisher.options = Options(declare="passive")
    with pytest.raises(NotRouted):
        broker.publisher.publish(pending(1, "a"))
    assert broker.done == []
    broker.publisher.publish(pending(2, "a"))
    assert broker.done == ["2", "a: 2"]

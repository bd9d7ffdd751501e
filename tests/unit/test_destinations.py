"""The destinations of messages for a `kombu.Queue`."""

from __future__ import annotations

import kombu
import pytest
from kombu.common import Broadcast

from celery_rabbit_delay import InvalidDestination
from celery_rabbit_delay.delay.amqp.queue_destinations import destinations_of
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.operate.queue_names import QueueNames

ORDERS = kombu.Exchange("orders", "topic")


def test_a_queue_has_a_destination_of_its_own_and_those_of_its_exchange() -> None:
    assert list(destinations_of(kombu.Queue("q"))) == [Destination("", "q")]
    assert list(destinations_of(kombu.Queue("q", ORDERS, routing_key="new"), with_namesake=False)) == [
        Destination("", "q"),
        Destination("orders"),
        Destination("orders", "new"),
    ]


def test_all_bindings_of_a_queue_count() -> None:
    news = kombu.Exchange("news", "fanout")
    both = [kombu.binding(ORDERS, "new"), kombu.binding(ORDERS, "old"), kombu.binding(news)]
    assert sorted(destinations_of(kombu.Queue("q", bindings=both)), key=str) == [
        Destination("news"),
        Destination("orders"),
        Destination("orders", "new"),
        Destination("orders", "old"),
        Destination("", "q"),
    ]


@pytest.mark.parametrize("queue", [Broadcast("news"), kombu.Queue("amq.gen-1", kombu.Exchange("news"), "new")])
def test_only_the_exchange_of_a_queue_that_does_not_last_is_a_destination(queue: kombu.Queue) -> None:
    assert list(destinations_of(queue)) == [Destination("news")]


def test_names_know_what_goes_to_their_queues() -> None:
    queues = [
        kombu.Queue("q"),
        kombu.Queue("new", ORDERS, routing_key="new.#"),
        kombu.Queue("hot", kombu.Exchange("labels", "headers"), binding_arguments={"hot": True}),
        kombu.Queue("hashed", kombu.Exchange("hash", "x-consistent-hash"), routing_key="1"),
        Broadcast("news"),
    ]
    names = QueueNames(queues, only=True)
    for exchange, key, expected in (
        ("", "q", True),
        ("", "other", False),
        ("orders", "new.fast", True),
        ("orders", "old", False),
        ("orders", "q", False),  # only the default exchange routes by the name of a queue
        ("others", "q", False),
        ("labels", "any", True),
        ("hash", "any", True),
        ("news", "", True),
    ):
        assert names.leads_to_one(exchange, key) is expected, (exchange, key)
        assert QueueNames(queues).leads_to_one(exchange, key)
    names.check("q")
    names.check(None)
    QueueNames(queues).check("other")
    with pytest.raises(InvalidDestination, match="'other' is not a queue of this app"):
        names.check("other")

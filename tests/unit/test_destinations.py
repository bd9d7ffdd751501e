"""The destinations of messages for a `kombu.Queue`."""

from __future__ import annotations

import kombu
import pytest
from kombu.common import Broadcast

from celery_rabbit_delay import InvalidDestination
from celery_rabbit_delay.amqp.destinations import QueueNames, destinations_of, own_destination
from celery_rabbit_delay.core.destination import Destination

ORDERS = kombu.Exchange("orders", "topic")


def test_a_queue_has_a_destination_of_its_own_and_those_of_its_exchange() -> None:
    assert list(destinations_of(kombu.Queue("q"))) == [Destination("", ("q",))]
    assert list(destinations_of(kombu.Queue("q", ORDERS, routing_key="new"))) == [
        Destination("", ("q",)),
        Destination("orders"),
        Destination("orders", key="new"),
    ]
    reply = kombu.Queue("reply", ORDERS, routing_key="reply", auto_delete=True)
    assert list(destinations_of(reply)) == [Destination("", ("reply",), short_lived=True), Destination("orders")]


def test_all_bindings_of_a_queue_count() -> None:
    news = kombu.Exchange("news", "fanout")
    both = [kombu.binding(ORDERS, "new"), kombu.binding(ORDERS, "old"), kombu.binding(news)]
    assert sorted(destinations_of(kombu.Queue("q", bindings=both)), key=str) == [
        Destination("news", fanout=True),
        Destination("orders"),
        Destination("orders", key="new"),
        Destination("orders", key="old"),
        Destination("", ("q",)),
    ]


def test_only_the_exchange_of_a_queue_that_others_cannot_bind_is_a_destination() -> None:
    """Celery declares no `Broadcast` before it publishes, so that only workers know that its exchange is a fanout."""
    broadcast = Broadcast("news")
    assert list(destinations_of(broadcast)) == [Destination("news", fanout=True)]
    assert own_destination(broadcast) is None
    exclusive = kombu.Queue("q", ORDERS, routing_key="new", exclusive=True)
    assert list(destinations_of(exclusive)) == [Destination("orders")]
    assert own_destination(exclusive) is None
    assert own_destination(kombu.Queue("q")) == Destination("", ("q",))


def test_names_know_what_goes_to_their_queues() -> None:
    queues = [
        kombu.Queue("q"),
        kombu.Queue("new", ORDERS, routing_key="new.#"),
        kombu.Queue("hot", kombu.Exchange("labels", "headers"), binding_arguments={"hot": True}),
        kombu.Queue("hashed", kombu.Exchange("hash", "x-consistent-hash"), routing_key="1"),
        Broadcast("news"),
    ]
    names = QueueNames(queues, only=True)
    for exchange, keys, expected in (
        ("", ["q"], True),
        ("", ["other"], False),
        ("", ["other", "new"], True),  # a CC
        ("orders", ["new.fast"], True),
        ("orders", ["old"], False),
        ("orders", ["q"], False),  # only the default exchange routes by the name of a queue
        ("others", ["q"], False),
        ("labels", ["any"], True),
        ("hash", ["any"], True),
        ("news", [""], True),
    ):
        assert names.leads_to_one(exchange, keys) is expected, (exchange, keys)
        assert QueueNames(queues).leads_to_one(exchange, keys)
    names.check("q")
    names.check(None)
    QueueNames(queues).check("other")
    with pytest.raises(InvalidDestination, match="'other' is not a queue of this app"):
        names.check("other")

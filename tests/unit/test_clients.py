"""The state of a Kombu connection lives as long as the connection."""

from __future__ import annotations

import gc
import weakref

import kombu

from celery_rabbit_delay.amqp.batch import Batch
from celery_rabbit_delay.amqp.clients import client_of


def test_what_is_known_of_a_connection_is_remembered_and_its_own() -> None:
    one, other = kombu.Connection("rabbit-delay://a//"), kombu.Connection("rabbit-delay://a//")
    assert client_of(one) is client_of(one)
    assert client_of(one) is not client_of(other)
    assert client_of(one).batches == []
    assert not client_of(one).uses_quorum_queues()
    client_of(one).uses_quorum_queues = lambda: True
    assert client_of(one).uses_quorum_queues()
    assert not client_of(other).uses_quorum_queues()
    assert not client_of(one.clone()).uses_quorum_queues()


def test_the_state_of_a_connection_goes_with_the_connection() -> None:
    connection = kombu.Connection("rabbit-delay://a//")
    gone = weakref.ref(client_of(connection))
    assert gone() is not None
    del connection
    gc.collect()
    assert gone() is None


def test_the_innermost_batch_collects_and_its_end_leaves_the_outer_one() -> None:
    connection = kombu.Connection("rabbit-delay://a//")
    outer, inner = Batch(), Batch()
    with outer.collecting(connection):
        assert client_of(connection).batches == [outer]
        with inner.collecting(connection):
            assert client_of(connection).batches == [outer, inner]
        assert client_of(connection).batches == [outer]
    assert client_of(connection).batches == []

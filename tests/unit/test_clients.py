"""The state of a Kombu connection lives as long as the connection."""

from __future__ import annotations

import gc
import weakref

import kombu

from celery_rabbit_delay.amqp.clients import PerClient
from celery_rabbit_delay.amqp.transport import uses_quorum_queues


def test_what_is_known_of_a_connection_is_remembered_and_its_own() -> None:
    one, other = kombu.Connection("rabbit-delay://a//"), kombu.Connection("rabbit-delay://a//")
    lists: PerClient[list[int]] = PerClient(list)
    assert lists[one] is lists[one]
    assert lists[one] is not lists[other]
    assert not uses_quorum_queues[one]()
    uses_quorum_queues[one] = lambda: True
    assert uses_quorum_queues[one]()
    assert not uses_quorum_queues[other]()
    assert not uses_quorum_queues[one.clone()]()


def test_the_state_of_a_connection_goes_with_the_connection() -> None:
    connection = kombu.Connection("rabbit-delay://a//")
    sets: PerClient[set[int]] = PerClient(set)
    gone = weakref.ref(sets[connection])
    assert gone() is not None
    del connection
    gc.collect()
    assert gone() is None

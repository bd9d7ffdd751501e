"""Deliveries that come in while a connection waits are handed on afterwards, in order, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from celery_rabbit_delay.amqp.deliveries import DeferredDeliveries, Delivery


class Oops(Exception):
    pass


def delivery(number: int) -> Delivery:
    return number, None, None, None


@pytest.fixture
def got() -> list[int]:
    return []


@pytest.fixture
def deliveries(got: list[int]) -> DeferredDeliveries:
    return DeferredDeliveries(lambda one: got.append(one[0]))


def test_a_delivery_is_not_taken_while_none_is_held(deliveries: DeferredDeliveries, got: list[int]) -> None:
    assert not deliveries.offer(delivery(1))
    assert not deliveries.flush()
    assert got == []


def test_held_deliveries_are_handed_on_in_order_when_the_block_ends(
    deliveries: DeferredDeliveries, got: list[int]
) -> None:
    with deliveries.hold():
        assert all(deliveries.offer(delivery(number)) for number in range(3))
        assert not deliveries.flush()
        assert got == []
    assert got == [0, 1, 2]
    assert not deliveries.offer(delivery(3))


def test_only_the_outermost_block_lets_go(deliveries: DeferredDeliveries, got: list[int]) -> None:
    with deliveries.hold():
        with deliveries.hold():
            deliveries.offer(delivery(1))
        assert got == []
        assert deliveries.offer(delivery(2))
    assert got == [1, 2]


def test_a_block_that_raises_lets_go_too(deliveries: DeferredDeliveries, got: list[int]) -> None:
    def fail() -> None:
        with deliveries.hold():
            deliveries.offer(delivery(1))
            raise Oops

    with pytest.raises(Oops):
        fail()
    assert got == [1]


def test_a_consumer_that_waits_itself_is_not_called_again_meanwhile() -> None:
    """What comes in while it waits is handed on when it has returned."""
    log: list[Any] = []

    def consume(one: Delivery) -> None:
        log.append(("begin", one[0]))
        with waiting.hold():
            if one[0] == 0:
                waiting.offer(delivery(2))
        assert not waiting.flush()
        log.append(("end", one[0]))

    waiting = DeferredDeliveries(consume)
    with waiting.hold():
        waiting.offer(delivery(0))
        waiting.offer(delivery(1))
    assert log == [(what, number) for number in (0, 1, 2) for what in ("begin", "end")]


def test_a_consumer_that_raises_leaves_the_others_for_the_next_flush() -> None:
    got: list[int] = []

    def consume(one: Delivery) -> None:
        got.append(one[0])
        if one[0] == 1:
            raise Oops

    waiting = DeferredDeliveries(consume)

    def hold() -> None:
        with waiting.hold():
            for number in range(4):
                waiting.offer(delivery(number))

    with pytest.raises(Oops):
        hold()
    assert got == [0, 1]
    assert waiting.flush()
    assert got == [0, 1, 2, 3]
    assert not waiting.flush()

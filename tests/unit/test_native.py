from __future__ import annotations

import pytest

from celery_rabbit_delay.core import native

delayed_delivery = pytest.importorskip("kombu.transport.native_delayed_delivery", reason="it came with Kombu 5.5")


def test_names_are_those_of_kombu() -> None:
    names = [exchange.name for exchange, _ in native.levels("quorum")]
    assert names == [delayed_delivery.level_name(level) for level in range(27, -1, -1)]
    assert native.DELIVERY.name == delayed_delivery.CELERY_DELAYED_DELIVERY_EXCHANGE


def test_each_level_holds_a_power_of_two_seconds_and_hands_on_to_the_next() -> None:
    for kind in ("quorum", "classic"):
        queues = [queue for _, queue in native.levels(kind)]
        assert [queue.arguments["x-message-ttl"] for queue in queues] == [
            2**level * 1000 for level in range(27, -1, -1)
        ]
        onward = [queue.arguments["x-dead-letter-exchange"] for queue in queues]
        assert onward == [*(queue.name for queue in queues[1:]), native.DELIVERY.name]
        assert all(("x-dead-letter-strategy" in queue.arguments) is (kind == "quorum") for queue in queues)

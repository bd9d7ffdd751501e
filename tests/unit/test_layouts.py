"""The names of earlier layouts, as the releases that declared them wrote them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from celery_rabbit_delay.core.layouts import Layout1
from celery_rabbit_delay.core.topology import Cascade

CASCADE = Cascade("shop", timedelta(milliseconds=125), powers=2)


def test_layout_1_is_what_0_1_0_declared() -> None:
    earlier = Layout1(CASCADE)
    assert list(earlier.exchange_names()) == [
        "shop.ingest",
        "shop.delay.125.done",
        "shop.delay.250.done",
        "shop.orphans",
        "shop.guard",
        "shop.done",
        "shop.ingest.125ms.1.quorum",  # of apps with a smaller max_delay
        "shop.ingest.125ms.2.quorum",
    ]
    assert list(earlier.queue_names()) == ["shop.delay.125", "shop.delay.250", "shop.orphans", "shop.void"]
    assert [(level.ticks, level.queue, level.done) for level in earlier.levels] == [
        (1, "shop.delay.125", "shop.delay.125.done"),
        (2, "shop.delay.250", "shop.delay.250.done"),
    ]


def test_high_priorities_of_layout_1_have_levels_of_their_own_and_share_the_rest() -> None:
    high = Layout1(replace(CASCADE, high=True, queue_type="classic"))
    assert list(high.exchange_names()) == [
        "shop.high.ingest",
        "shop.high.delay.125.done",
        "shop.high.delay.250.done",
        "shop.orphans",
        "shop.guard",
        "shop.done",
        "shop.high.ingest.125ms.1.classic",
        "shop.high.ingest.125ms.2.classic",
    ]
    assert list(high.queue_names()) == ["shop.high.delay.125", "shop.high.delay.250", "shop.orphans", "shop.void"]


def test_no_layout_uses_a_name_of_another() -> None:
    earlier, now = Layout1(CASCADE), CASCADE
    assert not {*earlier.exchange_names()} & {exchange.name for exchange in now.exchanges()}
    assert not {*earlier.queue_names()} & {queue.name for queue in now.queues()}

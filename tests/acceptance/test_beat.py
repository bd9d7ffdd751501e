"""`celery beat -S rabbit-delay`: of many processes one is active, and the next one goes on where it has stopped."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from testkit.beats import Beat, Sent, entry
from testkit.wait import wait_until

from .conftest import MakeShop, Shop

TASK = "tests.acceptance.shop.note"

StartBeat = Callable[..., Beat]


def every_second(name: str = "run") -> dict[str, Any]:
    return {name: entry(TASK, 1, name)}


@pytest.fixture
def start_beat() -> Iterator[StartBeat]:
    beats: list[Beat] = []

    def start(shop: Shop, *arguments: str, **conf: Any) -> Beat:
        beats.append(Beat("tests.acceptance.shop", shop.directory, shop.environment, *arguments))
        return beats[-1]

    yield start
    for beat in beats:
        beat.kill()


def amount(shop: Shop) -> int:
    return shop.vhost.count("celery") if "celery" in shop.vhost.names("queues") else 0


def wait_for_more(shop: Shop, more: int) -> None:
    before = amount(shop)
    wait_until(lambda: amount(shop) >= before + more, f"{more} more runs")


def take_sent(shop: Shop) -> list[Sent]:
    """Return what was sent until now, in the order of the queue."""
    return [Sent.of(message) for message in shop.vhost.take("celery", amount(shop))]


def assert_every_second(sent: list[Sent], doubles: int = 0, late: float = 0) -> None:
    """Assert that no run is left out, none is double or so many are, and none later than so many seconds."""
    counts = Counter(one.id for one in sent)
    assert sum(counts.values()) - len(counts) <= doubles
    for one, after in itertools.pairwise(sent):
        assert after.at - one.at < timedelta(seconds=1.5 + late)
        assert one.id == after.id or after.at - one.at > timedelta(seconds=0.9)


@pytest.mark.parametrize("options", [None, {}], ids=["without install", "with install"])
def test_when_the_active_one_is_killed_another_goes_on_within_two_seconds(
    make_shop: MakeShop, start_beat: StartBeat, options: Any
) -> None:
    shop = make_shop(options, beat_schedule=every_second())
    active = start_beat(shop).wait_until_active()
    others = [start_beat(shop), start_beat(shop)]
    wait_for_more(shop, 3)
    active.kill()
    wait_until(lambda: sum(beat.activations for beat in others), "another one is active")
    wait_for_more(shop, 3)
    sent = take_sent(shop)
    assert len({one.process for one in sent}) == 2
    assert_every_second(sent, doubles=1, late=1)

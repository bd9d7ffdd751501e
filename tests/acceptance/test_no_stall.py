"""Immediate tasks do not wait behind delayed ones in a worker with default settings."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import kombu
import pytest

from tests.kit.abilities import Ability
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop

DELAYED = 200
HELD = 8  # four for each of two processes
ENOUGH = 5  # seconds for an immediate task: milliseconds, in truth


def send_all(shop: Shop, countdown: float) -> dict[str, float]:
    """Send 200 delayed tasks, start a default worker, send ten immediate tasks; return when each of these was sent."""
    for _ in range(DELAYED):
        shop.send("note", "delayed", countdown=countdown)
    shop.worker("-c", "2")
    sent = {}
    for n in range(10):
        sent[f"immediate {n}"] = time.time()
        shop.send("note", f"immediate {n}")
    return sent


@pytest.mark.long
@pytest.mark.parametrize("conf", [{}, {"queues": "quorum"}], ids=["classic", "quorum"])
def test_two_hundred_delayed_tasks_do_not_hold_up_immediate_ones(make_shop: MakeShop, conf: dict[str, Any]) -> None:
    shop = make_shop({}, **conf)
    sent = send_all(shop, countdown=80)  # more than a worker needs to start on a busy machine
    for name, at in sent.items():
        [run] = shop.wait_for(1, name)
        assert run["at"] - at < 4 * ENOUGH  # without us it takes until the others are due
    assert not shop.runs("delayed")
    for run in shop.wait_for(DELAYED, "delayed", timeout=150):
        assert run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()


def test_without_the_package_a_worker_stalls_on_rabbitmq_4_or_holds_all_tasks(make_shop: MakeShop) -> None:
    """Celery raises its prefetch count for each task that it holds. A limit of one consumer does not rise with it."""
    shop = make_shop(None)
    sent = send_all(shop, countdown=3600)
    broker, has_new_kombu = shop.vhost.broker, kombu.VERSION >= (5, 7)
    limited = broker.has(Ability.KOMBU_LIMITS_CONSUMERS) and has_new_kombu
    if limited or broker.has(Ability.LIMITS_ONLY_CONSUMERS):
        wait_until(lambda: shop.vhost.count("celery") == DELAYED + len(sent) - HELD, "the worker holds eight tasks")
        time.sleep(ENOUGH)
        assert [shop.runs(name) for name in sent] == [[]] * len(sent)
        assert shop.vhost.count("celery") == DELAYED + len(sent) - HELD
    else:
        for name in sent:
            shop.wait_for(1, name)
        wait_until(lambda: shop.vhost.count("celery") == 0, "all 200 wait in the worker")
    assert not shop.runs("delayed")

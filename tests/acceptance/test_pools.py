"""All pools, and all ways of starting and stopping workers."""

from __future__ import annotations

import os
import signal
from typing import Any

import celery
import pytest

from tests.kit.broker import QUICK
from tests.kit.wait import wait_until

from .conftest import MakeShop, assert_nothing_went_wrong

pytestmark = pytest.mark.shared_vhost


@pytest.mark.parametrize(
    "conf", [{}, pytest.param({"queues": "quorum"}, marks=pytest.mark.more)], ids=["classic", "quorum"]
)
@pytest.mark.parametrize(
    "arguments",
    [
        "-P prefork -c 2",
        "-P threads",
        "-P solo",
        "-P gevent",
        pytest.param("-P eventlet", marks=pytest.mark.more),
        "--autoscale=4,1 --prefetch-multiplier=1",
    ],
)
def test_delayed_tasks_and_retries_run(make_shop: MakeShop, arguments: str, conf: dict[str, Any]) -> None:
    shop = make_shop(**conf)
    for _ in range(20):
        shop.send("note", "delayed", countdown=0.5)
    worker = shop.worker(*arguments.split())
    for name in ("one", "two", "three"):
        shop.send("stubborn", 5, 0.05, name)
    shop.wait_for(20 + 3 * 6)
    assert len(shop.runs("delayed")) == 20
    assert "Traceback" not in worker.output()
    assert_nothing_went_wrong(shop)


def test_a_delayed_task_whose_worker_is_killed_runs_again(make_shop: MakeShop) -> None:
    shop = make_shop(queues="quorum")
    worker = shop.worker()
    shop.send("sleeps_once", countdown=0.3)
    shop.wait_for(1, "sleeps once")
    os.killpg(worker.process.pid, signal.SIGKILL)
    shop.worker(name="two")
    first, again = shop.wait_for(2, "sleeps once")
    assert again["delivery_info"] == first["delivery_info"] | {"redelivered": True}


def test_a_warm_shutdown_leaves_what_is_still_to_come_in_the_broker(make_shop: MakeShop) -> None:
    shop = make_shop()
    worker = shop.worker()
    for _ in range(10):
        shop.send("note", "delayed", countdown=15)
    assert worker.stop() == 0
    assert not shop.runs()
    shop.worker(name="two")
    assert not [run for run in shop.wait_for(10, "delayed") if run["delivery_info"]["redelivered"]]


@pytest.mark.skipif(celery.VERSION < (5, 5), reason="soft shutdown came with Celery 5.5")
def test_a_soft_shutdown_gives_a_delayed_task_back(make_shop: MakeShop) -> None:
    shop = make_shop(worker_soft_shutdown_timeout=1.0)
    worker = shop.worker()
    shop.send("sleeps_once", countdown=0.3)
    shop.wait_for(1, "sleeps once")
    # Before the worker knows, Celery finds nothing to give back, and waits for the ten minutes.
    inspect = shop.app.control.inspect(timeout=5, limit=1)
    wait_until(lambda: any((inspect.active() or {}).values()), "the worker knows that the task runs")
    os.kill(worker.process.pid, signal.SIGQUIT)
    wait_until(lambda: worker.process.poll() is not None, "the worker has stopped")
    assert "Initiating Soft Shutdown" in worker.output()
    shop.worker(name="two")
    shop.wait_for(2, "sleeps once")


@pytest.mark.own_vhost
def test_two_apps_with_different_prefixes_and_two_with_the_same_share_a_queue(make_shop: MakeShop) -> None:
    shops = [make_shop(QUICK | {"prefix": prefix}) for prefix in ("a", "b", "b")]
    shops[0].worker(name="one")
    for shop in shops:
        shop.send("stubborn", 3, 0.1)
        shop.send("note", "delayed", countdown=0.3)
    shop = shops[0]  # they have one ledger
    shop.wait_for(3 * (4 + 1))
    shops[2].worker(name="two")
    for name in range(20):
        shops[name % 3].send("note", name, countdown=0.3)
    shop.wait_for(3 * (4 + 1) + 20)
    assert {run["name"] for run in shop.runs()} == {"stubborn", "delayed", *range(20)}
    assert {name.split(".")[0] for name in shop.vhost.names("queues")} & {"a", "b", "celery-rabbit-delay"} == {"a", "b"}

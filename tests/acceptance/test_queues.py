"""Delayed tasks and retries arrive once in every kind of task queue, and do not block others."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from tests.kit.wait import wait_until

from .conftest import MakeShop, assert_nothing_went_wrong
from .queues import KINDS, NAMES

pytestmark = pytest.mark.shared_vhost


@pytest.mark.parametrize(
    "kind", ["made when missing", "each classic", "each quorum", "quorum by default, topic exchange"]
)
def test_tasks_and_retries_stay_on_their_queue(
    make_shop: MakeShop, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = make_shop(queues=kind)
    queues = [queue.name for queue in KINDS[kind].get("task_queues", ())] or NAMES
    with caplog.at_level(logging.WARNING):
        for queue in queues:
            shop.send("note", f"before the worker, {queue}", countdown=0.5, queue=queue)
        worker = shop.worker("-Q", ",".join(queues))
        for queue in queues:
            shop.send("note", f"immediate, {queue}", queue=queue)
            shop.send("note", f"delayed, {queue}", countdown=0.3, queue=queue)
            shop.send("stubborn", 3, 0.1, queue, queue=queue)
    shop.wait_for(len(queues) * (3 + 4))
    for run in shop.runs():
        assert run["name"].endswith(run["delivery_info"]["routing_key"])
    assert caplog.records == []
    assert_nothing_went_wrong(shop, worker)


def test_a_broadcast_task_runs_once_on_each_worker_and_waits_where_there_is_none(
    make_shop: MakeShop,
) -> None:
    """Celery declares no `Broadcast` before it publishes: only a worker that was up before knows what it is."""
    shop = make_shop(queues="broadcast")
    workers = [shop.worker("-Q", "celery,news", name=name) for name in ("one", "two")]
    before = shop.vhost.bindings()
    for n in range(5):
        shop.send("note", "news", countdown=0.3, queue="news")
        shop.send("note", f"ordinary {n}", countdown=0.3)
    shop.wait_for(5 * (2 + 1))
    assert {run["hostname"] for run in shop.runs("news")} == {"one@localhost", "two@localhost"}
    assert_nothing_went_wrong(shop, *workers)
    assert not [target for _, target, *_ in shop.vhost.bindings() - before if target.startswith("bcast")]
    for worker in workers:
        worker.stop()
    for _ in range(10):
        shop.send("note", "nobody", countdown=0.3, queue="news")
    shop.send("note", "ordinary", countdown=0.5)
    wait_until(lambda: shop.vhost.count("celery") == 1, "they are due")
    worker = shop.worker("-Q", "celery,news", name="three")
    shop.send("note", "more news", countdown=0.3, queue="news")
    shop.wait_for(1, "more news")
    shop.wait_for(1, "ordinary")
    assert_nothing_went_wrong(shop, worker)


def test_an_exclusive_queue_is_reached_through_its_exchange(make_shop: MakeShop) -> None:
    shop = make_shop(queues="exclusive")
    worker = shop.worker("-Q", "own")
    shop.send("note", "own", exchange="own", routing_key="own")
    shop.send("note", "own", countdown=0.3, exchange="own", routing_key="own")
    shop.send("stubborn", 3, 0.1, exchange="own", routing_key="own")
    shop.wait_for(2 + 4)
    assert_nothing_went_wrong(shop, worker)


def test_an_auto_delete_queue_that_comes_back_receives_what_waits_for_it(make_shop: MakeShop) -> None:
    shop = make_shop(queues="auto-delete")
    worker = shop.worker(name="one")
    shop.send("note", "patient", countdown=15)
    os.kill(worker.process.pid, signal.SIGTERM)
    wait_until(lambda: "celery" not in shop.vhost.names("queues"), "the queue is gone")
    again = shop.worker(name="two")
    shop.wait_for(1, "patient")
    assert_nothing_went_wrong(shop, worker, again)


def test_priorities_order_the_queue_of_a_worker(make_shop: MakeShop) -> None:
    """Celery's worker runs tasks that have an eta, even a past one, in the order of their etas."""
    shop = make_shop(queues="priority")
    order = [0, 9, 4, 5, 2, 7]
    for priority in order:
        shop.send("note", priority, countdown=0.1, priority=priority)
    wait_until(lambda: shop.vhost.count("celery") == len(order), "all are in the queue")
    shop.worker("-c", "1")
    assert [run["name"] for run in shop.wait_for(len(order))] == sorted(order, reverse=True)

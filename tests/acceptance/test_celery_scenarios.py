"""Scenarios of Celery's smoke tests, with delayed tasks."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from tests.kit.broker import QUICK, own_node
from tests.kit.node import dead_letters_again
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, signature

pytestmark = pytest.mark.shared_vhost


def test_a_chain_passes_results_with_a_queue_for_the_whole_and_a_chord_is_unlocked_from_another(
    make_shop: MakeShop, tmp_path: Path
) -> None:
    """Where the queue of the whole leads each link is Celery's affair: it must be the same without countdowns."""
    shop = make_shop(result_backend=f"file://{tmp_path}", task_routes={"celery.chord_unlock": {"queue": "unlock"}})
    shop.worker("-Q", "celery,mail,unlock")
    went: list[list[str]] = []
    for name, countdown in (("undelayed", {}), ("delayed", {"countdown": 0.5})):
        links = [shop.app.signature("tests.acceptance.shop.note", args, **countdown) for args in ((name,), (), ())]
        assert chain(*links).apply_async(queue="mail").get(timeout=60) == name
        runs = shop.wait_for(3, name)
        went.append([run["delivery_info"]["routing_key"] for run in runs])
        for run in runs:
            assert not run["eta"] or run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()
    assert went[0] == went[1]
    parts = [signature(shop, "note", name, countdown=0.5) for name in "ab"]
    chord(parts, signature(shop, "join", countdown=0.5)).apply_async()
    shop.wait_for(1, "a+b")


def test_a_router_may_name_an_exchange_and_a_routing_key_without_a_queue(make_shop: MakeShop) -> None:
    shop = make_shop(queues="classic, topic exchange", task_routes=["tests.acceptance.queues.to_mail"])
    shop.worker("-Q", "celery,mail")
    shop.send("note", "routed", countdown=0.5)
    shop.send("stubborn", 2, 0.2, "routed by default", countdown=0.5)
    [run] = shop.wait_for(1, "routed")
    assert (run["delivery_info"]["exchange"], run["delivery_info"]["routing_key"]) == ("shop", "mail")
    assert {run["delivery_info"]["routing_key"] for run in shop.wait_for(3, "routed by default")} == {"celery"}


@pytest.mark.long
def test_the_broker_restarts_while_late_acknowledged_tasks_run(tmp_path: Path) -> None:
    # Or else Celery 5.4, also without us, gives the task that is delivered again to the process that still runs it.
    conf = {"queues": "quorum", "worker_cancel_long_running_tasks_on_connection_loss": True}
    with own_node(advanced=dead_letters_again(5)) as vhost, closing(Shop(vhost, tmp_path, QUICK, conf)) as shop:
        shop.worker("-c", "2")
        shop.send("sleeps_once", countdown=0.3)
        shop.send("note", "waits", countdown=15)
        shop.wait_for(1, "sleeps once")
        # RabbitMQ may forget what was created last: docs/operations.md, Restarts.
        node = vhost.broker.node
        queues = vhost.levels_and_outboxes()
        wait_until(lambda: all(map(node.has_registered, queues)), "the node has written down what it has")
        node.kill()
        node.start()
        first, again = shop.wait_for(2, "sleeps once", timeout=120)
        assert again["delivery_info"] == first["delivery_info"] | {"redelivered": True}
        shop.wait_for(1, "waits", timeout=120)


@pytest.mark.long
def test_a_task_revoked_before_the_worker_restarts_does_not_run_with_a_state_database(make_shop: MakeShop) -> None:
    shop = make_shop()
    arguments = ("--statedb", str(shop.directory / "state"))
    worker = shop.worker(*arguments)
    task_id = shop.send("note", "revoked", countdown=25)
    shop.send("note", "not revoked", countdown=25)
    assert shop.app.control.revoke(task_id, reply=True, timeout=60, limit=1)
    assert worker.stop() == 0
    again = shop.worker(*arguments, name="again")  # with a log of its own, which says when it is ready
    shop.wait_for(1, "not revoked")
    wait_until(lambda: "Discarding revoked task" in again.output(), "the worker discards it")
    assert not shop.runs("revoked")


def test_purge_empties_the_queues_and_leaves_what_waits(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.send("note", "purged")
    shop.send("note", "waits", countdown=12)
    purged: Any = shop.app.control.purge()
    assert purged == 1
    shop.worker()
    shop.wait_for(1, "waits")
    assert not shop.runs("purged")

"""Tasks that are cancelled while they wait in RabbitMQ do not run, even after restarts."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import chain, group
from celery.result import AsyncResult

import celery_rabbit_delay
from tests.kit.broker import QUICK
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, signature

pytestmark = pytest.mark.shared_vhost

CHANGES = "celery-rabbit-delay.v3.changes"


def cancel_one(shop: Shop, id_: str, how: str) -> None:
    if how == "AsyncResult":
        AsyncResult(id_, app=shop.app).revoke()
    elif how == "control":
        shop.app.control.revoke([id_])
    elif how == "celery control":
        shop.celery("control", "revoke", id_)
    elif how == "celery control terminate":
        shop.celery("control", "terminate", "KILL", id_)
    elif how == "celery control revoke_by_stamped_headers":
        shop.celery("control", "revoke_by_stamped_headers", f"name={how}", "customer=7")
    elif how == "celery delay cancel":
        assert "1 id cancelled" in shop.delay("cancel", id_).out
    else:
        celery_rabbit_delay.cancel(shop.app, id_)


WAYS = (
    "control",
    "cancel",
    "celery delay cancel",
    "AsyncResult",
    "celery control",
    "celery control terminate",
    "celery control revoke_by_stamped_headers",
)


def test_tasks_that_are_cancelled_in_any_way_while_no_worker_is_up_do_not_run(make_shop: MakeShop) -> None:
    shop, others = make_shop({**QUICK, "max_delay": 600}, result_backend="cache+memory://"), make_shop(None)
    dead = {
        how: shop.send("note", how, countdown=12, headers={"stamped_headers": ["name"], "stamps": {"name": [how]}})
        for how in WAYS
    }
    for how, id_ in dead.items():
        cancel_one(shop, id_, how)
    group(signature(shop, "note", "of a group") for _ in range(2)).apply_async(countdown=12).revoke()
    for name, customer in (("stamped", "7"), ("stays", "8")):
        (flow := chain(signature(shop, "note", name), signature(shop, "note", f"after {name}"))).stamp(
            customer=customer
        )
        flow.apply_async(countdown=12)
    shop.app.control.revoke_by_stamped_headers({"customer": ["7", "9"]})
    dead["of others, due before a worker comes"] = others.send("note", "of others", countdown=1)
    celery_rabbit_delay.cancel(shop.app, dead["of others, due before a worker comes"])
    for name, countdown, destination in (("not delayed", None, None), ("for some workers", 1, ["somebody@else"])):
        shop.app.control.revoke(shop.send("note", name, countdown=countdown), destination=destination)
    worker = shop.worker()
    for name in ("after stays", "not delayed", "for some workers"):
        shop.wait_for(1, name)

    with suppress(AssertionError):
        wait_until(lambda: worker.output().count("Discarding revoked task") == len(dead) + 3, "all are discarded")
    discarded = re.findall(r"Discarding revoked task: \S+\[(\S+)\]", worker.output())
    assert [how for how, id_ in dead.items() if id_ not in discarded] == []
    assert len(discarded) == len(dead) + 3, "with the group's two, and the chain with a stamp"
    assert len(shop.runs()) == 4


@pytest.mark.long
def test_what_is_restored_runs_unless_it_was_discarded(make_shop: MakeShop) -> None:
    shop = make_shop({**QUICK, "max_delay": 600})
    worker = shop.worker()
    gone, alone = (shop.send("note", name, countdown=delay) for name, delay in (("gone", 8), ("alone", 30)))
    shop.app.control.revoke(alone)
    celery_rabbit_delay.cancel(shop.app, gone)
    wait_until(lambda: worker.has_discarded(gone), "one is discarded")
    assert shop.delay("restore", alone, gone).out == "2 ids restored\n"
    wait_until(
        lambda: not {alone, gone} & {*shop.app.control.inspect(timeout=9, limit=1).revoked()["w@localhost"]}, "it knows"
    )
    shop.wait_for(1, "alone")
    assert not shop.runs("gone")


def test_a_cancelled_task_that_has_become_an_orphan_does_not_run(make_shop: MakeShop) -> None:
    shop = make_shop()
    dead = shop.send("note", "cancelled", countdown=14)  # in levels for some seconds
    for name in shop.vhost.names("queues"):
        if ".out." in name and name.endswith("+celery"):
            shop.vhost.delete_queue(name)
    celery_rabbit_delay.cancel(shop.app, dead)
    wait_until(lambda: shop.vhost.count("celery-rabbit-delay.v3.10ms.orphans") == 1, "it is an orphan")
    shop.worker()
    assert shop.delay("orphans", "replay").code == 0
    wait_until(lambda: shop.vhost.count("celery-rabbit-delay.v3.10ms.orphans") == 0, "it is gone")
    shop.send("note", "stays", countdown=1)
    shop.wait_for(1, "stays")
    assert not shop.runs("cancelled")


def test_a_cancelled_task_takes_celerys_own_way_of_a_revoked_task(make_shop: MakeShop, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    shop = make_shop(result_backend=f"file://{tmp_path}/results", task_send_sent_event=True)
    dead = shop.send("note", "cancelled", countdown=15)
    celery_rabbit_delay.cancel(shop.app, dead)
    revoked: list[dict[str, Any]] = []
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"task-revoked": revoked.append})
        with receiver.consumer_context() as (listening, _, _):
            shop.worker("-E")

            def heard() -> bool:
                with suppress(TimeoutError):
                    listening.drain_events(timeout=0.5)
                return bool(revoked)

            wait_until(heard, "the event has come")
    assert [event["uuid"] for event in revoked] == [dead]
    assert AsyncResult(dead, app=shop.app).state == "REVOKED"
    assert not shop.runs()


@pytest.mark.long
def test_a_worker_whose_stream_of_changes_does_not_answer_warns_runs_all_tasks_and_tries_again(
    make_shop: MakeShop,
) -> None:
    shop = make_shop({**QUICK, "max_delay": 600})
    celery_rabbit_delay.cancel(shop.app, "creates the stream")
    shop.send("note", "runs", countdown=1)

    def let(what: str) -> None:
        name = f'rabbit_misc:r(<<"{shop.vhost.name}">>, queue, <<"{CHANGES}">>)'
        shop.vhost.broker.node.ctl(
            "eval", f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), sys:{what}(amqqueue:get_pid(Q))."
        )

    let("suspend")  # as one without a majority
    worker = shop.worker("-I", "tests.acceptance.impatient")
    shop.wait_for(1, "runs")
    assert "This worker does not know which tasks were cancelled or moved, and may run them" in worker.output()
    let("resume")
    dead = shop.send("note", "cancelled", countdown=20)
    celery_rabbit_delay.cancel(shop.app, dead)
    wait_until(lambda: worker.has_discarded(dead), "discarded")
    assert not shop.runs("cancelled")


@pytest.mark.long
def test_retries_of_a_cancelled_task_do_not_run(make_shop: MakeShop) -> None:
    shop = make_shop()
    worker = shop.worker(name="one")
    delayed = shop.send("stubborn", 5, 20, "delayed")
    at_once = shop.send("stubborn", 1_000_000, 0, "at once")
    shop.wait_for(1, "delayed")
    wait_until(lambda: shop.runs("at once"), "it is a retry that waits")
    worker.stop()  # so that only what is kept in RabbitMQ counts
    celery_rabbit_delay.cancel(shop.app, delayed, at_once)
    runs = len(shop.runs("at once"))
    worker = shop.worker(name="two")
    wait_until(lambda: all(worker.has_discarded(one, "stubborn") for one in (delayed, at_once)), "both are discarded")
    assert len(shop.runs("delayed")) == 1
    assert len(shop.runs("at once")) == runs


def test_a_task_that_is_cancelled_a_second_before_it_is_due_does_not_run(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.worker()
    due = time.time() + 6
    ids = [shop.send("note", n, countdown=due - time.time()) for n in range(30)]
    time.sleep(max(0, due - 1.5 - time.time()))
    celery_rabbit_delay.cancel(shop.app, *ids)
    if time.time() > due - 1:
        pytest.skip("this machine is too busy to cancel in time")
    shop.send("note", "last", countdown=3)
    shop.wait_for(1, "last")
    assert len(shop.runs()) == 1

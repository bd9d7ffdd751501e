"""Scenarios of Celery's smoke tests, with delayed tasks."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from .conftest import MakeShop, signature

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


def test_purge_empties_the_queues_and_leaves_what_waits(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.send("note", "purged")
    shop.send("note", "waits", countdown=12)
    purged: Any = shop.app.control.purge()
    assert purged == 1
    shop.worker()
    shop.wait_for(1, "waits")
    assert not shop.runs("purged")

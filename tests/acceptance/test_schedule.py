"""Tasks that wait are seen and moved, with real workers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

import celery_rabbit_delay
from tests.kit.broker import QUICK

from .conftest import MakeShop

pytestmark = pytest.mark.shared_vhost

NOTE = "tests.acceptance.shop.note"

RECORDED = {**QUICK, "max_delay": 600, "journal": 0}


def test_with_the_default_options_what_waits_is_seen_found_moved_and_cancelled(make_shop: MakeShop) -> None:
    shop = make_shop({"schedule": True}, task_routes={NOTE: {"queue": "mail"}})
    worker = shop.worker("-Q", "celery,mail")
    assert (
        "prefix celery-rabbit-delay, tick 0.125 s, at most 365 days, with the schedule, recorded from 60 s"
        in worker.output()
    )
    moved, cancelled = (shop.send("note", name, countdown=3600) for name in ("moved", "cancelled"))

    listed = shop.delay("list").out
    assert moved in listed
    assert cancelled in listed
    assert shop.delay("cancel", cancelled).code == 0
    assert shop.delay("run-now", moved).code == 0
    shop.wait_for(1, "moved")
    assert celery_rabbit_delay.find(shop.app, cancelled) is None


def test_the_command_with_an_app_moves_a_task(make_shop: MakeShop) -> None:
    shop = make_shop(RECORDED, timezone="Asia/Tokyo")
    first, second = (shop.send("note", name, countdown=countdown) for name, countdown in (("a", 300), ("b", 310)))
    assert shop.delay("reschedule", first, "--countdown", "400").out.startswith("due 2")
    assert [one.id for one in celery_rabbit_delay.scheduled(shop.app)] == [second, first]
    eta = (datetime.now(timezone.utc) + timedelta(seconds=500)).replace(microsecond=0)
    naive = eta.replace(tzinfo=None)
    assert shop.delay("reschedule", second, "--eta", naive.isoformat()).out == f"due {eta:%Y-%m-%d %H:%M:%S}Z\n"
    assert [one.id for one in celery_rabbit_delay.scheduled(shop.app)] == [first, second]
    *_, last = celery_rabbit_delay.scheduled(shop.app)
    assert timedelta(0) <= last.due - eta < timedelta(seconds=1)

"""Without the schedule, no stream is made, and what needs it says so; with it, a stream is made once it is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import kombu.pools
import pytest

import celery_rabbit_delay
from celery_rabbit_delay import UnsupportedConfiguration
from tests.kit.broker import QUICK, Broker, Vhost
from tests.kit.commands import run
from tests.kit.node import Node, find_release
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop


def streams_of(vhost: Vhost) -> list[str]:
    rows = vhost.broker.api("GET", f"/queues/{vhost.name}?columns=name,type")
    return [row["name"] for row in rows if row["type"] == "stream"]


def test_a_publisher_needs_no_stream_and_a_worker_the_one_of_changes_alone(make_shop: MakeShop) -> None:
    shop = make_shop({**QUICK, "journal": None})
    shop.send("note", "delayed", countdown=0.5)
    assert streams_of(shop.vhost) == []
    worker = shop.worker()
    shop.wait_for(1, "delayed")
    cancelled = shop.send("note", "cancelled", countdown=4)
    assert streams_of(shop.vhost) == ["celery-rabbit-delay.v3.changes"]
    celery_rabbit_delay.cancel(shop.app, cancelled)
    wait_until(lambda: worker.has_discarded(cancelled), "it is discarded")
    assert not shop.runs("cancelled")


def test_an_app_without_the_schedule_creates_no_stream_and_what_needs_it_says_what_to_add(
    make_shop: MakeShop, caplog: pytest.LogCaptureFixture
) -> None:
    shop = make_shop({**QUICK, "schedule": False})
    worker = shop.worker()
    assert "at most 0.00138889 days, without the schedule" in worker.output()
    shop.send("note", "delayed", countdown=0.5)
    shop.wait_for(1, "delayed")
    waiting = shop.send("note", "waits", countdown=60)
    needs: list[Callable[[], Any]] = [
        lambda: list(celery_rabbit_delay.scheduled(shop.app)),
        lambda: celery_rabbit_delay.find(shop.app, waiting),
        lambda: celery_rabbit_delay.cancel(shop.app, waiting),
        lambda: celery_rabbit_delay.reschedule(shop.app, waiting, countdown=1),
    ]
    for need in needs:
        with pytest.raises(UnsupportedConfiguration, match=r"add schedule=True to install\(app\)"):
            need()
    revoked = shop.send("note", "revoked", countdown=15)
    for _ in range(2):
        shop.app.control.revoke(revoked)
    assert caplog.text.count("a task that waits in RabbitMQ runs if all of them restart before it is due") == 1
    wait_until(lambda: worker.has_discarded(revoked), "Celery discards it")

    for command in (["list"], ["cancel", waiting], ["run-now", waiting]):
        refused = shop.delay(*command)
        assert (refused.code, "add schedule=True" in refused.err) == (1, True), refused.text
    for command in (["status"], ["setup"], ["verify"], ["orphans", "list"]):
        worked = shop.delay(*command)
        assert worked.code == 0, worked.text
        assert ".changes" not in worked.text
    listed = run(shop.vhost.url("amqp"), "list", options=("--tick", "0.01", "--max-delay", "120"))
    assert (listed.code, "add schedule=True" in listed.err) == (1, True), "although no --schedule is asked for"
    queues = json.loads(shop.delay("export").out)["queues"]
    assert not [queue["name"] for queue in queues if queue["arguments"]["x-queue-type"] == "stream"]
    assert run(shop.vhost.url("amqp"), "--no-schedule", "--queue", "celery", "setup").code == 0
    assert "celery_rabbit_delay_orphans 0.0" in shop.delay("metrics").out
    assert {run_["name"] for run_ in shop.runs()} == {"delayed"}
    assert streams_of(shop.vhost) == []


def test_by_default_a_worker_and_a_publisher_open_one_connection_more_than_plain_celery(make_shop: MakeShop) -> None:
    def opened(shop: Shop) -> int:
        return shop.vhost.broker.node.ctl("list_connections", "vhost").splitlines().count(shop.vhost.name)

    def added(options: dict[str, Any] | None, name: str, countdown: float | None, publisher: int) -> int:
        """Return how many connections a worker adds to those of a publisher that has sent a task."""
        shop = make_shop(options)
        shop.send("note", name, countdown=countdown)
        wait_until(lambda: opened(shop) == publisher, "all others are closed")
        worker = shop.worker(name=name)
        shop.wait_for(1, name)
        both = opened(shop)
        worker.stop()
        shop.app.close()
        kombu.pools.reset()
        return both - publisher

    assert added({**QUICK, "schedule": False}, "ours", 0.5, 2) == added(None, "plain", None, 1) + 1


class Streamless(Node):
    def environment(self) -> dict[str, str]:
        return super().environment() | {"RABBITMQ_FEATURE_FLAGS": "quorum_queue,virtual_host_metadata"}


@pytest.mark.long
def test_tasks_are_delayed_and_a_warning_says_what_does_not_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Streamless(find_release("3.10"), ("rabbitmq_management",)) as node,
        Broker(node).vhost() as vhost,
        closing(Shop(vhost, tmp_path, {**QUICK, "journal": 0}, {})) as shop,
    ):
        worker = shop.worker()
        shop.send("note", "delayed", countdown=1)
        shop.wait_for(1, "delayed")
        assert worker.output().count("Connected to") == 1, "it has not lost its connection"
        assert "RabbitMQ cannot create the stream" in worker.output()
        assert "Delayed messages are sent without being recorded" in caplog.text
        refused = run(vhost.url("amqp"), "--queue", "celery", "setup")
        assert refused.code == 1
        assert "If it has no streams, leave schedule=True out" in refused.err

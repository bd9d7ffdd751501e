"""Queues that are paused: no worker consumes them, whatever restarts, and all is there in order afterwards."""

from __future__ import annotations

import json
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import celery_rabbit_delay
from celery_rabbit_delay.delay.core.errors import InvalidDestination, UnsupportedConfiguration
from celery_rabbit_delay.schedule.amqp.waiting_tasks import cancel
from tests.kit.broker import QUICK, own_node
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, Worker, assert_nothing_went_wrong

pytestmark = pytest.mark.shared_vhost


def is_quiet(worker: Worker, times: int = 1) -> None:
    """Wait until a worker has learned that the queue is paused."""
    wait_until(lambda: worker.output().count("The queue 'mail' is paused") >= times, "it has learned of it")


def consumers(shop: Shop) -> int:
    with shop.vhost.plain() as connection:
        return int(connection.default_channel.queue_declare("mail", passive=True).consumer_count)


def test_no_worker_takes_what_is_sent_to_a_paused_queue_or_due_until_it_is_resumed(make_shop: MakeShop) -> None:
    shop = make_shop(queues="quorum")
    one = shop.worker("--concurrency=1", name="one")  # it starts before there is any stream, and is idle
    celery_rabbit_delay.pause(shop.app, "mail")
    is_quiet(one)
    for number in range(20):
        shop.send("note", number, queue="mail", countdown=1 + 0.3 * number if number < 10 else None)
    two = shop.worker("--concurrency=1", name="two")
    is_quiet(two)
    shop.send("note", "other", countdown=2)
    shop.send("note", "other")
    shop.wait_for(2, "other")
    wait_until(lambda: shop.vhost.count("mail") == 20, "all that is due is in the queue")
    assert consumers(shop) == 0
    assert len(shop.runs()) == 2
    one.stop()
    two.stop()
    again = shop.worker("--concurrency=1", name="again")
    is_quiet(again)
    assert celery_rabbit_delay.paused(shop.app) == {"mail": None}
    celery_rabbit_delay.resume(shop.app, "mail")
    shop.wait_for(22)
    names = [run["name"] for run in shop.runs() if run["name"] != "other"]
    assert sorted(names) == list(range(20))
    assert [name for name in names if name < 10] == list(range(10))
    assert [name for name in names if name >= 10] == list(range(10, 20))
    assert not any(run["delivery_info"]["redelivered"] for run in shop.runs())
    assert celery_rabbit_delay.paused(shop.app) == {}
    assert_nothing_went_wrong(shop, one, two, again)


def test_a_worker_whose_second_connection_falls_silent_learns_of_a_pause_and_of_what_is_cancelled(
    make_shop: MakeShop,
) -> None:
    """As behind a firewall that forgets a connection: both ends keep it, and nothing more comes."""
    shop = make_shop(queues="quorum")
    with shop.vhost.connection() as connection, proxy(shop.vhost.broker.node.port) as between:
        cancel(connection, ["creates the stream"])
        through = make_shop(broker_url=between.url(shop.vhost.url("amqp")), queues="quorum")
        worker = through.worker("-Q", "celery,mail")
        assert between.silence("celery-rabbit-delay follower")
        cancel(connection, ["victim"])
        celery_rabbit_delay.pause(shop.app, "mail")
        is_quiet(worker)
        inspect = shop.app.control.inspect(timeout=5, limit=1)
        assert "victim" in inspect.revoked()["w@localhost"]
    assert_nothing_went_wrong(shop, worker)


def test_a_pause_ends_at_its_time(make_shop: MakeShop) -> None:
    shop = make_shop(queues="classic")
    worker = shop.worker()
    until = datetime.now(timezone.utc) + timedelta(seconds=12)
    celery_rabbit_delay.pause(shop.app, "mail", until)
    is_quiet(worker)
    shop.send("note", "held", queue="mail")
    [run] = shop.wait_for(1)
    assert run["at"] >= until.timestamp()


def test_a_worker_with_only_paused_queues_answers_and_shows_them(make_shop: MakeShop) -> None:
    shop = make_shop(queues="classic")
    assert shop.delay("pause", "mail").code == 0
    worker = shop.worker("-Q", "mail")
    is_quiet(worker)
    inspect = shop.app.control.inspect(timeout=10, limit=1)
    assert inspect.ping() == {"w@localhost": {"ok": "pong"}}
    status = shop.delay("status")
    assert (status.code, "mail is paused\n" in status.out) == (0, True)
    assert json.loads(shop.delay("status", "--json").out)["paused"][0]["queue"] == "mail"
    shop.send("note", "held", queue="mail")
    # Celery's own remote control says what a worker consumes from, and a pause what nobody does.
    shop.app.control.add_consumer("mail", reply=True, timeout=60, limit=1)
    is_quiet(worker, times=2)
    shop.app.control.cancel_consumer("mail", reply=True, timeout=60, limit=1)
    wait_until(lambda: inspect.active_queues()["w@localhost"] == [], "it is none of its queues")
    assert shop.delay("resume", "mail").code == 0
    shop.send("note", "to see that time has passed", queue="celery")
    other = shop.worker("-Q", "celery", name="other")
    shop.wait_for(1, "to see that time has passed")
    assert consumers(shop) == 0
    shop.app.control.add_consumer("mail", reply=True, destination=["w@localhost"], timeout=60, limit=1)
    shop.wait_for(1, "held")
    assert_nothing_went_wrong(shop, worker, other)


def test_what_a_worker_has_taken_still_runs_and_the_rest_stays(make_shop: MakeShop) -> None:
    shop = make_shop(queues="classic")
    worker = shop.worker("--concurrency=1", "--prefetch-multiplier=2")
    for number in range(40):
        shop.send("slow", 0.5, number, queue="mail")
    wait_until(shop.runs, "the first one runs")
    celery_rabbit_delay.pause(shop.app, "mail")
    is_quiet(worker)
    wait_until(lambda: consumers(shop) == 0 and len(shop.runs()) + shop.vhost.count("mail") == 40, "the taken ones ran")
    ran = len(shop.runs())
    celery_rabbit_delay.resume(shop.app, "mail")
    wait_until(lambda: len(shop.runs()) > ran + 2, "it goes on")
    names = [run["name"] for run in shop.runs()]
    assert names == list(range(len(names)))
    assert not any(run["delivery_info"]["redelivered"] for run in shop.runs())


@pytest.mark.parametrize(
    "pool",
    ["-P solo", pytest.param("-P threads", marks=pytest.mark.more), pytest.param("-P gevent", marks=pytest.mark.more)],
)
def test_each_pool_pauses_and_resumes(make_shop: MakeShop, pool: str) -> None:
    shop = make_shop(queues="classic")
    worker = shop.worker(*pool.split())
    celery_rabbit_delay.pause(shop.app, "mail")
    is_quiet(worker)
    shop.send("note", "held", queue="mail")
    shop.send("note", "other")
    shop.wait_for(1, "other")
    assert shop.vhost.count("mail") == 1
    celery_rabbit_delay.resume(shop.app, "mail")
    shop.wait_for(1, "held")
    assert_nothing_went_wrong(shop, worker)


@pytest.mark.long
def test_it_survives_a_restart_of_the_broker_below_a_worker(tmp_path: Path) -> None:
    with own_node() as vhost, closing(Shop(vhost, tmp_path, QUICK, {"queues": "quorum"})) as shop:
        worker = shop.worker()
        celery_rabbit_delay.pause(shop.app, "mail")
        is_quiet(worker)
        shop.send("note", "held", queue="mail", countdown=1)
        wait_until(lambda: vhost.count("mail") == 1, "it is due")
        vhost.broker.node.kill()
        vhost.broker.node.start()
        is_quiet(worker, times=2)
        shop.send("note", "other")
        shop.wait_for(1, "other")
        assert consumers(shop) == 0
        celery_rabbit_delay.resume(shop.app, "mail")
        shop.wait_for(1, "held")


def test_only_a_queue_of_the_app_that_keeps_its_messages_is_paused(make_shop: MakeShop) -> None:
    shop = make_shop(queues="classic")
    with pytest.raises(InvalidDestination, match=r"'mial' is not a queue of this app, whose queues are celery, mail"):
        celery_rabbit_delay.pause(shop.app, "mial")
    assert "whose queues are celery, mail" in shop.delay("pause", "mial").err
    assert "is in the past" in shop.delay("pause", "mail", "--until", "2020-01-01T00:00:00Z").err
    assert shop.delay("pause", "mial", "--any-queue", "--until", "2100-01-01T00:00:00Z").code == 0
    assert celery_rabbit_delay.paused(shop.app) == {}
    end = datetime(2100, 1, 1, tzinfo=timezone.utc)
    assert celery_rabbit_delay.paused(shop.app, any_queue=True) == {"mial": end}
    fleeting = make_shop(queues="auto-delete")
    with pytest.raises(InvalidDestination, match="auto_delete"):
        celery_rabbit_delay.pause(fleeting.app, "mail")
    without = make_shop({**QUICK, "schedule": False}, queues="classic")
    for call in (celery_rabbit_delay.pause, celery_rabbit_delay.resume):
        with pytest.raises(UnsupportedConfiguration, match="add schedule=True"):
            call(without.app, "mail")
    with pytest.raises(UnsupportedConfiguration, match="add schedule=True"):
        celery_rabbit_delay.paused(without.app)


def test_a_queue_that_would_be_deleted_without_consumers_is_consumed_whatever_is_said(make_shop: MakeShop) -> None:
    shop, says = make_shop(queues="auto-delete"), make_shop()
    celery_rabbit_delay.pause(says.app, "mail", any_queue=True)
    worker = shop.worker()
    shop.send("note", "runs", queue="mail")
    shop.wait_for(1, "runs")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() > began + 2, "it has looked")
    assert consumers(shop) == 1
    assert_nothing_went_wrong(shop, worker)

"""A worker holds no task that arrives early: the task goes into the cascade and comes back to its queue."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import celery_rabbit_delay
from celery_rabbit_delay import DelayError
from celery_rabbit_delay.delay.amqp import create
from celery_rabbit_delay.delay.amqp.delivery_time import BrokerClock
from celery_rabbit_delay.delay.core import options
from tests.kit.broker import QUICK, own_node
from tests.kit.node import dead_letters_again
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, plain_celery_url, waiting

pytestmark = pytest.mark.shared_vhost

OTHER_POOLS = ("-P threads", "-P solo", "-P gevent", "-P eventlet", "--autoscale=4,1")
HELD_BY_CELERY = "so it holds such tasks itself, as Celery does"


def are_listed(shop: Shop, amount: int) -> None:
    """Wait for the records of what a worker hands on, which it stores without waiting for RabbitMQ's answer."""
    wait_until(lambda: len(list(celery_rabbit_delay.scheduled(shop.app))) == amount, f"{amount} are listed")


def scheduled(shop: Shop, workers: int = 1) -> list[Any]:
    """Return the tasks that workers hold."""
    replies = shop.app.control.inspect(timeout=5, limit=workers).scheduled() or {}
    return [request for held in replies.values() for request in held]


@pytest.mark.parametrize(
    ("arguments", "conf"),
    [("-P prefork", {"queues": "quorum"}), *(pytest.param(pool, {}, marks=pytest.mark.more) for pool in OTHER_POOLS)],
)
def test_tasks_of_others_do_not_hold_up_immediate_ones(
    make_shop: MakeShop, arguments: str, conf: dict[str, Any]
) -> None:
    shop, others, old = make_shop(**conf), make_shop(None, **conf), make_shop(None, **conf, task_protocol=1)
    worker = shop.worker("-Q", "celery,mail", *arguments.split())
    for n in range(40):
        (others if n % 4 < 2 else old).send("note", "delayed", countdown=20, queue="mail" if n % 2 else "celery")
    for n in range(3):
        shop.send("note", f"immediate {n}")
    for n in range(3):
        shop.wait_for(1, f"immediate {n}")
    wait_until(lambda: waiting(shop.vhost) == 40, "all wait in RabbitMQ")
    assert not shop.runs("delayed")
    assert not scheduled(shop)
    for run in shop.wait_for(40, "delayed"):
        assert run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()
    warnings = [line for line in worker.output().splitlines() if "WARNING" in line]
    assert not [line for line in warnings if "shows only a part" not in line], "inspect may be slow beside other tests"
    assert "Traceback" not in worker.output()


@pytest.mark.parametrize(
    ("queues", "timezone"), [("priority", "UTC"), ("classic, topic exchange", "UTC"), ("quorum", "Europe/Berlin")]
)
def test_a_task_comes_back_as_it_was_sent(make_shop: MakeShop, queues: str, timezone: str) -> None:
    conf = {"queues": queues, "timezone": timezone}
    shop, others = make_shop(**conf), make_shop(None, **conf)
    options: dict[str, Any] = {"priority": 7, "headers": {"customer": "42"}, "expires": 60, "compression": "zlib"}
    options |= {"exchange": "shop", "routing_key": "mail"} if "topic" in queues else {"queue": "mail"}
    shop.worker("-Q", "celery,mail")
    others.send("stubborn", 0, 0, "direct", **options, eta="2020-01-01T00:00:00+00:00", task_id="one")
    others.send("stubborn", 0, 0, "handed on", **options, countdown=3, task_id="one")
    shop.wait_for(2)
    [direct], [handed_on] = shop.runs("direct"), shop.runs("handed on")
    assert handed_on["at"] >= datetime.fromisoformat(handed_on["eta"]).timestamp()
    for entry in (direct, handed_on):
        headers = entry["properties"]["application_headers"]
        for one_off in ("eta", "expires", "argsrepr"):
            headers.pop(one_off)
        for one_off in ("at", "eta", "name"):
            entry.pop(one_off)
        entry["properties"].pop("expiration", None)
        for one_off in ("eta", "expires"):
            (entry["headers"] or {}).pop(one_off, None)
    assert handed_on == direct


def test_tasks_that_were_handed_on_are_listed_cancelled_moved_and_retry(make_shop: MakeShop) -> None:
    shop = make_shop(QUICK | {"journal": 0}, queues="classic, topic exchange")
    others, old = make_shop(None, queues="classic, topic exchange"), make_shop(None, task_protocol=1)
    worker = shop.worker("-Q", "celery,mail")
    mail = {"exchange": "shop", "routing_key": "mail"}
    moved, cancelled = (others.send("note", name, **mail, countdown=100) for name in ("moved", "cancelled"))
    stays, revoked = (old.send("note", name, countdown=100) for name in ("stays", "revoked"))
    wait_until(lambda: waiting(shop.vhost) == 4, "all wait in RabbitMQ")
    are_listed(shop, 4)
    listed = {task.id: task for task in celery_rabbit_delay.scheduled(shop.app)}
    queues = {id_: task.queue for id_, task in listed.items()}
    assert queues == {moved: "mail", cancelled: "mail", stays: "celery", revoked: "celery"}
    assert (listed[moved].exchange, listed[moved].routing_key) == ("shop", "mail")
    celery_rabbit_delay.cancel(shop.app, cancelled, revoked)
    assert {task.id for task in celery_rabbit_delay.scheduled(shop.app)} == {moved, stays}
    with pytest.raises(DelayError, match="its eta is in its body"):  # of protocol 1
        celery_rabbit_delay.reschedule(shop.app, stays, countdown=0)
    shop.vhost.declare("copies")
    with shop.vhost.plain() as connection:
        connection.default_channel.queue_bind("copies", "shop", "#")
    celery_rabbit_delay.reschedule(shop.app, moved, countdown=0)
    shop.wait_for(1, "moved")
    assert [task.id for task in celery_rabbit_delay.scheduled(shop.app)] == [stays]
    assert shop.vhost.count("copies") == 0, "it returns to its queue alone"
    assert "WARNING" not in worker.output()
    others.send("stubborn", 3, 0.2, **mail, countdown=2)
    runs = shop.wait_for(4, "stubborn")
    assert [run["retries"] for run in runs] == [0, 1, 2, 3]
    for run in runs:
        assert (run["delivery_info"]["exchange"], run["delivery_info"]["routing_key"]) == ("shop", "mail")
    assert shop.vhost.count(shop.vhost.cascade.orphans) == 0


@pytest.mark.long
@pytest.mark.parametrize("arguments", ["-P prefork", "-P solo"])
def test_what_came_before_its_delivery_time_is_handed_back_and_runs_when_it_is_due(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    """As while the nodes of a cluster are upgraded: a queue lets everything out at once."""
    shop = make_shop(QUICK | {"journal": 0, "delivery_time": True})
    shop.worker(*arguments.split())
    with monkeypatch.context() as patched:
        by_time, far_behind = replace(shop.vhost.cascade, by_time=True), BrokerClock(0, time.monotonic_ns(), 0)
        patched.setattr(options, "HOLDS_MESSAGES", (3, 10))
        patched.setattr(create, "choose", lambda *_: (by_time, far_behind))
        due = time.time() + 12
        for n in range(20):
            shop.send("note", "far", n, countdown=12)
            shop.send("note", "near", n, countdown=1)  # Celery holds it
            shop.send("note", "no eta", n, headers={"x-delay": 12_000})
        cancelled = shop.send("note", "cancelled", countdown=12)
    vhost = shop.vhost

    def ready() -> int:  # in levels, which do not depend on the clock
        return sum(vhost.count(name) for name in vhost.levels_and_outboxes() if ".out.+" not in name)

    wait_until(lambda: ready() == 41, "all that are far from due wait in RabbitMQ")
    shop.app.control.revoke(cancelled)
    for name in ("far", "near", "no eta"):
        for run in shop.wait_for(20, name):
            assert run["at"] >= (due if run["eta"] is None else datetime.fromisoformat(run["eta"]).timestamp())
            assert (run["delivery_info"]["exchange"], run["delivery_info"]["routing_key"]) == ("", "celery")
            assert "x-opt-delivery-time" not in (run["headers"] or {})
    assert len(shop.runs()) == 60


def test_what_is_due_within_a_moment_stays(make_shop: MakeShop) -> None:
    shop, others = make_shop(QUICK | {"tick": 10, "slack": 0}), make_shop(None)
    worker = shop.worker()
    others.send("note", "nearly due", countdown=3)
    shop.wait_for(1, "nearly due")
    assert worker.stop() == 0
    assert "handed on" not in worker.output()


@pytest.mark.long
def test_broadcast_queues_keep_their_copies_and_exclusive_ones_hand_theirs_on(make_shop: MakeShop) -> None:
    shop, others = make_shop(queues="broadcast"), make_shop(None, queues="broadcast")
    for name in ("one", "two"):
        shop.worker("-Q", "celery,news", name=name)
    others.send("note", "news", countdown=25, queue="news")
    wait_until(lambda: len(scheduled(shop, 2)) == 2, "each worker holds its copy")
    shop.wait_for(2, "news")
    shop, others = make_shop(queues="exclusive"), make_shop(None, queues="exclusive")
    shop.worker("-Q", "celery,own", name="three")
    others.send("note", "own", countdown=25, exchange="own", routing_key="own")
    wait_until(lambda: waiting(shop.vhost) == 1, "it waits in RabbitMQ")
    assert not scheduled(shop, 3)
    shop.wait_for(1, "own")


@pytest.mark.long
def test_beyond_the_maximum_it_warns_once_and_celery_holds_the_task(make_shop: MakeShop) -> None:
    shop, others = make_shop(), make_shop(None)
    worker = shop.worker()
    for _ in range(2):
        others.send("note", "next week", countdown=7 * 86400)
    wait_until(lambda: len(scheduled(shop)) == 2, "the worker holds them")
    assert worker.output().count(HELD_BY_CELERY) == 1
    assert "more than the option max_delay, 120 s" in worker.output()
    others.send("note", "soon", countdown=15)
    wait_until(lambda: waiting(shop.vhost) == 1, "others still wait in RabbitMQ")
    shop.wait_for(1, "soon")


@pytest.mark.parametrize("created", [pytest.param(False, marks=pytest.mark.more), True])
def test_without_permission_it_warns_once_and_celery_holds_the_tasks(make_shop: MakeShop, created: bool) -> None:
    shop, others = make_shop(), make_shop(None)
    if created:
        shop.send("note", "first", countdown=6)
    worker = make_shop(QUICK, broker_url=plain_celery_url(shop)).worker()
    for _ in range(4):
        others.send("note", "delayed", countdown=15)
    shop.wait_for(4, "delayed")
    assert worker.output().count(HELD_BY_CELERY) == 1
    assert "Traceback" not in worker.output()


def test_a_permission_to_bind_but_not_to_publish_is_no_reason_to_stop(make_shop: MakeShop) -> None:
    shop, others = make_shop(), make_shop(None)
    shop.send("note", "first", countdown=6)
    root = shop.vhost.cascade.root.replace(".", r"\.")
    url = plain_celery_url(shop, read=rf"{root}\.done", configure="nothing", write="nothing")
    worker = make_shop(QUICK, broker_url=url).worker()
    for _ in range(4):
        others.send("note", "delayed", countdown=15)
    shop.send("note", "immediate")
    shop.wait_for(4, "delayed")
    shop.wait_for(1, "immediate")
    assert worker.output().count(HELD_BY_CELERY) == 1
    assert "Traceback" not in worker.output()


def test_a_worker_that_stops_leaves_nothing_twice_and_says_that_it_hands_on(make_shop: MakeShop) -> None:
    shop, others = make_shop(QUICK | {"outboxes": (), "max_delay": 7200}), make_shop(None)
    for n in range(3000):
        others.send("note", n, countdown=3000)  # without outboxes, they stay in their first level for 44 minutes
    worker = shop.worker()
    wait_until(lambda: waiting(shop.vhost) > 100, "it hands on")
    assert worker.stop() == 0
    handed_on = waiting(shop.vhost)
    assert handed_on < 3000, "a long queue kept it from stopping"
    assert handed_on + shop.vhost.count("celery") == 3000
    assert worker.output().count("they are handed on, and wait in RabbitMQ") == 1
    are_listed(shop, handed_on)


def wait_for_all(shop: Shop, amount: int) -> None:
    def missing() -> set[int]:
        return set(range(amount)) - {run["name"] for run in shop.runs()}

    with suppress(AssertionError):
        wait_until(lambda: not missing(), "all have run", timeout=150)
    where = {
        **shop.vhost.waiting(),
        **{name: shop.vhost.count(name) for name in ("celery", shop.vhost.cascade.orphans)},
    }
    assert not missing(), f"{len(missing())} have not run, such as {min(missing())}; RabbitMQ has {where}"


@pytest.mark.long
def test_nothing_is_lost_when_workers_are_killed(make_shop: MakeShop) -> None:
    shop, others = make_shop(), make_shop(None)
    eta = datetime.now(timezone.utc) + timedelta(seconds=60)
    for n in range(1000):
        others.send("note", n, eta=eta)
    for name in ("one", "two"):
        worker = shop.worker(name=name)
        wait_until(lambda: waiting(shop.vhost) > 100, "it hands on")
        os.killpg(worker.process.pid, signal.SIGKILL)
    shop.worker(name="three")
    wait_for_all(shop, 1000)
    assert min(run["at"] for run in shop.runs()) >= eta.timestamp()


@pytest.mark.long
def test_nothing_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    # A node that is killed may lose what it has not confirmed.
    confirming = {"broker_transport_options": {"confirm_publish": True}}
    with (
        own_node(advanced=dead_letters_again(5)) as vhost,
        closing(Shop(vhost, tmp_path, QUICK, {})) as shop,
        closing(Shop(vhost, tmp_path, None, confirming)) as others,
    ):
        node = vhost.broker.node
        eta = datetime.now(timezone.utc) + timedelta(seconds=60)
        for n in range(1000):
            others.send("note", n, eta=eta)
        shop.worker()
        wait_until(lambda: waiting(vhost) > 100, "it hands on")
        queues = vhost.levels_and_outboxes()
        wait_until(lambda: all(map(node.has_registered, queues)), "the node has written down what it has")
        node.kill()
        node.start()
        wait_for_all(shop, 1000)
        assert min(run["at"] for run in shop.runs()) >= eta.timestamp()

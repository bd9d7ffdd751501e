"""The scenarios of Celery's smoke tests for native delayed delivery, with this package.

After https://github.com/celery/celery/tree/main/t/smoke/tests/quorum_queues, in the configuration that these use and in
Celery's default one. One worker serves them all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord

from tests.kit.broker import QUICK, Broker
from tests.kit.wait import wait_until

from .conftest import Shop, assert_nothing_went_wrong, signature

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "quorum, topic": {
        "queues": "quorum by default, topic exchange",
        "task_default_routing_key": "celery",
        "broker_transport_options": {"confirm_publish": True},
    },
}


@pytest.fixture(scope="module", params=["default", pytest.param("quorum, topic", marks=pytest.mark.more)])
def shop(request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("shop")
    conf = CONFIGURATIONS[request.param] | {"result_backend": f"file://{directory}"}
    options = QUICK | {"max_delay": 26 * 3600}
    with broker.vhost() as vhost, closing(Shop(vhost, directory, options, conf)) as shop:
        worker = shop.worker("-c", "2")
        shop.send("note", "first", countdown=0.1)  # declares the cascade, which takes seconds on a busy machine
        shop.wait_for(1, "first")
        yield shop
        assert_nothing_went_wrong(shop, worker)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name that identifies the tasks of a test."""
    return str(request.node.name)


def in_seconds(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


@pytest.mark.parametrize("queue", [{}, {"queue": "celery"}], ids=["no queue", "queue"])
@pytest.mark.parametrize("countdown", [-5, 0, 1, 2.5])
def test_a_task_runs_after_its_countdown(shop: Shop, name: str, countdown: float, queue: dict[str, str]) -> None:
    sent = datetime.now().timestamp()  # noqa: DTZ005
    shop.send("note", name, countdown=countdown, **queue)
    [run] = shop.wait_for(1, name)
    assert run["at"] >= sent + countdown


@pytest.mark.parametrize("seconds", [-5, 1])
@pytest.mark.parametrize("form", [datetime, str])
def test_a_task_runs_at_its_eta(shop: Shop, name: str, seconds: float, form: type) -> None:
    eta = in_seconds(seconds)
    shop.send("note", name, eta=eta if form is datetime else eta.isoformat())
    [run] = shop.wait_for(1, name)
    assert run["at"] >= eta.timestamp()


def test_25_hours_are_accepted(shop: Shop, name: str) -> None:
    shop.send("note", name, countdown=25 * 3600)
    long = re.compile(r"\.delay\.\d{7,}$|\.out\.(?!\d)")  # the latter holds it itself, or is empty

    def waiting() -> int:
        return sum(amount for queue, amount in shop.vhost.waiting().items() if long.search(queue))

    wait_until(lambda: waiting() == 1, "it waits in a long level, or is held")
    assert not shop.runs(name)


def test_five_tasks_with_the_same_eta_run_on_time(shop: Shop, name: str) -> None:
    eta = in_seconds(1.5)
    for _ in range(5):
        shop.send("note", name, eta=eta)
    assert min(run["at"] for run in shop.wait_for(5, name)) >= eta.timestamp()


def test_order_follows_the_delays(shop: Shop, name: str) -> None:
    now = in_seconds(0)
    for seconds in (15, 10, 5):
        shop.send("note", [name, seconds], eta=now + timedelta(seconds=seconds))
    ran = [shop.wait_for(1, [name, seconds])[0]["at"] for seconds in (5, 10, 15)]
    assert ran == sorted(ran)


def test_a_chain_with_countdowns_runs_in_order(shop: Shop, name: str) -> None:
    chain(*(signature(shop, "note", [name, step], countdown=0.5) for step in range(3))).apply_async(countdown=0.5)
    ran = [shop.wait_for(1, [name, step])[0] for step in range(3)]
    for before, after in itertools.pairwise(ran):
        assert after["at"] >= before["at"] + 0.5


def test_a_revoked_task_does_not_run(shop: Shop, name: str) -> None:
    task_id = shop.send("note", name, countdown=12)
    assert shop.app.control.revoke(task_id, destination=["w@localhost"], reply=True, timeout=30)
    shop.send("note", [name, "later"], countdown=13)
    shop.wait_for(1, [name, "later"])
    assert not shop.runs(name)


def test_a_hundred_tasks_run_at_the_same_time(shop: Shop, name: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: shop.send("note", [name, n], countdown=1), range(100)))
    for n in range(100):
        shop.wait_for(1, [name, n])


@pytest.mark.parametrize("countdown", [{}, {"countdown": 1}], ids=["immediate", "delayed"])
def test_a_task_is_retried_with_the_same_delay(shop: Shop, name: str, countdown: dict[str, float]) -> None:
    shop.send("stubborn", 2, 1, name, **countdown)
    assert [run["retries"] for run in shop.wait_for(3, name)] == [0, 1, 2]


def test_chords_are_unlocked(shop: Shop, name: str) -> None:
    """A result backend on files waits for a chord's parts with a task that is retried with a countdown."""
    for n in range(10):
        parts = [signature(shop, "note", f"{name} {n}.{part}", queue="celery") for part in range(3)]
        chord(parts, signature(shop, "join", queue="celery")).apply_async()
    for n in range(10):
        shop.wait_for(1, "+".join(f"{name} {n}.{part}" for part in range(3)))

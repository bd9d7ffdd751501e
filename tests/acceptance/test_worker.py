"""Workers see delayed tasks as documented, and their other functions still work."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial
from typing import Any

import kombu.pools
import pytest

import celery_rabbit_delay
from celery_rabbit_delay.delay.app.consumers import DelayedConsumer
from tests.kit.broker import QUICK
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, Worker, plain_celery_url, signature

pytestmark = pytest.mark.shared_vhost


@pytest.mark.parametrize("conf", [{}, {"queues": "quorum, topic exchange", "timezone": "Europe/Berlin"}])
def test_a_delayed_task_looks_like_one_that_was_sent_directly(make_shop: MakeShop, conf: dict[str, Any]) -> None:
    shop = make_shop(**conf)
    shop.worker()
    options: dict[str, Any] = {"priority": 3, "headers": {"customer": "42"}}
    if "topic" in conf.get("queues", ""):
        options |= {"exchange": "shop", "routing_key": "mail"}
    shop.send("note", "direct", **options, eta="2020-01-01T00:00:00+00:00", task_id="one")
    shop.send("note", "delayed", **options, countdown=0.5, task_id="one")
    [direct], [delayed] = shop.wait_for(1, "direct"), shop.wait_for(1, "delayed")
    for entry in (direct, delayed):
        assert entry["at"] >= datetime.fromisoformat(entry["eta"]).timestamp()
        headers = entry["properties"]["application_headers"]
        for one_off in ("eta", "argsrepr"):
            headers.pop(one_off)
        for one_off in ("at", "eta", "name"):
            entry.pop(one_off)
        if entry["headers"]:
            entry["headers"].pop("eta", None)
    assert delayed == direct


def test_fifty_retries_stay_on_their_queue_and_do_not_grow(make_shop: MakeShop) -> None:
    """RabbitMQ before 4.0.1 silently drops a message that is published again with x-death, as a dead-letter cycle."""
    shop = make_shop()
    shop.worker("-Q", "celery,q2")
    shop.send("stubborn", 50, 0.02, queue="q2", headers={"customer": "42"})
    runs = shop.wait_for(51, timeout=200)
    assert [run["retries"] for run in runs] == list(range(51))
    for run in runs:
        assert run["delivery_info"]["exchange"] == ""
        assert run["delivery_info"]["routing_key"] == "q2"
    changing = {"eta", "retries", "origin"}
    for run in runs[1:]:
        headers, first = (one["properties"]["application_headers"] for one in (run, runs[1]))
        assert headers.keys() == first.keys()
        assert {k: v for k, v in headers.items() if k not in changing} == {
            k: v for k, v in first.items() if k not in changing
        }
    assert shop.vhost.count("celery-rabbit-delay.v3.10ms.orphans") == 0


def test_a_running_worker_honours_expires_and_receives_what_still_waits_for_a_queue_that_is_added(
    make_shop: MakeShop,
) -> None:
    shop = make_shop()
    worker = shop.worker()
    shop.send("note", "patient", countdown=15, queue="later")
    shop.vhost.delete_queue("later")
    shop.app.control.add_consumer("later", reply=True, timeout=60, limit=1)
    shop.send("note", "expires before it is due", countdown=0.6, expires=0.3)
    shop.send("note", "expires after it is due", countdown=3, expires=100)
    shop.wait_for(1, "expires after it is due")
    wait_until(lambda: "Discarding revoked task" in worker.output(), "the worker discards the expired task")
    shop.wait_for(1, "patient")
    assert len(shop.runs()) == 2


def test_a_passive_worker_needs_no_more_than_plain_celery(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.send("note", "delayed", countdown=2)
    restricted = make_shop(QUICK | {"declare": "passive"}, broker_url=plain_celery_url(shop))
    restricted.worker()
    shop.wait_for(1, "delayed")


def test_an_auto_worker_without_the_permission_says_once_what_to_do_and_works(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.send("note", "delayed", countdown=5)
    with proxy(shop.vhost.broker.node.port) as between:
        url = between.url(plain_celery_url(shop))
        worker = make_shop(broker_url=url).worker("-Q", "celery,celery@b,celery@c")
        before = worker.output()
        refused = "This worker cannot create the cascade or the outboxes of 'celery', 'celery@b', 'celery@c'"
        assert before.count(refused) == 1
        assert before.count("This worker does not know which tasks were cancelled") == 1
        assert before.count("grant the permission, see https://github.com") == 2
        between.cut()
        wait_until(lambda: "Connected to" in worker.output()[len(before) :], "the worker connects again")
        shop.send("note", "immediate")
        shop.wait_for(1, "immediate")
        shop.wait_for(1, "delayed")
    assert "grant the permission" not in worker.output()[len(before) :]


@pytest.mark.own_vhost
def test_a_worker_creates_the_cascade_so_that_no_caller_has_to_wait_for_it(make_shop: MakeShop) -> None:
    shop = make_shop()
    shop.worker(name="first")
    cascade = shop.vhost.cascade
    assert cascade.marker in shop.vhost.names("exchanges")
    log = shop.vhost.broker.node.log
    before = len(log.read_bytes())
    shop.worker(name="second")
    news = [line for line in log.read_bytes()[before:].splitlines() if shop.vhost.name.encode() in line]
    missing = [line for line in news if b"not_found" in line or b"no queue" in line]
    assert all(b".changes" in line for line in missing), "the stream of changes is created when it is needed"


def test_a_worker_consumes_a_queue_whose_exchange_nobody_declares(make_shop: MakeShop) -> None:
    """`no_declare`: Celery publishes such a queue's tasks to the default exchange."""
    shop = make_shop()
    shop.vhost.declare("celery")
    with shop.vhost.connection() as connection:
        queue = kombu.Queue("celery", kombu.Exchange("absent"), routing_key="celery", no_declare=True)
        with DelayedConsumer(connection.default_channel, [queue], on_message=lambda message: message.ack()):
            shop.send("note", "delayed", countdown=0.3)
            connection.drain_events(timeout=60)


def mingled(shop: Shop) -> None:
    """Start a worker "two" that hears of another: if that takes more than a second to answer, Celery gives up."""

    def start() -> Worker | None:
        worker = shop.worker(name="two", mingle=True)
        if "mingle: sync with 1 nodes" in worker.output():
            return worker
        worker.stop()
        worker.log.unlink()
        return None

    wait_until(start, "the second worker hears of the first", 150)


def test_mingle_gossip_events_and_remote_control_work_between_workers(make_shop: MakeShop) -> None:
    shop = make_shop(worker_send_task_events=True)
    one = shop.worker(name="one")
    mingled(shop)
    wait_until(lambda: "sync with two@localhost" in one.output(), "gossip tells the first worker of the second")
    both = {"one@localhost", "two@localhost"}
    wait_until(lambda: set(shop.app.control.inspect(timeout=5, limit=2).stats() or ()) == both, "both say how they are")
    ping = partial(shop.app.control.ping, timeout=5, limit=2)
    wait_until(lambda: {name for reply in ping() for name in reply} == both, "both answer")
    seen: list[str] = []
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        sent = False
        for _ in receiver.itercapture(limit=None, timeout=None, wakeup=False):
            if not sent:  # it hears the workers' heartbeats, so it will not miss anything
                shop.send("note", "watched", countdown=0.2)
                sent = True
            if "task-succeeded" in seen:
                break
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


def test_inspect_events_and_a_plain_connection_see_a_delayed_task_as_the_page_on_celerys_calls_says(
    make_shop: MakeShop,
) -> None:
    shop = make_shop(QUICK | {"journal": 10}, task_send_sent_event=True)
    shop.worker("-E")
    inspect = shop.app.control.inspect(timeout=10, limit=1)
    with shop.vhost.plain() as plain:  # the worker gets it at once, and hands it on
        task = "tests.acceptance.shop.note"
        waits = shop.app.send_task(task, ("waits",), countdown=100, connection=plain).id
    wait_until(lambda: [one.id for one in celery_rabbit_delay.scheduled(shop.app)] == [waits], "it waits")
    assert [inspect.scheduled(), inspect.reserved(), inspect.active()] == [{"w@localhost": []}] * 3
    seen: dict[str, dict[str, Any]] = {}
    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(
            connection, handlers={"*": lambda event: seen.update({event["type"]: event})}
        )
        sent = None
        for _ in receiver.itercapture(limit=None, timeout=None, wakeup=False):
            sent = sent or shop.send("note", "watched", countdown=0.5)
            if "task-succeeded" in seen:
                break
    [run] = shop.runs("watched")
    assert seen["task-sent"]["eta"] == run["eta"]
    assert seen["task-received"]["eta"] is None
    assert {seen[which]["uuid"] for which in ("task-sent", "task-received", "task-succeeded")} == {sent}


def test_results_of_delayed_tasks_come_back(make_shop: MakeShop) -> None:
    shop = make_shop(result_backend="rpc://")
    shop.worker()
    result = signature(shop, "note", "answer").apply_async(countdown=0.2)
    assert result.get(timeout=120) == "answer"
    shop.app.backend.result_consumer.stop()


def test_a_worker_configured_by_its_url_alone_works(make_shop: MakeShop) -> None:
    installed = make_shop()
    shop = make_shop(None, broker_url=installed.vhost.url(), broker_transport_options={"rabbit_delay": QUICK})
    shop.worker(name="one")
    mingled(shop)
    installed.send("note", "delayed", countdown=0.3)
    shop.wait_for(1, "delayed")


def prefetch_counts(shop: Shop) -> dict[str, Counter[str]]:
    """Return how many tasks of each queue RabbitMQ sends ahead on a connection, by the connections' names."""
    counts: dict[str, Counter[str]] = {}
    for one in shop.vhost.broker.api("GET", f"/consumers/{shop.vhost.name}"):
        # Of a consumer that has just come or gone, the details of its channel are [].
        if one["queue"]["name"] in ("celery", "mail") and one["channel_details"]:
            of_connection = counts.setdefault(one["channel_details"]["connection_name"], Counter())
            of_connection[one["queue"]["name"]] += one["prefetch_count"]
    return counts


def wait_for_prefetch_count(shop: Shop, count: int, worker: str | None = None) -> str:
    """Wait until one connection, another one than `worker`, has such a count for each queue; return its name."""

    def found() -> str | None:
        counts = prefetch_counts(shop)
        return next(iter(counts), None) if list(counts.values()) == [{"celery": count, "mail": count}] else None

    return wait_until(lambda: (name := found()) and name != worker and name, f"the prefetch count is {count}") or ""


def test_a_worker_fetches_for_all_its_processes_after_a_reconnect_and_when_there_are_more(make_shop: MakeShop) -> None:
    """With quorum queues, for which every RabbitMQ has a prefetch count of each consumer."""
    shop = make_shop(queues="quorum", worker_prefetch_multiplier=1)
    worker = shop.worker("-c", "4")
    for _ in range(3):
        shop.send("sleeps_once")
    shop.wait_for(3, "sleeps once")
    before = wait_for_prefetch_count(shop, 4)
    kombu.pools.reset()  # the connections of this process
    shop.vhost.close_connections()
    shop = make_shop(queues="quorum")
    wait_for_prefetch_count(shop, 4, before)
    shop.app.control.pool_grow(2, reply=True, timeout=60, limit=1)
    wait_for_prefetch_count(shop, 6)
    shrink = partial(shop.app.control.pool_shrink, 2, reply=True, timeout=60, limit=1)
    wait_until(lambda: "ok" in shrink()[0]["w@localhost"], "the new processes are idle, and two can end")
    shop.app.control.pool_grow(3, reply=True, timeout=60, limit=1)
    wait_for_prefetch_count(shop, 7)
    for n in range(20):
        shop.send("note", "delayed", countdown=0.1, queue=("celery", "mail")[n % 2])
    assert not any(run["delivery_info"]["redelivered"] for run in shop.wait_for(20, "delayed"))
    errors = [line for line in worker.output().splitlines() if "ERROR" in line]
    assert not [line for line in errors if "Can't shrink pool" not in line], "but those of attempts that came too soon"

"""Connections of workers and publishers: settings, failures, failover."""

from __future__ import annotations

import contextlib
import shutil
from urllib.parse import quote

import celery
import pytest

from tests.kit.abilities import Ability
from tests.kit.broker import Broker, waiting_for_queues
from tests.kit.node import Node, dead_letters_again, free_port
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop

pytestmark = pytest.mark.shared_vhost

PATIENT = {"task_publish_retry_policy": {"max_retries": 60, "interval_start": 0.5, "interval_step": 0}}


def test_the_first_broker_of_a_list_is_dead(make_shop: MakeShop) -> None:
    alive = make_shop().vhost.url("amqp")
    dead = f"amqp://guest:guest@127.0.0.1:{free_port()}//"
    shop, publisher = make_shop(broker_url=[dead, alive]), make_shop(broker_url=f"{dead};{alive}")
    shop.worker()
    publisher.send("stubborn", 3, 0.1)
    publisher.send("note", "delayed", countdown=0.3)
    shop.wait_for(5)


def test_a_virtual_host_a_user_and_a_password_may_have_odd_characters(make_shop: MakeShop, broker: Broker) -> None:
    name, password, vhost = "ada@shop:1/é", "p@ss:w/o#rd?%2F", "the shop/über & co"
    user, path = quote(name, safe=""), quote(vhost, safe="")
    broker.api("PUT", f"/vhosts/{path}")
    broker.api("PUT", f"/users/{user}", {"password": password, "tags": ""})
    broker.api("PUT", f"/permissions/{path}/{user}", {"configure": ".*", "write": ".*", "read": ".*"})
    try:
        shop = make_shop(broker_url=f"amqp://{user}:{quote(password, safe='')}@127.0.0.1:{broker.node.port}/{path}")
        shop.worker()
        shop.send("stubborn", 3, 0.1)
        shop.wait_for(4)
        assert broker.api("GET", f"/queues/{path}")
    finally:
        broker.api("DELETE", f"/vhosts/{path}")
        broker.api("DELETE", f"/users/{user}")


def ran(shop: Shop) -> set[tuple[str, int]]:
    return {(run["name"], run["retries"]) for run in shop.runs()}


@pytest.mark.long
@pytest.mark.parametrize("wiped", [False, True], ids=["restarted", "wiped"])
def test_a_broker_is_killed_under_a_worker_and_a_publisher(make_shop: MakeShop, wiped: bool) -> None:
    """What was confirmed survives; a broker that comes back empty gets its cascade and its bindings again."""
    with waiting_for_queues(), Node(advanced=dead_letters_again(5)) as node:
        shop = make_shop(broker_url=node.url(), **PATIENT)
        worker = shop.worker()
        shop.send("note", "before", countdown=0.3)
        shop.wait_for(1, "before")
        for n in range(10):
            shop.send("note", f"waits {n}", countdown=21)
        node.kill()
        if wiped:
            shutil.rmtree(node.data / "data")
        node.start()
        for n in range(10):
            shop.send("note", f"after {n}", countdown=0.3)
            shop.send("stubborn", 2, 0.3, f"retries {n}")
        expected = {(f"after {n}", 0) for n in range(10)} | {(f"retries {n}", 2) for n in range(10)}
        if not wiped:
            expected |= {(f"waits {n}", 0) for n in range(10)}
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not expected - ran(shop), "all have run")
        assert not expected - ran(shop), worker.output()


def test_a_worker_whose_connection_falls_silent_connects_again(make_shop: MakeShop, broker: Broker) -> None:
    """Nothing but heartbeats tells it."""
    publisher = make_shop()
    with proxy(broker.node.port) as between:
        url = between.url(publisher.vhost.url("amqp"))
        worker = make_shop(broker_url=url, broker_heartbeat=2).worker()
        publisher.send("note", "before", countdown=0.3)
        publisher.wait_for(1, "before")
        earlier = len(worker.output())  # a worker that is slow to start sends no heartbeats, and connects again already
        between.flowing.clear()
        lost = "connection to broker lost"
        wait_until(lambda: lost in worker.output()[earlier:].lower(), "the worker misses the heartbeats")
        between.flowing.set()
        wait_until(lambda: "Connected to" in worker.output()[earlier:], "the worker connects again")
        publisher.send("note", "after", countdown=0.3)
        publisher.wait_for(1, "after")


@pytest.mark.long
def test_a_broker_may_deny_transient_shared_queues(make_shop: MakeShop, broker: Broker) -> None:
    """As RabbitMQ 4.3 does unless it is told otherwise. Celery before 5.7 would connect to it again and again."""
    if not broker.has(Ability.DENIES_TRANSIENT_QUEUES):
        pytest.skip("this RabbitMQ has no switch for it, and never denies them")
    with Node(conf="deprecated_features.permit.transient_nonexcl_queues = false") as node:
        own = {"control_queue_exclusive": False, "event_queue_exclusive": False} if celery.VERSION < (5, 7) else {}
        shop = make_shop(broker_url=node.url(), **own)
        if celery.VERSION >= (5, 7):
            shop.worker()
            shop.send("note", "delayed", countdown=0.3)
            shop.wait_for(1, "delayed")
            return
        with pytest.raises(
            AssertionError, match=r"use Celery 5\.7; or Celery 5\.6 with control_queue_exclusive = True"
        ):
            shop.worker()
        if celery.VERSION >= (5, 6):
            make_shop(broker_url=node.url()).worker(name="exclusive")

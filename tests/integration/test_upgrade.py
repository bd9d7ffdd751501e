"""A node of RabbitMQ 4.0 with waiting tasks becomes one of 4.3, in place, and from Mnesia to Khepri.

RabbitMQ supports this step by step only, over 4.1 and 4.2, which are not among the packages that tests install.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest

from celery_rabbit_delay.schedule.amqp import reschedule as reschedule_
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from tests.kit.broker import Vhost, lead, own_node, publish, take
from tests.kit.commands import run
from tests.kit.node import find_release
from tests.kit.wait import wait_until

OPTIONS: dict[str, Any] = {"max_delay": 3600, "journal": 0}
COMMAND = ("--tick", "0.01", "--max-delay", "3600")


@pytest.fixture
def old() -> Iterator[Vhost]:
    with own_node(server=find_release("4.0")) as vhost:
        vhost.broker.node.ctl("enable_feature_flag", "all")
        yield vhost


def upgrade(vhost: Vhost, release: str) -> None:
    """Stop a node, and start another release on its data."""
    node = vhost.broker.node
    node.stop()
    node.server = find_release(release)
    node.start()
    vars(vhost.broker).pop("version", None)
    assert ".".join(map(str, vhost.broker.version)).startswith(f"{release}.")


def received(connection: kombu.Connection, amount: int) -> dict[str, float]:
    """Take so many messages; return when each id came, and fail if one comes twice."""
    times: dict[str, float] = {}
    while len(times) < amount:
        for message in take(connection, "q", 1, timeout=120):
            id_ = message.headers["id"]
            assert id_ not in times
            times[id_] = time.time()
    return times


@pytest.mark.long
def test_what_waits_orphaned_cancelled_or_moved_is_so_after_an_upgrade_in_place(old: Vhost) -> None:
    old.declare("q", "gone")
    due: dict[str, float] = {}

    def send(connection: kombu.Connection, id_: str, delay: float, queue: str = "q") -> None:
        due[id_] = time.time() + delay
        publish(connection, delay, queue, {"id": id_, "task": "t"})

    def move(connection: kombu.Connection, id_: str, delay: float) -> None:
        later = datetime.now(timezone.utc) + timedelta(seconds=delay)
        due[id_] = later.timestamp()
        reschedule_.reschedule(connection, id_, later)

    with old.connection(**OPTIONS) as connection:
        lead(connection, "gone")
        send(connection, "orphan", 14, "gone")  # in levels for some seconds
        old.delete_queue("gone")
        for name in [name for name in old.names("queues") if name.endswith("+gone")]:
            old.delete_queue(name)
        for id_, delay in (("round", 60), ("arbitrary", 53.21), ("dropped", 50), ("moved", 2000)):
            send(connection, id_, delay)
        for id_ in ("long", "dropped later"):
            send(connection, id_, 3000)
        waiting_tasks.cancel(connection, ["dropped"])
        move(connection, "moved", 55)
    wait_until(lambda: old.count(old.cascade.orphans) == 1, "it is an orphan")

    upgrade(old, "4.3")

    assert run(old.url("amqp"), "--queue", "q", "verify", options=COMMAND).code == 0
    assert old.count(old.cascade.orphans) == 1
    wait_until(lambda: time.time() > due["orphan"], "the orphan is due, and so listed no more")
    with old.connection(**OPTIONS) as connection:
        listed = {one.id for one in waiting_tasks.scheduled(connection)}
        assert {"long", "dropped later"} <= listed <= due.keys() - {"dropped", "orphan"}
        waiting_tasks.cancel(connection, ["dropped later"])
        move(connection, "long", 5)
        connection.connection.interceptor.learn()
        came = received(connection, 4)
        assert came.keys() == {"round", "arbitrary", "long", "moved"}
        assert [id_ for id_, at in came.items() if at < due[id_]] == []
        assert {one.id for one in waiting_tasks.scheduled(connection)} == set()
    old.declare("gone")
    assert run(old.url("amqp"), "--queue", "gone", "orphans", "replay", options=COMMAND).code == 0
    assert len(old.take("gone", 1)) == 1
    wait_until(lambda: old.count(old.cascade.orphans) == 0, "no orphan is left")

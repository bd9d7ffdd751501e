"""Where RabbitMQ holds messages until a delivery time, they wait in outboxes; elsewhere nothing comes early."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import kombu
import pytest
from amqp import Message

from celery_rabbit_delay import operate
from celery_rabbit_delay.delay.amqp import create, delivery_time
from celery_rabbit_delay.delay.amqp.delivery_time import BrokerClock
from celery_rabbit_delay.delay.core import options as options_
from celery_rabbit_delay.delay.core.headers import X_DELIVERY_TIME
from celery_rabbit_delay.delay.core.options import YEAR
from celery_rabbit_delay.operate.management import Management
from tests.kit.abilities import Ability
from tests.kit.broker import Broker, Vhost, own_node, publish, take, waits_by_time
from tests.kit.commands import Result, management, run
from tests.kit.holding import held_here
from tests.kit.node import cluster
from tests.kit.wait import wait_until

from .conftest import MakeApp

OPTIONS: dict[str, Any] = {"delivery_time": True}

#: Why a test is skipped elsewhere.
NOT_HELD = "quorum queues of RabbitMQ before 4.4 do not hold messages until a delivery time"


@pytest.fixture
def holding(vhost: Vhost) -> Vhost:
    if not vhost.broker.has(Ability.HOLDS_MESSAGES):
        pytest.skip(NOT_HELD)
    return vhost


@pytest.fixture
def held(vhost: Vhost) -> Iterator[Vhost]:
    """Yield a virtual host where messages of this process are held, by RabbitMQ if it can."""
    with nullcontext() if vhost.broker.has(Ability.HOLDS_MESSAGES) else held_here(vhost.url("amqp")):
        yield vhost


@pytest.fixture
def by_time(held: Vhost) -> Iterator[kombu.Connection]:
    """Yield a connection whose messages wait in outboxes."""
    with held.connection(**OPTIONS) as connection:
        assert waits_by_time(connection)
        yield connection


def arrivals(connection: kombu.Connection, queue: str, amount: int) -> list[tuple[Any, float]]:
    """Return so many messages of a queue, and how late each is, in seconds."""
    found: list[tuple[Any, float]] = []

    def on_message(message: Any) -> None:
        found.append((message, time.time() - message.delayed_until.timestamp()))
        message.ack()

    queues = [kombu.Queue(queue, no_declare=True)]
    with kombu.Consumer(connection.channel(), queues, on_message=on_message, auto_declare=False):
        while len(found) < amount:
            connection.drain_events(timeout=60)
    return found


def test_each_delay_is_kept_and_costs_one_queue_of_its_destination(held: Vhost, by_time: kombu.Connection) -> None:
    held.declare("q", "r")
    delays = [0.001, 0.3, 1.1, 0.02, 2, 0.7]
    for delay in delays:
        for queue in ("q", "r"):
            publish(by_time, delay, queue, {"asked": delay})
    for queue in ("q", "r"):
        found = arrivals(by_time, queue, len(delays))
        assert all(late >= 0 for _, late in found)
        assert all(message.headers == {"asked": message.headers["asked"]} for message, _ in found)
        assert [message.headers["asked"] for message, _ in found][-1] == 2, "a long delay holds up no shorter one"
    root = held.cascade.root
    own = [f"{root}.{name}" for name in ("ingest.probe", "orphans", "out.short-lived")]
    assert held.names("queues") == [*own[:2], f"{root}.out.+q", f"{root}.out.+r", own[2], "q", "r"]


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_an_exchange_routes_what_is_due_as_without_a_delay(held: Vhost, by_time: kombu.Connection, kind: str) -> None:
    channel = by_time.default_channel
    channel.exchange_declare("orders", kind, durable=True, auto_delete=False)
    for name in ("one", "two"):
        channel.queue_declare(name, durable=True, auto_delete=False)
        channel.queue_bind(name, "orders", "new", arguments={"kind": "new"} if kind == "headers" else None)
    publish(by_time, 0.3, "new", {"kind": "new"}, exchange="orders")
    for name in ("one", "two"):
        [(message, late)] = arrivals(by_time, name, 1)
        assert late >= 0
        assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == ("orders", "new")
        assert message.headers == {"kind": "new"}


def test_short_lived_queues_share_an_outbox(holding: Vhost, by_time: kombu.Connection) -> None:
    names = []
    for _ in range(3):
        queue = by_time.default_channel.queue_declare("", exclusive=True, auto_delete=True).queue
        publish(by_time, 0.4, queue)
        names.append(queue)
    publish(by_time, 100, names[0])
    for name in names:
        [(_, late)] = arrivals(by_time, name, 1)
        assert late >= 0
    shared = f"{holding.cascade.root}.out.short-lived"
    api = Management(management(holding)[1], holding.name)
    wait_until(lambda: operate.status(by_time, snapshot=api.snapshot()).waiting == 1, "the management API counts it")
    assert [name for name in holding.names("queues") if ".out." in name] == [shared]


@pytest.mark.leaves_orphans
def test_what_somebody_made_up_stops_nothing(holding: Vhost, by_time: kombu.Connection) -> None:
    """What an outbox hands on without the address of a destination becomes an orphan; some never leaves it."""
    holding.declare("q")
    publish(by_time, 0.01)
    arrivals(by_time, "q", 1)
    with holding.plain() as forger:
        for moment in (None, 0, -1, "soon", int(time.time() + 50 * YEAR) * 1000):
            for key, cc in (("@.+q", []), ("@.+q", ["@.=+nowhere", "@.+nowhere"]), ("@.short-lived", ["@.probe"])):
                for _ in range(20):
                    forged = Message("forged", application_headers={"CC": cc, X_DELIVERY_TIME: moment})
                    forger.default_channel.basic_publish(forged, holding.cascade.outbox_ingest, key)
    wait_until(lambda: holding.count(holding.cascade.orphans) == 4 * 3 * 20, "the others are orphans")
    publish(by_time, 0.3)
    [(_, late)] = arrivals(by_time, "q", 1)
    assert late >= 0


def test_a_message_is_cancelled_moved_and_listed_like_any_other(held: Vhost, make_app: MakeApp) -> None:
    from celery_rabbit_delay import cancel, reschedule, scheduled

    app = make_app(options=OPTIONS | {"journal": 0})
    held.declare("celery")
    kept, cancelled, moved = (app.send_task("t", (n,), countdown=countdown) for n, countdown in enumerate((15, 15, 90)))
    assert [one.id for one in scheduled(app)][-1] == moved.id
    cancel(app, cancelled.id)
    reschedule(app, moved.id, countdown=1)
    with app.connection_for_read() as connection:
        found = arrivals(connection, "celery", 2)
    assert {message.headers["id"] for message, _ in found} == {moved.id, kept.id}
    assert all(late >= 0 for _, late in found)
    assert not [name for name in held.names("queues") if ".delay." in name]


def test_a_cascade_with_levels_delivers_what_they_hold_and_gets_no_more(held: Vhost) -> None:
    held.declare("q")
    with held.connection(delivery_time=False) as connection:
        publish(connection, 3.3, headers={"way": "levels"})
    with held.connection(**OPTIONS) as connection:
        assert waits_by_time(connection)
        publish(connection, 1, headers={"way": "time"})
        found = arrivals(connection, "q", 2)
    assert {message.headers["way"] for message, _ in found} == {"time", "levels"}
    assert all(late >= 0 for _, late in found)


def test_many_processes_that_begin_at_once_all_have_messages_wait_by_time(
    held: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a deployment, or after the broker was started again."""

    class Nothing(dict[Any, Any]):
        """Lets each thread be a process that knows nothing."""

        def get(self, key: Any, default: Any = None) -> Any:
            return default

    monkeypatch.setattr(delivery_time, "known", Nothing())
    held.declare("q")

    def begin(number: int) -> bool:
        with held.connection(**OPTIONS) as connection:
            return waits_by_time(connection)

    with ThreadPoolExecutor(48) as threads:
        assert all(threads.map(begin, range(48)))


def test_what_a_process_knows_of_a_broker_is_true_for_all_its_connections(
    held: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.declare("q")
    with held.connection(**OPTIONS) as connection:
        publish(connection, 0.1)
        assert len(arrivals(connection, "q", 1)) == 1
    monkeypatch.delattr(delivery_time, "ask")
    for _ in range(3):
        with held.connection(**OPTIONS) as connection:
            assert waits_by_time(connection)


@pytest.mark.parametrize("ahead", [-30, 0.3, 30])
def test_a_wrong_clock_of_the_publisher_makes_no_message_early(
    held: Vhost, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """By the clock of the publisher, a broker whose clock is 30 s ahead has passed the time at once."""
    held.declare("q")
    real = time.time_ns  # which only this asks for
    monkeypatch.setattr(time, "time_ns", lambda: real() - int(ahead * 1e9))
    with held.connection(**OPTIONS) as connection:
        assert waits_by_time(connection) is (ahead == 0.3)
        sent = time.monotonic()
        publish(connection, 0.5)
        take(connection, "q", 1)
        assert 0.5 <= time.monotonic() - sent < 15


def test_a_publisher_that_creates_nothing_uses_levels_which_setup_creates_for_it(holding: Vhost) -> None:
    holding.declare("q")
    options = ("--tick", "0.01", "--max-delay", "120", "--queue", "q")

    def command(*arguments: str) -> Result:
        return run(holding.url("amqp"), *arguments, *management(holding), options=options)

    planned = command("verify")
    levels = re.findall(r"^missing +(?:queue|exchange) +\S+\.delay\.", planned.out, re.M)
    assert (planned.code, len(levels)) == (3, 2 * 14), planned.out
    assert "14 levels exist" in command("setup").out
    assert command("verify").code == 0
    with holding.connection(**OPTIONS, declare="passive") as connection:
        assert not waits_by_time(connection)
        publish(connection, 0.1)
        [(_, late)] = arrivals(connection, "q", 1)
        assert late >= 0


def test_a_broker_without_it_is_noticed_and_messages_pass_levels(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    if vhost.broker.has(Ability.HOLDS_MESSAGES):
        pytest.skip("the quorum queues of this RabbitMQ hold messages until a delivery time")
    monkeypatch.setattr(options_, "HOLDS_MESSAGES", (3, 10))
    vhost.declare("q")
    with vhost.connection(**OPTIONS) as connection:
        assert not waits_by_time(connection)
        publish(connection, 0.3)
        [(_, late)] = arrivals(connection, "q", 1)
        assert late >= 0
    assert len([name for name in vhost.names("queues") if ".delay." in name]) == 14


@pytest.mark.parametrize("how", ["consumed", "fetched"])
def test_what_a_queue_let_out_too_early_waits_on_also_without_a_worker(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    vhost.declare("q")
    with vhost.connection(**OPTIONS) as connection:
        with monkeypatch.context() as patched:
            far_behind = BrokerClock(0, time.monotonic_ns(), 0)
            patched.setattr(options_, "HOLDS_MESSAGES", (3, 10))
            patched.setattr(create, "choose", lambda *_: (replace(vhost.cascade, by_time=True), far_behind))
            sent = time.time()
            for _ in range(2):
                publish(connection, 8, headers={"mine": 1})
        wait_until(lambda: vhost.count("q") == 2, "both came at once")
        if how == "fetched":
            assert connection.channel().basic_get("q") is None
        found = arrivals(connection, "q", 2)
        assert time.time() - sent >= 8
    assert all(late >= 0 and message.headers == {"mine": 1} for message, late in found)
    assert all(message.delivery_info["routing_key"] == "q" for message, _ in found)


@pytest.mark.long
def test_what_waits_survives_the_kill_of_the_only_node() -> None:
    with own_node() as vhost:
        if not vhost.broker.has(Ability.HOLDS_MESSAGES):
            pytest.skip(NOT_HELD)
        vhost.declare("q")
        with vhost.connection(**OPTIONS) as connection:
            publish(connection, 0.001)
            take(connection, "q", 1)
            wait_until(lambda: vhost.broker.node.has_registered(".out.+q"), "the node has written down what it has")
            for n in range(300):
                publish(connection, 8 + n % 10, headers={"n": n})
            vhost.broker.node.kill()
        vhost.broker.node.start()
        with vhost.connection(**OPTIONS) as connection:
            found = arrivals(connection, "q", 300)
        assert {message.headers["n"] for message, _ in found} == set(range(300))
        assert all(late >= 0 for _, late in found)


@pytest.mark.long
def test_what_waits_in_a_cluster_comes_on_time_without_one_node() -> None:
    with cluster(3, plugins=("rabbitmq_management",)) as nodes:
        if not (broker := Broker(nodes[0])).has(Ability.HOLDS_MESSAGES):
            pytest.skip(NOT_HELD)
        vhost = broker.add_vhost()
        vhost.declare("q")
        with vhost.connection(**OPTIONS) as connection:
            assert waits_by_time(connection)
            channel = connection.default_channel
            channel.queue_declare("r", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
            for n in range(200):
                publish(connection, 10 + n % 5, "r", headers={"n": n})
            leader = vhost.broker.api("GET", f"/queues/{vhost.name}/{vhost.cascade.root}.out.%2Br")["leader"]
            lost = next((node for node in nodes[1:] if node.name == leader), nodes[1])
            lost.kill()
            found = arrivals(connection, "r", 200)
        assert {message.headers["n"] for message, _ in found} == set(range(200))
        assert all(late >= 0 for _, late in found)


def test_commands_know_a_cascade_without_levels(holding: Vhost) -> None:
    holding.declare("q")
    url, own = holding.url("amqp"), ("--tick", "0.01", "--max-delay", "120", "--delivery-time", "--queue", "q")

    def command(*arguments: str) -> Result:
        return run(url, *arguments, options=own)

    status = command("status")
    assert (status.code, "there is no cascade" in status.out) == (3, True)
    assert "0 levels exist\nRabbitMQ holds each message until it is due, in the outbox" in command("setup").out
    assert not [name for name in holding.names("queues") if ".delay." in name or ".out.1" in name]
    for more in ((), management(holding)):
        found = command("verify", *more)
        assert (found.code, found.err) == (0, ""), found.text
    exported = json.loads(command("export").out)
    assert {queue["name"] for queue in exported["queues"]} <= {*holding.names("queues")}
    with holding.connection(**OPTIONS) as connection:
        for _ in range(3):
            publish(connection, 100)
    assert command("status").out.startswith("0 wait, besides those that RabbitMQ holds")
    wait_until(lambda: command("status", *management(holding)).out.startswith("3 wait"), "all are counted")
    counted = json.loads(command("status", "--json", *management(holding)).out)
    assert (counted["waiting"], counted["stuck"], counted["levels"]) == (3, [], [])
    assert [(one["delay"], one["ready"]) for one in counted["outboxes"]] == [(0, 3)]
    measured = command("metrics", *management(holding)).out
    assert re.search(r'_outbox_messages{delay_seconds="0",destination="queue .q.",outbox=".*"} 3\.0$', measured, re.M)
    refused = command("teardown", "--yes", *management(holding))
    assert "3 messages wait" in refused.err
    with holding.connection(delivery_time=False) as connection:
        publish(connection, 2.003)
        assert len([name for name in holding.names("queues") if ".delay." in name]) == 14
    assert command("teardown", "--yes", "--delete-messages", *management(holding)).code == 0
    assert holding.names("queues") == ["q"]
    assert holding.names("exchanges") == []

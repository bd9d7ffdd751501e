"""A cascade of an earlier release beside a new one: nothing is published into it, and its messages can be moved."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import kombu
import pytest
from amqp import Message

from celery_rabbit_delay import LayoutMismatch, operate
from celery_rabbit_delay.amqp.waiting import Allowed
from celery_rabbit_delay.core.headers import HEADER
from celery_rabbit_delay.core.layouts import Layout1
from celery_rabbit_delay.core.topology import LAYOUT
from testkit.broker import Vhost, take
from testkit.commands import management, run
from testkit.wait import wait_until

#: What the code at 5b6fcca, the last with layout 1, exported for the queue "q" with the options `QUICK`.
DEFINITIONS = json.loads((Path(__file__).parent / "layout_1.json").read_text())


def declare_layout_1(vhost: Vhost, amount: int, delay: float = 100, level: int = 13) -> Layout1:
    """Declare what an earlier version left on a broker, with some messages for the queue "q" in one of its levels."""
    vhost.broker.api("POST", f"/definitions/{vhost.name}", DEFINITIONS)
    ours = {"prefix": "celery-rabbit-delay", "exchange": "", "due": round((time.time() + delay) * 1000)}
    headers = {"a": 1, "CC": ["q", "@.+q"], HEADER: ours}
    earlier = Layout1(vhost.cascade)
    with vhost.plain() as connection:
        channel = connection.default_channel
        for n in range(amount):
            channel.basic_publish(Message(str(n), application_headers=headers), earlier.ingest, f"@.^{level}")
    return earlier


def test_a_passive_publisher_is_told_which_layout_is_there_which_is_needed_and_what_to_do(vhost: Vhost) -> None:
    vhost.declare("q")
    declare_layout_1(vhost, 0)
    setup, migrate = "`celery -A APP delay setup`", "`celery -A APP delay migrate --from-layout 1`"
    says = f"has layout 1 .* needs layout 2, .*run {setup} .*{migrate}"
    with vhost.connection(declare="passive") as connection, pytest.raises(LayoutMismatch, match=says):
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})


def test_an_upgraded_publisher_needs_nobody_to_do_anything(vhost: Vhost) -> None:
    vhost.declare("q")
    earlier = declare_layout_1(vhost, 3)
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
        assert len(take(connection, "q", 1)) == 1
    assert vhost.count(earlier.levels[13].queue) == 3


def test_what_waits_in_an_earlier_layout_arrives_unless_it_is_moved(vhost: Vhost) -> None:
    vhost.declare("q")
    declare_layout_1(vhost, 3, 0.32, level=5)
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
        messages = take(connection, "q", 4)
    assert sorted(str(message.headers) for message in messages) == ["{'a': 1}"] * 3 + ["{}"]


def test_nobody_is_told_to_move_what_is_in_a_later_layout(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.plain() as connection:
        later = vhost.cascade.root_of(LAYOUT + 1)
        connection.default_channel.exchange_declare(later, "direct", durable=True, auto_delete=False)
    says = f"has layout {LAYOUT + 1} .* needs layout {LAYOUT}, .*upgrade this process"
    with vhost.connection(declare="passive") as connection, pytest.raises(LayoutMismatch, match=says):
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})


@pytest.mark.parametrize("command", ["plan", "verify"])
def test_commands_tell_of_an_earlier_layout(vhost: Vhost, command: str) -> None:
    vhost.declare("q")
    declare_layout_1(vhost, 3)
    assert run(vhost.url("amqp"), "setup").code == 0
    told = run(vhost.url("amqp"), command)
    assert told.code == 3
    assert "layout 1, of an earlier release, exists too and holds 3 messages" in told.out
    assert "`migrate --from-layout 1` moves the messages" in told.out


def test_what_waits_in_an_earlier_layout_can_be_moved_and_the_rest_removed(vhost: Vhost) -> None:
    vhost.declare("q")
    due = time.time() + 30
    declare_layout_1(vhost, 20, 30)
    url = vhost.url("amqp")
    refused = run(url, "teardown", "--layout", "1", "--yes")
    assert (refused.code, "--layout needs --management-url" in refused.err) == (2, True)
    refused = run(url, "teardown", "--layout", "1", "--yes", *management(vhost))
    assert (refused.code, "20 messages wait" in refused.err) == (1, True)
    moved = run(url, "--queue", "q", "migrate", "--from-layout", "1")
    assert (moved.code, moved.out) == (0, "20 moved, 0 left\n")
    assert run(url, "teardown", "--layout", "1", "--yes", *management(vhost)).code == 0
    names = vhost.names("queues") + vhost.names("exchanges")
    assert [name for name in names if not name.startswith("celery-rabbit-delay.v2.")] == ["q"]
    with vhost.connection() as connection:
        messages = take(connection, "q", 20)
        assert time.time() >= due
    assert {str(message.headers) for message in messages} == {"{'a': 1}"}


def test_what_waits_for_a_named_exchange_in_an_earlier_layout_arrives(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.declare("new", exchange="orders")
    declare_layout_1(vhost, 0)
    root, address = "celery-rabbit-delay", "@.orders+new"
    ours = {"prefix": root, "exchange": "orders", "due": round((time.time() + 0.32) * 1000)}
    with vhost.plain() as connection:
        channel = connection.default_channel
        for destination in ("orders", f"{root}.guard"):  # as the code at 5b6fcca binds them
            channel.exchange_bind(destination, f"{root}.done", address)
        channel.queue_bind("new", f"{root}.guard", address)
        message = Message("x", application_headers={"a": 1, "CC": ["new", address], HEADER: ours})
        channel.basic_publish(message, f"{root}.ingest", "@.^5")
    with vhost.connection() as connection:
        [message] = take(connection, "new", 1)
    assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == ("orders", "new")
    assert message.headers == {"a": 1}


def test_what_a_full_queue_holds_up_in_an_earlier_layout_is_counted(vhost: Vhost) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with vhost.plain() as connection:
        connection.default_channel.queue_declare("q", durable=True, auto_delete=False, arguments=arguments)
    earlier = declare_layout_1(vhost, 4, 0, level=2)
    wait_until(lambda: vhost.count("q") == 1, "the queue is full")
    vhost.delete_queue(earlier.levels[0].queue)  # a level that somebody has deleted hides no other
    refused = run(vhost.url("amqp"), "teardown", "--layout", "1", "--yes", *management(vhost))
    assert (refused.code, "3 messages wait" in refused.err) == (1, True)
    moved = run(vhost.url("amqp"), "--queue", "q", "migrate", "--from-layout", "1", *management(vhost))
    assert (moved.code, moved.out) == (3, "0 moved, 3 left\n")
    removed = run(vhost.url("amqp"), "teardown", "--layout", "1", "--yes", "--delete-messages")
    assert removed.code == 0


@pytest.mark.parametrize("high", [False, True], ids=["normal", "high"])
def test_what_waits_for_a_named_exchange_in_an_earlier_layout_can_be_moved(vhost: Vhost, high: bool) -> None:
    vhost.declare("q")
    vhost.declare("new", exchange="orders")
    declare_layout_1(vhost, 0)
    earlier = Layout1(replace(vhost.cascade, high=high))
    ours = {"prefix": "celery-rabbit-delay", "exchange": "orders", "due": round((time.time() + 12) * 1000)}
    headers = {"a": 1, "CC": ["new", "@.orders+new"], HEADER: ours}
    with vhost.plain() as connection:
        channel = connection.default_channel
        if high:  # the definitions have only the levels for normal priorities
            channel.exchange_declare(earlier.ingest, "topic", durable=True, auto_delete=False)
            for level in earlier.levels:
                channel.queue_declare(level.queue, durable=True, auto_delete=False)
            channel.queue_bind(earlier.levels[13].queue, earlier.ingest, "@.^13.#")
        message = Message("x", application_headers=headers, priority=9 if high else 0)
        channel.basic_publish(message, earlier.ingest, "@.^13")
    queue = kombu.Queue("new", kombu.Exchange("orders"))
    with vhost.connection() as source, vhost.connection() as target:
        cascades = operate.earlier_layout(source, 1)
        moved = list(operate.migrate(source, target, cascades, Allowed([queue])))
        assert [one.refused for one in moved] == [None]
        [message] = take(target, "new", 1)
    assert (message.delivery_info["exchange"], message.delivery_info["routing_key"]) == ("orders", "new")
    assert message.headers == {"a": 1}

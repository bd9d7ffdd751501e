"""An earlier release's cascade beside ours: nothing is published onto it, and what waits in it can be moved."""

from __future__ import annotations

import time

import pytest
from amqp import Message

from celery_rabbit_delay import LayoutMismatch
from celery_rabbit_delay.core.headers import HEADER
from celery_rabbit_delay.core.layouts import Layout1
from testkit.broker import Vhost, take
from testkit.commands import run


def declare_layout_1(vhost: Vhost, delay: float, amount: int) -> Layout1:
    """What 0.1.0 left on a broker: some messages in a level, for the queue "q"."""
    earlier = Layout1(vhost.cascade)
    with vhost.plain() as connection:
        channel = connection.default_channel
        for name in earlier.exchange_names():
            channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
        for name in earlier.queue_names():
            channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(earlier.levels[5].queue, earlier.ingest, "@.^5")
        ours = {"prefix": "celery-rabbit-delay", "exchange": "", "due": round((time.time() + delay) * 1000)}
        headers = {"a": 1, "CC": ["q", "@.+q"], HEADER: ours}
        for n in range(amount):
            channel.basic_publish(Message(str(n), application_headers=headers), earlier.ingest, "@.^5")
    return earlier


def test_a_passive_publisher_is_told_which_layout_is_there_which_is_needed_and_what_to_do(vhost: Vhost) -> None:
    vhost.declare("q")
    declare_layout_1(vhost, 100, 0)
    says = r"has layout 1 .* needs layout 2, .*run `celery -A APP delay setup` .*`celery -A APP delay migrate --from-"
    with vhost.connection(declare="passive") as connection, pytest.raises(LayoutMismatch, match=says):
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})


def test_an_upgraded_publisher_needs_nobody_to_do_anything(vhost: Vhost) -> None:
    vhost.declare("q")
    earlier = declare_layout_1(vhost, 100, 3)
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 30})
        assert len(take(connection, "q", 1)) == 1
    assert vhost.count(earlier.levels[5].queue) == 3


@pytest.mark.parametrize("command", ["plan", "verify"])
def test_commands_tell_of_an_earlier_layout(vhost: Vhost, command: str) -> None:
    declare_layout_1(vhost, 100, 3)
    assert run(vhost.url("amqp"), "setup").code == 0
    told = run(vhost.url("amqp"), command)
    assert told.code == 3
    assert "layout 1, of an earlier release, exists too and holds 3 messages" in told.out
    assert "`migrate --from-layout 1` moves what waits" in told.out


def test_what_waits_in_an_earlier_layout_can_be_moved_and_the_rest_removed(vhost: Vhost) -> None:
    vhost.declare("q")
    declare_layout_1(vhost, 8, 20)
    due = time.time() + 7.9
    url = vhost.url("amqp")
    refused = run(url, "teardown", "--layout", "1", "--yes")
    assert (refused.code, "20 messages wait" in refused.err) == (1, True)
    moved = run(url, "--queue", "q", "migrate", "--from-layout", "1")
    assert (moved.code, moved.out) == (0, "20 moved, 0 left\n")
    assert run(url, "teardown", "--layout", "1", "--yes").code == 0
    names = vhost.names("queues") + vhost.names("exchanges")
    assert [name for name in names if not name.startswith("celery-rabbit-delay.v2.")] == ["q"]
    with vhost.connection() as connection:
        messages = take(connection, "q", 20)
        assert time.time() >= due
    assert {str(message.headers) for message in messages} == {"{'a': 1}"}

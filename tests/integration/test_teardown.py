"""Cascades are deleted."""

from __future__ import annotations

import pytest

from celery_rabbit_delay import Options, operate
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.operate.broker_connection import connected
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from tests.kit.broker import QUICK, REFUSING, Vhost, publish, take
from tests.kit.commands import CASCADE, make_orphans, management, run
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

Q = Destination("", "q")


def test_a_prefix_drains_beside_its_successor_and_is_then_deleted(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp")
    with vhost.connection(journal=0) as old, vhost.connection(prefix="new") as new:
        for id_ in ("runs", "cancelled"):
            publish(old, 3, correlation_id=id_)
        publish(new, 4, correlation_id="of the new one")
        waiting_tasks.cancel(old, ["cancelled"])
        arrived = [message.properties["correlation_id"] for message in take(new, "q", 2)]
    assert arrived == ["runs", "of the new one"]
    wait_until(lambda: run(url, "status", *management(vhost)).out.startswith("0 wait"), "nothing waits there")
    assert run(url, "--queue", "q", "teardown", "--yes", *management(vhost)).code == 0
    assert {name.partition(".")[0] for name in vhost.names("queues")} == {"new", "q"}


@pytest.mark.long
@pytest.mark.own_vhost
def test_teardown_removes_what_is_ours_and_nothing_else(vhost: Vhost) -> None:
    vhost.declare("q", exchange="e")
    url = vhost.url("amqp")
    assert run(url, "--prefix", "other", "setup").code == 0
    others = vhost.names("queues"), vhost.names("exchanges"), vhost.bindings()
    assert run(url, "--queue", "q", "setup").code == 0
    assert run(url, "teardown").code == 1  # nobody answers the question
    done = run(url, "--queue", "q", "teardown", "--yes")
    outboxes = len(Options(**QUICK).outbox_ticks) + 2
    assert (done.code, f"{outboxes} outboxes stay" in done.out) == (0, True)
    left = [name for name in vhost.names("queues") if ".out." not in name or name in others[0]]
    assert (left, vhost.names("exchanges"), vhost.bindings()) == others
    assert run(url, "teardown", "--yes", *management(vhost)).out == f"{outboxes} exchanges and queues deleted\n"
    assert (vhost.names("queues"), vhost.names("exchanges"), vhost.bindings()) == others
    assert run(url, "teardown", "--yes").out == "there is no such cascade\n"


@pytest.mark.more
def test_longer_levels_that_others_added_are_seen_and_removed(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, 100, correlation_id="a")
    short = ("--tick", str(QUICK["tick"]), "--max-delay", "1")
    assert "1 wait" in run(vhost.url("amqp"), "status", options=short).out
    assert run(vhost.url("amqp"), "--queue", "q", "teardown", "--yes", options=short).code == 1
    assert run(vhost.url("amqp"), "teardown", "--yes", "--delete-messages", options=short).code == 0
    assert vhost.names("exchanges") == []
    left = vhost.names("queues")
    assert [name for name in left if not name.startswith(f"{CASCADE.root}.out.")] == ["q"]
    assert CASCADE.outbox_name(Q) in left
    assert run(vhost.url("amqp"), "teardown", "--yes", *management(vhost), options=short).code == 0
    assert vhost.names("queues") == ["q"]


def test_a_cascade_of_another_tick_is_left_alone(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    before = vhost.names("queues"), vhost.names("exchanges")
    for command in (("teardown", "--yes"), ("status",)):
        run(vhost.url("amqp"), *command, options=("--tick", "0.5"))
    assert (vhost.names("queues"), vhost.names("exchanges")) == before
    assert sum(vhost.waiting().values()) == 1


@pytest.mark.leaves_orphans
def test_teardown_refuses_while_messages_are_held(vhost: Vhost) -> None:
    make_orphans(vhost, 1)
    vhost.declare("q")

    def refuses(says: str) -> None:
        before = vhost.names("queues"), vhost.names("exchanges")
        for more in ((), management(vhost)):
            refused = run(vhost.url("amqp"), "teardown", "--yes", *more)
            assert (refused.code, says in refused.err) == (1, True), refused.err
        assert (vhost.names("queues"), vhost.names("exchanges")) == before

    refuses("0 messages wait and 1 are orphans")
    assert run(vhost.url("amqp"), "orphans", "purge", "--yes", "--any-queue").code == 0
    vhost.publish("q", 100)
    refuses("1 messages wait and 0 are orphans")
    assert run(vhost.url("amqp"), "teardown", "--yes", "--delete-messages", *management(vhost)).code == 0
    assert not [name for name in vhost.names("queues") if name.startswith("celery-rabbit-delay")]


@pytest.mark.own_vhost
def test_teardown_deletes_nothing_while_a_leader_does_not_answer(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    [level] = vhost.waiting()
    queue = f'rabbit_amqqueue:lookup(rabbit_misc:r(<<"{vhost.name}">>, queue, <<"{level}">>))'
    vhost.broker.node.ctl("eval", f"sys:suspend(amqqueue:get_pid(element(2, {queue}))).")
    with pytest.raises(TimeoutError), connected(vhost.connection(confirm_timeout=2)) as connection:
        operate.teardown(connection, [])
    vhost.broker.node.ctl("eval", f"sys:resume(amqqueue:get_pid(element(2, {queue}))).")
    assert vhost.waiting() == {level: 1}


@pytest.mark.long
def test_teardown_deletes_nothing_that_is_stuck_in_an_outbox(vhost: Vhost) -> None:
    vhost.declare("full", arguments=REFUSING)
    vhost.publish("full", *[0.05] * 4)
    outbox = CASCADE.outbox_name(Destination("", "full"))
    wait_until(lambda: vhost.count("full") == 1, "the queue is full")
    url = vhost.url("amqp")
    done = run(url, "--queue", "full", "teardown", "--yes", *management(vhost))
    assert (done.code, "3 messages wait" in done.err) == (1, True)
    assert "7 outboxes stay" in run(url, "--queue", "full", "teardown", "--yes").out
    left = vhost.names("queues")
    assert ([name for name in left if ".out." not in name], len(left), outbox in left) == (["full"], 8, True)
    # At once, although the management API counts every five seconds.
    done = run(url, "--queue", "full", "teardown", "--yes", *management(vhost))
    assert (done.code, "3 messages wait" in done.err) == (1, True)
    assert run(url, "--queue", "full", "teardown", "--yes", "--delete-messages").code == 0
    assert vhost.names("queues") == ["full"]


@pytest.mark.more
def test_teardown_deletes_the_markers_of_other_longest_delays(vhost: Vhost) -> None:
    for delay in ("1", "120", "100000"):
        assert run(vhost.url("amqp"), "setup", options=("--tick", "0.01", "--max-delay", delay)).code == 0
    assert run(vhost.url("amqp"), "teardown", "--yes", *management(vhost)).code == 0
    assert (vhost.names("queues"), vhost.names("exchanges")) == ([], [])

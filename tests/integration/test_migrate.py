"""Waiting messages move to another cascade, and cascades are deleted."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner

from celery_rabbit_delay import DelayError, Options, operate
from celery_rabbit_delay.amqp import reschedule as reschedule_
from celery_rabbit_delay.amqp import schedule as schedule_
from celery_rabbit_delay.amqp.receiving import known_to
from celery_rabbit_delay.amqp.reschedule import move
from celery_rabbit_delay.cli.groups import standalone
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.operate import Management
from tests.kit.broker import QUICK, REFUSING, Vhost, lead, publish, take, wait_to_learn
from tests.kit.commands import CASCADE, QUICKLY, make_orphans, management, run, running
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

Q = Destination("", ("q",))
NEW: dict[str, Any] = QUICK | {"prefix": "new", "tick": 1}  # few levels
TO_NEW = ("--any-queue", "--to-prefix", "new", "--to-tick", "1")


def recorded(vhost: Vhost, **options: Any) -> list[str]:
    """Return the ids of what waits with a record, the soonest first; none if nothing was ever recorded."""
    with vhost.connection(**options) as connection:
        return [one.id for one in schedule_.scheduled(connection)]


@pytest.mark.long
def test_what_waits_moves_and_is_due_when_it_was_due_anyway(vhost: Vhost) -> None:
    vhost.declare("q", "bound", exchange="e", kind="topic")
    assert run(vhost.url("amqp"), "setup", "--priorities").code == 0
    due = datetime.now(timezone.utc) + timedelta(seconds=20)
    headers = {"task": "t", "id": "1", "eta": due.isoformat(), "CC": ["q"]}
    with vhost.connection(journal=0) as connection:
        producer = connection.Producer()
        for priority in (0, 9):
            producer.publish("plain", routing_key="q", headers={**headers, "CC": []}, priority=priority)
            producer.publish("exchange", exchange="e", routing_key="bound", headers=headers, priority=priority)
        publish(connection, 100)
    moved = run(vhost.url("amqp"), "migrate", *TO_NEW, "--to-journal", "0")
    assert (moved.code, moved.out) == (0, "5 moved, 0 left\n"), moved.err
    assert (recorded(vhost), len(recorded(vhost, **NEW))) == ([], 5)
    with vhost.connection() as connection:
        messages = take(connection, "q", 4)
        assert time.time() >= due.timestamp()
        assert Counter(message.payload for message in messages) == {"plain": 2, "exchange": 2}
        for message in messages:
            assert message.headers.pop("x-delay-of")["id"] == "1"
            assert message.headers.pop("x-delay-sent") is not None
            assert abs(datetime.fromisoformat(message.headers.pop("eta")) - due) < timedelta(milliseconds=2)
            cc = {"CC": ["q"]} if message.payload == "exchange" else {}
            assert message.headers == {"task": "t", "id": "1", **cc}
        assert len(take(connection, "bound", 2)) == 2
        publish(connection, 0.1, correlation_id="after the copies that are void")
        assert [one.properties["correlation_id"] for one in take(connection, "q", 1)] == [
            "after the copies that are void"
        ]


@pytest.mark.parametrize("named", ["by an option", "by a variable"])
def test_what_waits_moves_to_another_broker(vhost: Vhost, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        for id_ in ("a", "b"):
            publish(connection, 100, correlation_id=id_)
    with vhost.broker.vhost() as other:
        other.declare("q")
        where = ["--to-broker", other.url("amqp")]
        if named == "by a variable":
            where = []
            monkeypatch.setenv("CELERY_RABBIT_DELAY_TO_BROKER", other.url("amqp"))
        moved = run(vhost.url("amqp"), "migrate", "--any-queue", *where)
        assert (moved.code, moved.out) == (0, "2 moved, 0 left\n"), moved.err
        assert (recorded(vhost), recorded(other)) == ([], ["a", "b"])
        wait_until(lambda: not [name for name in other.names("queues") if "migrate" in name], "nothing is left of it")


@pytest.mark.parametrize("destination", ["nowhere", "short"])
def test_a_message_that_cannot_be_moved_stays(vhost: Vhost, destination: str) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, 100, correlation_id="a")
    with vhost.broker.vhost() as other:
        where = ["--to-broker", other.url("amqp")]  # without the queue
        if destination == "short":
            where = ["--to-prefix", "new", "--to-max-delay", "10"]
        failed = run(vhost.url("amqp"), "migrate", "--any-queue", *where)
    assert (failed.code, failed.out) == (3, "0 moved, 1 left\n")
    assert ("does not exist" if destination == "nowhere" else "more than the option max_delay, 10 s") in failed.err
    assert recorded(vhost) == ["a"]


def test_what_has_no_record_or_is_nearly_due_or_cancelled_is_no_longer_moved(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as connection, vhost.connection() as unrecorded:
        publish(unrecorded, 50)
        publish(connection, 1, correlation_id="nearly due")
        for number in range(10):
            publish(connection, 100, correlation_id=str(number))
        schedule_.cancel(connection, ["3", "5"])
        reschedule_.reschedule(connection, "7", datetime.now(timezone.utc) + timedelta(seconds=110))
    moved = run(vhost.url("amqp"), "migrate", *TO_NEW)
    assert (moved.code, moved.out) == (0, "8 moved, 0 left\n")
    assert "tasks without a record stay" in moved.err
    assert sorted(recorded(vhost, **NEW)) == list("01246789")


def test_reasons_of_many_that_stay_are_few_lines(vhost: Vhost) -> None:
    vhost.declare("q", "secret")
    with vhost.connection() as connection:
        for queue in ["q"] + ["secret"] * 25:
            publish(connection, 100, queue)
    moved = run(vhost.url("amqp"), "--queue", "q", "migrate", "--to-prefix", "new")
    assert (moved.code, moved.out) == (3, "1 moved, 25 left\n")
    assert moved.err.count("queue 'secret' is not one of the allowed queues") == 20
    assert "and 5 more\n" in moved.err


def test_without_another_place_nothing_moves(vhost: Vhost) -> None:
    refused = run(vhost.url("amqp"), "migrate", "--to-max-delay", "1000")
    assert refused.code == 2
    assert "name the target with --to-prefix, --to-tick" in refused.err


@pytest.mark.long
def test_a_migration_killed_again_and_again_loses_nothing(vhost: Vhost) -> None:
    vhost.declare("q")
    amount = 100
    with vhost.connection() as connection:
        for number in range(amount):
            publish(connection, 100, correlation_id=str(number))
    for least in (1, 25, 50):
        with running(vhost.url("amqp"), "migrate", *TO_NEW):  # killed in the end
            wait_until(lambda least=least: len(recorded(vhost, **NEW)) >= least, "some have moved")  # type: ignore[misc]
    assert run(vhost.url("amqp"), "migrate", *TO_NEW).code == 0
    found = recorded(vhost, **NEW)
    assert (recorded(vhost), set(found)) == ([], set(map(str, range(amount))))
    assert len(found) <= amount + 3


def test_a_migration_that_is_interrupted_ends_between_two_messages(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        for number in range(12):
            publish(connection, 100, correlation_id=str(number))
    moves: list[None] = []

    def press(*args: Any, **options: Any) -> None:
        move(*args, **options)
        moves.append(None)
        if len(moves) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as pressing:
        pressing.setattr(sys.modules[operate.migrate.__module__], "move", press)
        interrupted = CliRunner().invoke(
            standalone, ["--broker", vhost.url("amqp"), *QUICKLY, "migrate", *TO_NEW], catch_exceptions=False
        )
    assert (interrupted.exit_code, interrupted.stdout) == (130, "5 moved, 0 left\n")
    assert interrupted.output.endswith("interrupted: run this again to move the others\n")
    assert len(recorded(vhost)) == 7
    assert run(vhost.url("amqp"), "migrate", *TO_NEW).out == "7 moved, 0 left\n"
    assert len(recorded(vhost, **NEW)) == 12


def test_what_is_cancelled_while_others_are_moved_does_not_move(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as source, vhost.connection(**NEW) as target:
        for id_ in ("a", "b", "c"):
            publish(source, 100, correlation_id=id_)
        moving = operate.migrate(source, target)
        next(moving)
        with vhost.connection() as other:
            schedule_.cancel(other, ["a", "b", "c"])
        wait_to_learn(source, lambda: known_to[source].changes.cancels("c"))
        assert list(moving) == []
        assert len(recorded(vhost, prefix="new")) == 1


@pytest.mark.long
@pytest.mark.own_vhost
def test_teardown_removes_what_is_ours_and_nothing_else(vhost: Vhost) -> None:
    vhost.declare("q", exchange="e")
    url = vhost.url("amqp")
    assert run(url, "--prefix", "other", "setup").code == 0
    others = vhost.names("queues"), vhost.names("exchanges"), vhost.bindings()
    assert run(url, "--queue", "q", "setup", "--priorities").code == 0
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
def test_longer_levels_that_others_added_are_seen_moved_and_removed(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    short = ("--tick", str(QUICK["tick"]), "--max-delay", "1")
    assert "1 wait" in run(vhost.url("amqp"), "status", options=short).out
    moved = run(vhost.url("amqp"), "migrate", "--any-queue", *TO_NEW[1:3], "--to-max-delay", "120", options=short)
    assert (moved.code, moved.out) == (0, "1 moved, 0 left\n")
    assert run(vhost.url("amqp"), "teardown", "--yes", options=short).code == 0
    assert [name for name in vhost.names("exchanges") if not name.startswith("new.")] == []
    left = [name for name in vhost.names("queues") if not name.startswith("new.")]
    assert [name for name in left if not name.startswith(f"{CASCADE.root}.out.")] == ["q"]
    assert CASCADE.outbox_name(Q) in left
    assert run(vhost.url("amqp"), "teardown", "--yes", *management(vhost), options=short).code == 0
    assert [name for name in vhost.names("queues") if not name.startswith("new.")] == ["q"]


def test_a_cascade_of_another_tick_is_left_alone(vhost: Vhost) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    before = vhost.names("queues"), vhost.names("exchanges")
    for command in (("teardown", "--yes"), ("migrate", *TO_NEW), ("status",)):
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


def test_teardown_drops_any_number_of_cancelled_messages_and_holds_few_others(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[operate.teardown.__module__], "_AT_MOST", 2)
    vhost.declare("q")
    with vhost.connection() as connection:
        for id_ in ("a", "b", "c"):
            publish(connection, 100, correlation_id=id_)
        schedule_.cancel(connection, ["the stream is there"])
        with pytest.raises(DelayError, match="2 messages wait or more"):
            operate.teardown(connection, [Q])
        wait_until(lambda: sum(vhost.waiting().values()) == 3, "they are back")
        schedule_.cancel(connection, ["a", "b", "c"])
        assert operate.teardown(connection, [Q]).dropped == 3


@pytest.mark.more
def test_teardown_passes_where_only_cancelled_messages_wait(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp")
    with vhost.connection() as connection:
        for id_, delay in (("level", 100), ("outbox", 60), ("other", 100)):
            publish(connection, delay, headers={"id": id_})
        assert len({queue for queue in vhost.names("queues") if vhost.count(queue)}) > 1
        schedule_.cancel(connection, ["level", "outbox"])
    refused = run(url, "--queue", "q", "teardown", "--yes")
    assert (refused.code, "1 messages wait and 0 are orphans" in refused.err) == (1, True)
    assert run(url, "cancel", "other").code == 0
    done = run(url, "--queue", "q", "teardown", "--yes", *management(vhost))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("1 message gone: cancelled, moved, replaced, or due meanwhile\n")
    assert vhost.names("queues") == ["q"]


@pytest.mark.long
def test_teardown_deletes_nothing_that_is_stuck_in_an_outbox(vhost: Vhost) -> None:
    vhost.declare("full", arguments=REFUSING)
    vhost.publish("full", *[0.05] * 4)
    outbox = CASCADE.outbox_name(Destination("", ("full",)))
    wait_until(lambda: vhost.count("full") == 1, "the queue is full")
    url = vhost.url("amqp")
    done = run(url, "--queue", "full", "teardown", "--yes", *management(vhost))
    assert (done.code, "3 messages wait" in done.err) == (1, True)
    assert "2 outboxes stay" in run(url, "--queue", "full", "teardown", "--yes").out
    assert vhost.names("queues") == [outbox, f"{CASCADE.root}.out.short-lived", "full"]
    # At once, although the management API counts every five seconds.
    done = run(url, "--queue", "full", "teardown", "--yes", *management(vhost))
    assert (done.code, "3 messages wait" in done.err) == (1, True)
    assert run(url, "--queue", "full", "teardown", "--yes", "--delete-messages").code == 0
    assert vhost.names("queues") == ["full"]


@pytest.mark.parametrize("known", ["by --queue", "to the management API"])
def test_teardown_refuses_while_a_message_waits_in_an_outbox(vhost: Vhost, known: str) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        lead(connection, "q", delays=[60])
        publish(connection, 60)
    assert vhost.waiting() == {CASCADE.outbox_name(Q, 6000): 1}
    before = vhost.names("queues"), vhost.names("exchanges")
    named = ("--queue", "q") if known == "by --queue" else ()
    asked = () if named else management(vhost)
    outbox = CASCADE.outbox_name(Q, 6000)
    wait_until(lambda: outbox in Management(management(vhost)[1], vhost.name).queues(), "the management API lists it")
    refused = run(vhost.url("amqp"), *named, "teardown", "--yes", *asked)
    assert (refused.code, "1 messages wait" in refused.err) == (1, True)
    assert (vhost.names("queues"), vhost.names("exchanges")) == before


@pytest.mark.more
def test_teardown_deletes_the_markers_of_other_longest_delays(vhost: Vhost) -> None:
    for delay in ("1", "120", "100000"):
        assert run(vhost.url("amqp"), "setup", options=("--tick", "0.01", "--max-delay", delay)).code == 0
    assert run(vhost.url("amqp"), "teardown", "--yes", *management(vhost)).code == 0
    assert (vhost.names("queues"), vhost.names("exchanges")) == ([], [])

"""Waiting messages move to another cascade, and cascades are deleted."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from click.testing import CliRunner

from celery_rabbit_delay import Options, operate
from celery_rabbit_delay.amqp.receiving import known_to
from celery_rabbit_delay.amqp.waiting import Allowed
from celery_rabbit_delay.cli.groups import standalone
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.topology import Cascade
from celery_rabbit_delay.operate import Management, Snapshot
from celery_rabbit_delay.operate.cascades import outbox_named
from tests.kit.broker import QUICK, Vhost, ensure, lead, publish, take, wait_to_learn
from tests.kit.commands import CASCADE, QUICKLY, make_orphans, management, run, running
from tests.kit.wait import wait_until

pytestmark = [pytest.mark.shared_vhost, pytest.mark.levels]  # nothing takes out what RabbitMQ holds

Q = Destination("", ("q",))
NEW: dict[str, Any] = QUICK | {"prefix": "new", "tick": 1, "delivery_time": False}  # few levels
TO_NEW = ("--any-queue", "--to-prefix", "new", "--to-tick", "1", "--to-no-delivery-time")


def waiting(vhost: Vhost, *cascades: Cascade) -> int:
    queues = set(vhost.names("queues"))
    waiting_in = {level.queue for cascade in cascades for level in cascade.levels}
    for cascade in cascades:
        waiting_in |= {name for name in queues if (outbox := outbox_named(cascade, name)) and outbox.delay}
    return vhost.count(*waiting_in & queues)


@pytest.mark.long
def test_what_waits_moves_and_is_due_when_it_was_due_anyway(vhost: Vhost) -> None:
    vhost.declare("q", "bound", exchange="e", kind="topic")
    assert run(vhost.url("amqp"), "setup", "--priorities").code == 0
    due = datetime.now(timezone.utc) + timedelta(seconds=20)
    headers = {"task": "t", "id": "1", "eta": due.isoformat(), "CC": ["q"]}
    with vhost.connection() as connection:
        producer = connection.Producer()
        for priority in (0, 9):
            producer.publish("plain", routing_key="q", headers={**headers, "CC": []}, priority=priority)
            producer.publish("exchange", exchange="e", routing_key="bound", headers=headers, priority=priority)
        producer.publish("long name", routing_key="q", headers={"x-delay": 60_000})
    old, new = (Options(**options) for options in (QUICK, NEW))
    moved = run(vhost.url("amqp"), "migrate", *TO_NEW, *management(vhost))
    assert (moved.code, moved.out) == (0, "5 moved, 0 left\n")
    assert waiting(vhost, old.cascade, old.high_cascade) == 0
    wait_until(lambda: waiting(vhost, new.cascade, new.high_cascade) == 5, "all wait there, none between two levels")
    with vhost.connection() as connection:
        messages = take(connection, "q", 4)
        assert time.time() >= due.timestamp()
        assert Counter(message.payload for message in messages) == {"plain": 2, "exchange": 2}
        for message in messages:
            expected = ["q"] if message.payload == "exchange" else None
            assert message.headers.pop("x-delay-sent")
            assert message.headers.pop("x-delay-of")["id"] == "1"
            assert message.headers == {
                "task": "t",
                "id": "1",
                "eta": due.isoformat(),
                **({"CC": expected} if expected else {}),
            }
        assert len(take(connection, "bound", 2)) == 2


@pytest.mark.long
@pytest.mark.parametrize("named", ["by an option", "by a variable"])
def test_what_waits_moves_to_another_broker(vhost: Vhost, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")
    vhost.publish("q", 100, 100, 20)
    with vhost.broker.vhost() as other:
        other.declare("q")
        where = ["--to-broker", other.url("amqp")]
        if named == "by a variable":
            where = []
            monkeypatch.setenv("CELERY_RABBIT_DELAY_TO_BROKER", other.url("amqp"))
        moved = run(vhost.url("amqp"), "migrate", "--any-queue", *where, *management(vhost))
        assert (moved.code, moved.out) == (0, "3 moved, 0 left\n")
        wait_until(lambda: not [name for name in other.names("queues") if "migrate" in name], "nothing is left of it")
        with other.connection() as connection:
            take(connection, "q", 1)
        wait_until(lambda: waiting(other, CASCADE) == 2, "the others wait, none between two levels")


def test_a_message_that_cannot_be_moved_stays_though_its_queue_does_not_count_it_yet(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    too_short = (*TO_NEW, "--to-max-delay", "10")
    with vhost.broker.vhost() as other:  # without the queue
        for where, says in (
            (("--any-queue", "--to-broker", other.url("amqp")), "does not exist"),
            (too_short, "more than the option max_delay, 10 s"),
        ):
            failed = run(vhost.url("amqp"), "migrate", *where)
            assert (failed.code, says in failed.out) == (3, True), failed.out
            wait_until(lambda: waiting(vhost, CASCADE) == 1, "the message is given back")
    monkeypatch.setattr(operate, "status", lambda *args: SimpleNamespace(ready=0, waiting=0))
    result = CliRunner().invoke(standalone, ["--broker", vhost.url("amqp"), *QUICKLY, "migrate", *too_short])
    assert "0 moved, 1 left\n" in result.output
    assert result.exit_code == 3


def test_what_the_management_api_counts_where_it_no_longer_is_has_not_vanished(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("q")
    vhost.publish("q", 100)
    snapshot, taken = Management.snapshot, []

    def old(self: Management) -> Snapshot:
        """Say until the move that there is a message between a level and its next queue, where it was before."""
        found = snapshot(self)
        taken.append(found)
        level = {**found.queues.get(CASCADE.levels[-1].queue, {}), "messages_dlx": 1} if len(taken) == 1 else {}
        return found._replace(queues={**found.queues, CASCADE.levels[-1].queue: level})

    monkeypatch.setattr(Management, "snapshot", old)
    command = ["--broker", vhost.url("amqp"), *QUICKLY, "migrate", *TO_NEW]
    result = CliRunner().invoke(standalone, [*command, *management(vhost)])
    assert (result.exit_code, result.stdout) == (0, "1 moved, 0 left\n")


def test_it_says_what_became_of_those_that_neither_move_nor_stay(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as connection:
        for number in range(10):
            publish(connection, 100, correlation_id=str(number))
        operate.cancel(connection, ["3", "5"])
        operate.reschedule(connection, "7", datetime.now(timezone.utc) + timedelta(seconds=110))
    wait_until(lambda: waiting(vhost, CASCADE) == 11, "the moved one waits twice")
    moved = run(vhost.url("amqp"), "migrate", *TO_NEW)
    told = "8 moved, 0 left, 3 became due meanwhile or had been cancelled, moved or replaced\n"
    assert (moved.code, moved.out) == (0, told)


def test_without_another_place_nothing_moves(vhost: Vhost) -> None:
    refused = run(vhost.url("amqp"), "migrate", "--to-max-delay", "1000")
    assert refused.code == 2
    assert "name the target with --to-prefix, --to-tick" in refused.err


def test_a_migration_killed_again_and_again_loses_nothing(vhost: Vhost) -> None:
    vhost.declare("q")
    amount = 100
    with vhost.connection() as connection:
        for n in range(amount):
            connection.Producer().publish(n, routing_key="q", headers={"x-delay": 100_000})
    old, new = Options(**QUICK).cascade, Options(**NEW).cascade
    for moved in (1, 25, 50):
        with running(vhost.url("amqp"), "migrate", *TO_NEW):  # killed in the end
            wait_until(lambda moved=moved: waiting(vhost, new) >= moved, "some have moved")  # type: ignore[misc]
    wait_until(lambda: waiting(vhost, old, new) + vhost.count("q") >= amount, "the broker has noticed")
    assert run(vhost.url("amqp"), "migrate", *TO_NEW).code == 0
    assert waiting(vhost, old) == 0
    found: list[int] = []

    def all_found() -> bool:  # some go from level to level meanwhile
        with vhost.plain() as connection:
            for name in (
                "q",
                *(
                    name
                    for name in vhost.names("queues")
                    if name.startswith(f"{new.root}.") and ".journal." not in name
                ),
            ):
                queue = kombu.Queue(name, no_declare=True)(connection.default_channel)
                while message := queue.get(no_ack=True):
                    found.append(message.payload)
        return set(found) == set(range(amount))

    wait_until(all_found, "all are found")
    assert len(found) <= amount + 3


def test_a_migration_that_is_interrupted_ends_between_two_messages(vhost: Vhost) -> None:
    vhost.declare("q")
    amount = 200
    with vhost.connection(journal=0) as connection:
        for number in range(amount):
            publish(connection, 100, correlation_id=str(number))
    with running(vhost.url("amqp"), "migrate", *TO_NEW) as migration:
        wait_until(lambda: waiting(vhost, Options(**NEW).cascade) >= 5, "some have moved")
        migration.process.send_signal(signal.SIGINT)
        interrupted = migration.wait()
    assert interrupted.code == 130
    assert interrupted.err.endswith("interrupted: run this again to move the others\n")
    moved, left = map(int, re.findall(r"(\d+) (?:moved|left)", interrupted.out))
    assert moved + left == amount
    assert left > 0
    with vhost.connection() as connection:  # what has moved is void here
        assert len(list(operate.scheduled(connection))) == left
    assert run(vhost.url("amqp"), "migrate", *TO_NEW).out == f"{left} moved, 0 left\n"
    wait_until(lambda: waiting(vhost, Options(**NEW).cascade) == amount, "all wait there, none twice")


@pytest.mark.long
def test_what_becomes_due_just_when_it_would_be_moved_arrives(vhost: Vhost) -> None:
    """Found in one of some ten rounds, when RabbitMQ 3.10 and 4.0 leave such a message standing in its level."""
    vhost.declare("q")
    pause = 0.005  # s; kept at the moment of expiry by what the rounds before it met
    with vhost.connection(max_delay=QUICK["tick"], outboxes=()) as source, vhost.connection(**NEW) as target:
        lead(source, "q")
        for _ in range(100):
            source.Producer().publish("x", routing_key="q", headers={"x-delay": QUICK["tick"] * 1000})
            time.sleep(pause)
            moved = list(operate.migrate(source, target, Allowed(None)))
            pause = max(0, pause + (0.0005 if moved else -0.0005))
            take(source, "q", 1)


def test_what_is_cancelled_while_others_are_moved_does_not_move(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as source, vhost.connection(**NEW) as target:
        for id_ in ("a", "b", "c"):
            publish(source, 100, correlation_id=id_)
        moving = operate.migrate(source, target, Allowed(None))
        next(moving)
        with vhost.connection() as other:
            operate.cancel(other, ["a", "b", "c"])
        wait_to_learn(source, lambda: known_to[source].changes.cancels("c"))
        assert list(moving) == []
        assert waiting(vhost, target.transport.delay_options.cascade) == 1


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
    assert waiting(vhost, CASCADE) == 1


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


@pytest.mark.more
def test_teardown_passes_where_only_cancelled_messages_wait(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp")
    with vhost.connection() as connection:
        for id_, delay in (("level", 100), ("outbox", 60), ("other", 100)):
            publish(connection, delay, headers={"id": id_})
        assert len({queue for queue in vhost.names("queues") if vhost.count(queue)}) > 1
        operate.cancel(connection, ["level", "outbox"])
    refused = run(url, "--queue", "q", "teardown", "--yes")
    assert (refused.code, "1 messages wait and 0 are orphans" in refused.err) == (1, True)
    assert run(url, "cancel", "other").code == 0
    done = run(url, "--queue", "q", "teardown", "--yes", *management(vhost))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("1 message gone: cancelled, moved, replaced, or due meanwhile\n")
    assert vhost.names("queues") == ["q"]


@pytest.mark.long
def test_teardown_deletes_nothing_that_is_stuck_in_an_outbox(vhost: Vhost) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with vhost.plain() as connection:
        connection.default_channel.queue_declare("full", durable=True, auto_delete=False, arguments=arguments)
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
def test_what_waits_in_outboxes_stops_a_teardown_and_moves_too(vhost: Vhost, known: str) -> None:
    vhost.declare("q")
    outbox = CASCADE.outbox_name(Q, 6000)
    named = ("--queue", "q") if known == "by --queue" else ()
    asked = () if named else management(vhost)
    with vhost.connection() as connection:
        lead(connection, "q")
        publish(connection, 60)
        assert waiting(vhost, CASCADE) == vhost.count(outbox) == 1
        before = vhost.names("queues"), vhost.names("exchanges")
        api = Management(management(vhost)[1], vhost.name)
        wait_until(lambda: outbox in api.queues(), "the management API lists it")
        refused = run(vhost.url("amqp"), *named, "teardown", "--yes", *asked)
        assert (refused.code, "1 messages wait" in refused.err) == (1, True)
        assert (vhost.names("queues"), vhost.names("exchanges")) == before
        for delay in (60, 61.5, 100):
            publish(connection, delay)
    moved = run(vhost.url("amqp"), *named, "migrate", *TO_NEW[1 if named else 0 :], *asked)
    assert (moved.code, moved.out) == (0, "4 moved, 0 left\n"), moved.err
    assert waiting(vhost, CASCADE) == 0
    # One may be on its way from a level to the next one, where nobody counts it.
    wait_until(lambda: waiting(vhost, Options(**NEW).cascade) == 4, "all four wait")


def test_what_passes_from_a_level_into_an_outbox_while_others_are_moved_moves_too(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as source, vhost.connection(**NEW) as target:
        lead(source, "q")
        ensure(source, Q, 1500)
        for _ in range(5):
            publish(source, 17.56)  # a level of 2.56 s, then the outbox of 15 s
        publish(source, 100)
        moving = operate.migrate(source, target, Allowed(None), [Q])
        assert next(moving).refused is None
        wait_until(lambda: vhost.count(CASCADE.outbox_name(Q, 1500)) == 5, "the others are in the outbox")
        assert len(list(moving)) == 5
        assert waiting(vhost, CASCADE) == 0


@pytest.mark.more
def test_teardown_deletes_the_markers_of_other_longest_delays(vhost: Vhost) -> None:
    for delay in ("1", "120", "100000"):
        assert run(vhost.url("amqp"), "setup", options=("--tick", "0.01", "--max-delay", delay)).code == 0
    assert run(vhost.url("amqp"), "teardown", "--yes", *management(vhost)).code == 0
    assert (vhost.names("queues"), vhost.names("exchanges")) == ([], [])

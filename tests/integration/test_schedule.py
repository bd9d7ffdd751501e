"""Waiting messages are listed, cancelled and moved without touching the levels."""

from __future__ import annotations

import json
import re
import signal
import time
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu.pools
import pytest
from amqp import Message, spec
from celery import Celery
from click.testing import CliRunner
from kombu import Exchange, Queue

import celery_rabbit_delay
from celery_rabbit_delay import (
    DelayError,
    InvalidDelay,
    NotWaiting,
    Scheduled,
    TooLate,
    UnsupportedConfiguration,
    upstream,
)
from celery_rabbit_delay.cli.groups import standalone
from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.schedule.amqp import reschedule, waiting_tasks
from celery_rabbit_delay.schedule.amqp import reschedule as reschedule_
from celery_rabbit_delay.schedule.core import journal, streams
from celery_rabbit_delay.schedule.core.journal import Record
from tests.kit.broker import Vhost, lead, publish, take
from tests.kit.commands import QUICKLY, management, run
from tests.kit.frames import frames
from tests.kit.recorded import records
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

RECORDED: dict[str, Any] = {"journal": 0}


def listed(vhost: Vhost, **filters: Any) -> list[Scheduled]:
    with vhost.connection() as connection:
        return list(waiting_tasks.scheduled(connection, **filters))


def ids(vhost: Vhost, **filters: Any) -> list[str]:
    return [waiting.id for waiting in listed(vhost, **filters)]


@pytest.mark.own_vhost
def test_nothing_is_listed_on_a_broker_without_a_cascade(vhost: Vhost) -> None:
    assert listed(vhost) == []
    assert vhost.names("queues") == []


def test_tasks_are_listed_the_soonest_first_with_all_that_tells_them_apart(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery", "mail")
    now = datetime.now(timezone.utc)
    late = app.send_task("t", (1, "ü"), {"k": None}, countdown=90)
    soon = app.send_task("u", countdown=60, queue="mail", priority=9)
    first, second = celery_rabbit_delay.scheduled(app)
    assert (first.id, first.task, first.queue, first.args, first.kwargs) == (soon.id, "u", "mail", "()", "{}")
    assert (second.id, second.task, second.queue, second.args, second.kwargs) == (
        late.id,
        "t",
        "celery",
        "(1, 'ü')",
        "{'k': None}",
    )
    assert timedelta(0) <= first.due - now - timedelta(seconds=60) < timedelta(seconds=25)
    assert [w.id for w in celery_rabbit_delay.scheduled(app, task="t")] == [late.id]
    assert [w.id for w in celery_rabbit_delay.scheduled(app, queue="mail")] == [soon.id]
    assert [w.id for w in celery_rabbit_delay.scheduled(app, until=first.due)] == [soon.id]
    assert [w.id for w in celery_rabbit_delay.scheduled(app, limit=1)] == [soon.id]
    assert celery_rabbit_delay.find(app, late.id) == celery_rabbit_delay.find(app, uuid.UUID(late.id)) == second
    assert celery_rabbit_delay.find(app, "unknown") is None
    celery_rabbit_delay.reschedule(app, uuid.UUID(late.id), countdown=100)
    celery_rabbit_delay.cancel(app, uuid.UUID(late.id))
    assert celery_rabbit_delay.find(app, late.id) is None


def test_a_task_for_an_exchange_is_listed_with_the_queue_that_the_app_knows(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options=RECORDED, task_queues=[Queue("mail", Exchange("shop", "topic"), "new")])
    vhost.declare("mail", exchange="shop", kind="topic")
    app.send_task("t", countdown=60, queue="mail")
    [waiting] = celery_rabbit_delay.scheduled(app, queue="mail")
    assert (waiting.queue, waiting.exchange, waiting.routing_key) == ("mail", "shop", "new")


def test_what_ran_or_was_cancelled_is_not_listed(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery")
    app.send_task("t", countdown=0.1)
    stays, by_id, by_stamp = (app.send_task("t", countdown=60) for _ in range(3))
    stamps = {"stamped_headers": ["customer"], "stamps": {"customer": ["7"]}}
    by_stamp = app.send_task("t", countdown=60, headers=stamps)
    vhost.take("celery", 1)
    celery_rabbit_delay.cancel(app, by_id.id)
    app.control.revoke_by_stamped_headers({"customer": "7"})
    found = {waiting.id for waiting in celery_rabbit_delay.scheduled(app)}
    assert stays.id in found
    assert not {by_id.id, by_stamp.id} & found
    assert len(found) == 2
    assert run(vhost.url("amqp"), "cancel", by_id.id, by_id.id).out == "1 id cancelled\n"


def test_the_schedule_of_an_app_without_install_is_an_error(vhost: Vhost) -> None:
    with Celery("plain", broker=vhost.url("amqp"), set_as_current=False) as app:
        with pytest.raises(UnsupportedConfiguration, match=r"call celery_rabbit_delay.install\(app\)"):
            list(celery_rabbit_delay.scheduled(app))
        with pytest.raises(UnsupportedConfiguration, match=r"call celery_rabbit_delay.install\(app\)"):
            celery_rabbit_delay.cancel(app, "id")
    kombu.pools.reset()  # a closed pool would stay the one of this URL


def test_the_command_lists_and_cancels_without_an_app(vhost: Vhost) -> None:
    vhost.declare("q", "mail")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 110, correlation_id="second")
        publish(connection, 100, correlation_id="first", routing_key="mail")
        task = {"id": "third", "task": "shop.bill", "argsrepr": "(1,)", "kwargsrepr": "{}"}
        publish(connection, 118, headers=task)
        publish(connection, 119, headers={"id": "fourth", "task": "shop.ship"})
    url = vhost.url("amqp")
    lines = run(url, "list").out.splitlines()
    assert [line.split()[2] for line in lines] == ["first", "second", "third", "fourth"]
    assert lines[2].endswith("  q  shop.bill (1,) {}")
    [bill] = map(json.loads, run(url, "list", "--task", "shop.bill", "--json").out.splitlines())
    assert (bill["id"], bill["task"], bill["queue"], bill["args"]) == ("third", "shop.bill", "q", "(1,)")
    assert datetime.fromisoformat(bill["due"]) > datetime.now(timezone.utc)
    assert run(url, "list", "--queue", "mail").out.splitlines() == lines[:1]
    assert run(url, "list", "--until", bill["due"], "--limit", "1").out.splitlines() == lines[:1]
    assert run(url, "cancel").code == 2
    assert run(url, "cancel", "third", "--all").code == 2
    assert run(url, "cancel", "--yes", "--queue", "mail").out == "1 cancelled\n"
    assert run(url, "cancel", "--yes", "--task", "shop.bill").out == "1 cancelled\n"
    assert run(url, "list").out.splitlines() == [lines[1], lines[3]]
    assert run(url, "cancel", "fourth", "first", "typo").out == "3 ids cancelled\n"
    assert run(url, "cancel", "fourth", "new", "--json").out == '{"id": "fourth"}\n{"id": "new"}\n'
    assert run(url, "list").out.splitlines() == lines[1:2]
    assert run(url, "cancel", "--yes", "--all").out == "1 cancelled\n"
    empty, none = run(url, "list"), run(url, "list", "--queue", "nosuch")
    assert (empty.code, none.code) == (0, 0)
    assert empty.text.startswith(
        "nothing is listed: no task in the journal waits. It has those with at least the delay"
    )
    assert none.text.startswith("nothing is listed: no task in the journal matches. It has")
    failed = run(url, "list", "--until", "tomorrow")
    assert failed.code == 2
    assert "cannot read until 'tomorrow': use an aware datetime, or an ISO 8601 string such as 2030-" in failed.err


#: What this package never writes, for each stream.
FORGED: dict[str, list[bytes]] = {
    "@.changes": [b"u123", b"c{", b"v1"],
    "@.journal.600": [b"r1234567812", journal.pack_records([Record(2**63, 5, "far", b"\xff" * 9, b"")])],
}


def forge(connection: Any) -> None:
    """Write malformed messages to the streams, as any user who may write to ingest can."""
    ingest = connection.transport.delay_options.cascade.ingest
    headers = {"x-stream-offset": 10**12, "a": "\x0fx-stream-offset"}
    for key, bodies in FORGED.items():
        for body in bodies:
            connection.Producer().publish(body, exchange=ingest, routing_key=key, headers=headers)


def test_what_somebody_made_up_is_reported_and_hides_nothing_else(vhost: Vhost) -> None:
    vhost.declare("q")
    reports: list[str] = []
    with vhost.connection(**RECORDED) as connection:
        waiting_tasks.cancel(connection, ["another"])
        publish(connection, 60, correlation_id="first")
        forge(connection)
        publish(connection, 90, correlation_id="second")
        shown = list(waiting_tasks.scheduled(connection, report=reports.append))
        assert [one.id for one in shown] == ["first", "second"]
        assert [one.id for one in waiting_tasks.scheduled(connection, limit=1)] == ["first"]
        streams = [re.search(r"\.(changes|journal.600)'", report) for report in reports]
        assert [found and found[1] for found in streams] == ["changes"] * 3 + ["journal.600", None]
        reschedule_.reschedule(connection, "second", datetime.now(timezone.utc) + timedelta(seconds=30))
    for command in (["list"], ["cancel", "--yes", "--task", "t"]):
        result = run(vhost.url("amqp"), *command)
        assert result.code == 3
        assert result.err.count("is skipped") >= len(reports) - 1


def test_a_made_up_record_leads_no_command_to_another_queue(vhost: Vhost) -> None:
    """Whoever may write to ingest may also write records."""
    vhost.declare("q", "secret")
    due = int(time.time() * 1000) + 60_000
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, correlation_id="honest")
        ours = {"prefix": vhost.cascade.root, "exchange": "", "routing_key": "secret", "due": due}
        for name, more in {"forged": {}, "for-another-queue": {"queue": "secret", "routing_key": "q"}}.items():
            headers = {HEADER: ours | more, "CC": ["@.+q"], "task": "t", "eta": "2030-01-01T00:00:00+00:00"}
            properties, body = upstream.serialize(Message("forged", application_headers=headers))
            forged = Record(due, streams.new_number(), name, properties, body)
            stream = streams.journal_for(vhost.cascade, 60)
            connection.connection.interceptor.write(stream, [journal.pack_records([forged])])
            refused = run(vhost.url("amqp"), "--queue", "q", "run-now", name)
            assert refused.code == 1, refused.err
            assert "is not allowed" in refused.err or "is not one of the allowed queues" in refused.err
        assert run(vhost.url("amqp"), "--queue", "q", "run-now", "honest").code == 0
        assert [message.properties["correlation_id"] for message in take(connection, "q", 1)] == ["honest"]
    assert vhost.count("secret") == 0


def test_what_somebody_made_up_stops_no_consumer(vhost: Vhost, caplog: pytest.LogCaptureFixture) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection, vhost.connection() as consuming:
        publish(connection, 0.1)
        forge(connection)
        came: list[str] = []
        with consuming.Consumer([Queue("q")], callbacks=[lambda body, message: came.append(body)], no_ack=True):
            consuming.drain_events(timeout=60)
            forge(connection)
            numbers: list[Any] = [[], {"a": 1}, 1.5]
            for number in numbers:  # a header that is not ours
                header = {HEADER: {"prefix": "x", "exchange": "", "due": 1, "n": number}, "CC": ["q"]}
                connection.Producer().publish("odd", routing_key="q", headers=header)
            publish(connection, 0.1)
            while len(came) < 5:
                consuming.drain_events(timeout=60)
    assert came == ["x", "odd", "odd", "odd", "x"]
    skipped = [record for record in caplog.messages if "is skipped" in record]
    assert len(skipped) >= len(FORGED["@.changes"])


def test_a_cancel_is_one_round_trip(vhost: Vhost) -> None:
    with vhost.connection() as connection:
        waiting_tasks.cancel(connection, ["creates the stream"])
        with frames(connection) as (_, answers):
            waiting_tasks.cancel(connection, ["a", "b"])
        assert set(answers) == {spec.Basic.Ack}  # of the ids and of the note: neither waits for the other


def test_a_cancel_opens_a_connection_that_the_pool_has_closed(vhost: Vhost, make_app: MakeApp) -> None:
    """Kombu closes a connection after an error, and hands it out again."""
    app = make_app(options=RECORDED)
    vhost.declare("celery")
    id_ = app.send_task("t", countdown=60).id
    with pytest.raises(KeyError), app.producer_or_acquire():
        raise KeyError
    celery_rabbit_delay.cancel(app, id_)
    assert list(celery_rabbit_delay.scheduled(app)) == []


def test_messages_without_an_id_are_cancelled_where_they_are_listed(vhost: Vhost) -> None:
    vhost.declare("q", "other")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, "other")
        for delay in (12, 13):
            publish(connection, delay)
        assert run(vhost.url("amqp"), "cancel", "--yes", "--queue", "q").out == "2 cancelled\n"
        assert [one.queue for one in listed(vhost)] == ["other"]
        publish(connection, 14, correlation_id="last")
        [message] = take(connection, "q", 1)
        assert message.properties["correlation_id"] == "last"
    assert vhost.count("q") == 0


def test_a_naive_time_until_which_tasks_are_listed_is_in_utc(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options=RECORDED, timezone="Asia/Tokyo")
    vhost.declare("celery")
    ids = [app.send_task("t", countdown=countdown).id for countdown in (60, 110)]
    until = (datetime.now(timezone.utc) + timedelta(seconds=90)).replace(tzinfo=None)
    for moment in (until, until.isoformat()):
        assert [one.id for one in celery_rabbit_delay.scheduled(app, until=moment)] == ids[:1]
    with pytest.raises(InvalidDelay, match="cannot read until 'tomorrow'"):
        celery_rabbit_delay.scheduled(app, until="tomorrow")
    with pytest.raises(InvalidDelay, match="either eta or countdown"):
        celery_rabbit_delay.reschedule(app, ids[0])
    for limit in (0, -1):
        with pytest.raises(ValueError, match=f"limit={limit}: use 1 or more, or None"):
            celery_rabbit_delay.scheduled(app, limit=limit)


@pytest.mark.parametrize(
    "where", ["id", *(pytest.param(one, marks=pytest.mark.more) for one in ("correlation_id", "message_id"))]
)
def test_a_cancelled_message_is_not_delivered_to_a_plain_consumer(vhost: Vhost, where: str) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        for id_ in ("a", "b"):
            named: dict[str, Any] = {"headers": {"id": id_}} if where == "id" else {where: id_}
            publish(connection, 8, **named)
        waiting_tasks.cancel(connection, ["a"])
        [message] = take(connection, "q", 1)
        assert {**message.headers, **message.properties}[where] == "b"
    assert vhost.count("q") == 0


def test_records_of_a_message_that_was_never_sent_are_not_listed_for_ever(vhost: Vhost) -> None:
    """A publisher that is killed between the two leaves such a record."""
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 100, correlation_id="sent")
        stream = streams.journal_for(vhost.cascade, 100)
        [record] = records(vhost)
        due = int(time.time() * 1000) + 3000
        never = record._replace(due=due, number=streams.new_number(), id="never")
        connection.connection.interceptor.write(stream, [journal.pack_records([never])])
        assert ids(vhost) == ["never", "sent"] or time.time() * 1000 > due
        wait_until(lambda: ids(vhost) == ["sent"], "it is not listed once it is due")


def test_a_message_is_moved_earlier_and_later_with_all_that_it_has(vhost: Vhost) -> None:
    vhost.declare("q")
    mine = {"mine": [1, {"a": None}]}
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 115, headers=mine, correlation_id="early", priority=9, message_id="m")
        publish(connection, 15, correlation_id="late")
        later = datetime.now(timezone.utc) + timedelta(seconds=18)
        reschedule_.reschedule(connection, "late", later)
        reschedule_.reschedule(connection, "early", datetime.now(timezone.utc) + timedelta(seconds=0.5))
        assert ids(vhost)[-1] == "late"
        began = time.time()
        [message] = take(connection, "q", 1)
        assert time.time() - began < 90
        assert message.headers == mine
        assert message.properties["correlation_id"] == "early"
        assert message.properties["message_id"] == "m"
        assert message.properties["priority"] == 9
        assert message.payload == "x"
        [message] = take(connection, "q", 1)
        assert message.properties["correlation_id"] == "late"
        assert datetime.now(timezone.utc) >= later
    assert vhost.count("q") == 0


@pytest.mark.long
def test_a_move_that_is_interrupted_loses_nothing(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")

    def killed(*args: Any) -> None:
        raise ConnectionError("killed")

    with vhost.connection(**RECORDED) as connection:
        for id_ in ("a", "b"):
            publish(connection, 30, correlation_id=id_)
        with monkeypatch.context() as patch:
            patch.setattr("celery_rabbit_delay.schedule.amqp.reschedule.write_changes", killed)
            for id_, seconds in (("a", 20), ("b", 25)):
                with pytest.raises(ConnectionError):
                    reschedule_.reschedule(connection, id_, datetime.now(timezone.utc) + timedelta(seconds=seconds))
        assert sorted(ids(vhost)) == ["a", "a", "b", "b"]
        reschedule_.reschedule(connection, "b", datetime.now(timezone.utc))  # moved again, it is delivered once
        found = [take(connection, "q", 1)[0].properties["correlation_id"] for _ in range(3)]
        assert found == ["b", "a", "a"]


def test_basic_get_skips_what_was_moved(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 8, correlation_id="a")
        reschedule_.reschedule(connection, "a", datetime.now(timezone.utc) + timedelta(seconds=16))
        wait_until(lambda: vhost.count("q"), "the old copy is there")
        assert connection.default_channel.basic_get("q") is None
        wait_until(lambda: vhost.count("q"), "the new copy is there")
        assert connection.default_channel.basic_get("q", no_ack=True).properties["correlation_id"] == "a"


def test_a_message_that_is_due_soon_or_that_nobody_knows_is_not_moved(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reschedule, "TOO_LATE", 30_000)  # instead of 2 s, which pass fast on a busy machine
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 20, correlation_id="soon")
        publish(connection, 60, correlation_id="far")
        soon = datetime.now(timezone.utc)
        with pytest.raises(TooLate, match=r"'soon' is due at .*: it is too late"):
            reschedule_.reschedule(connection, "soon", soon)
        with pytest.raises(NotWaiting, match=r"the id 'nobody': .* option `journal` of its publisher"):
            reschedule_.reschedule(connection, "nobody", soon)
        with pytest.raises(InvalidDelay, match="more than the option max_delay"):
            reschedule_.reschedule(connection, "far", soon + timedelta(days=1))
    assert ids(vhost)[-1] == "far"


def test_messages_that_share_an_id_are_not_moved_and_all_wait_on(vhost: Vhost) -> None:
    vhost.declare("q", "r", exchange="e")
    others: list[dict[str, Any]] = [
        {"body": "y"},
        {"routing_key": "r"},
        {"exchange": "e"},
        {"headers": {"x-delay": 100_000, "mine": 1}},
        {"message_id": "m"},
    ]
    with vhost.connection(**RECORDED) as connection:
        for number, other in enumerate(others):
            message = {"body": "x", "routing_key": "q", "headers": {"x-delay": 100_000}, "correlation_id": f"j{number}"}
            for one in (message, {**message, **other}):
                connection.Producer().publish(**one)
        for number in range(len(others)):
            says = f"2 different messages with the id 'j{number}' wait, .*: none was moved"
            with pytest.raises(DelayError, match=says):
                reschedule_.reschedule(connection, f"j{number}", datetime.now(timezone.utc))
        assert len(ids(vhost)) == 2 * len(others)
    wait_until(lambda: sum(vhost.waiting().values()) == 2 * len(others), "the others wait, and their copies")


def test_a_message_that_was_published_twice_is_moved_as_one(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        for delay in (60, 61):  # what Kombu publishes again after an error waits as long from then on
            publish(connection, delay, correlation_id="a", headers={"mine": [1, {"a": None}]}, priority=9)
        reschedule_.reschedule(connection, "a", datetime.now(timezone.utc))
        assert len(take(connection, "q", 1)) == 1
    assert ids(vhost) == []


def test_what_waits_in_a_cascade_of_another_tick_is_listed_moved_and_cancelled(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED, tick=0.02) as before:
        for id_ in ("a", "b", "c"):
            publish(before, 15, correlation_id=id_)
    with vhost.connection(journal=60) as connection:
        assert sorted(ids(vhost)) == ["a", "b", "c"]
        now = datetime.now(timezone.utc)
        waiting_tasks.cancel(connection, ["b"])
        reschedule_.reschedule(connection, "c", now + timedelta(seconds=18))
        reschedule_.reschedule(connection, "a", now)
        assert ids(vhost) == ["c"]
        found = [take(connection, "q", 1)[0] for _ in range(2)]  # the second one comes after the three that are void
        assert [message.properties["correlation_id"] for message in found] == ["a", "c"]


def test_the_commands_move_a_message(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, correlation_id="a")
        publish(connection, 100, correlation_id="b")
    url = vhost.url("amqp")
    for command in (["reschedule", "a", "--countdown", "90"], ["run-now", "a"]):
        refused = run(url, "--queue", "r", *command)  # what a record says may be made up
        assert refused.code == 1
        assert "queue 'q' is not one of the allowed queues: use --any-queue, or" in refused.err
    assert run(url, "--queue", "q", "reschedule", "a", "--countdown", "119").out.startswith("due 2")
    assert ids(vhost) == ["b", "a"]
    tomorrow = datetime.now(timezone.utc) + timedelta(seconds=50)
    assert run(url, "--queue", "q", "reschedule", "a", "--eta", tomorrow.isoformat()).code == 0
    assert ids(vhost) == ["a", "b"]
    assert run(url, "run-now", "a", "--any-queue").code == 0
    vhost.take("q", 1)
    assert ids(vhost) == ["b"]
    assert "no waiting message with the id 'a'" in run(url, "run-now", "a").err
    for chosen in (("b",), ("--all", "--queue", "q")):
        asked = run(url, "--queue", "q", "reschedule", *chosen, "--eta", "2020-01-31T12:00:00Z")
        assert (asked.code, "2020-01-31 12:00:00Z is in the past: run 1 task now?" in asked.err) == (1, True)
    assert ids(vhost) == ["b"]
    assert run(url, "--queue", "q", "reschedule", "b", "--eta", "2020-01-31T12:00:00Z", "--yes").code == 0
    vhost.take("q", 1)


def test_what_was_cancelled_is_restored_and_all_of_it_is_logged(
    vhost: Vhost, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("celery", "q")
    app, url = make_app(options=RECORDED), vhost.url("amqp")
    caplog.set_level("INFO", "celery_rabbit_delay.schedule.amqp")
    stamps = {"stamps": {"customer": ["7"]}}
    sent: dict[str, Any] = {"first": stamps, "second": {}, "other": {}}
    with vhost.connection(**RECORDED) as connection:
        for id_, headers in sent.items():
            more = {"task": "t", "id": id_, "x-delay": 100_000, **headers}
            connection.Producer().publish((), routing_key="q", headers=more)
    celery_rabbit_delay.cancel(app, "first", "second")
    app.control.revoke_by_stamped_headers({"customer": ["7"]})
    assert ids(vhost) == ["other"]
    assert run(url, "restore", "first", "some", "other").out == "3 ids restored\n"
    assert ids(vhost) == ["other"], "a stamp stays cancelled"
    celery_rabbit_delay.restore(app, "second")
    assert ids(vhost) == ["second", "other"]
    app.control.revoke("other")
    celery_rabbit_delay.cancel(app, uuid.UUID(int=5), "b", "c", "d")
    celery_rabbit_delay.reschedule(app, "second", countdown=50, any_queue=True)
    celery_rabbit_delay.pause(app, "celery")
    celery_rabbit_delay.resume(app, "celery")
    assert "0 cancelled" in run(url, "cancel", "--search", "nothing", "--yes").out
    assert [re.sub(r" \d{4}-\S+ \S+", " then", message) for message in caplog.messages] == [
        "2 tasks cancelled: first, second",
        "1 id restored: second",
        f"4 tasks cancelled: {uuid.UUID(int=5)}, b, c, …",
        "The task second is moved from then to then",
        "The queue 'celery' is paused until it is resumed",
        "The queue 'celery' is resumed",
    ]


def reschedule_three(vhost: Vhost) -> list[str]:
    """Send three tasks; return the command that moves them."""
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        for id_ in "abc":
            connection.Producer().publish((), routing_key="q", headers={"x-delay": 90_000, "task": "t", "id": id_})
    most = ["reschedule", "--all", "--yes", "--any-queue", "--countdown", "100"]
    return ["--broker", vhost.url("amqp"), *QUICKLY, *most]


def test_an_interrupt_of_a_move_waits_for_the_message_in_hand(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    command = reschedule_three(vhost)
    moved: list[object] = []
    move = reschedule.move

    def end_after_two(*args: object, **more: object) -> None:
        moved.append(args)
        move(*args, **more)  # type: ignore[arg-type]
        if len(moved) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(reschedule, "move", end_after_two)
    ended = CliRunner().invoke(standalone, command)
    assert (ended.exit_code, ended.output[:6]) == (130, "2 due "), ended.output


def test_a_move_of_what_was_listed_says_what_waits_no_more(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    command = reschedule_three(vhost)
    waiting = waiting_tasks.waiting
    monkeypatch.setattr(reschedule, "waiting", lambda connection: list(waiting(connection))[1:])  # one came meanwhile
    ended = CliRunner().invoke(standalone, command)
    assert (ended.exit_code, ended.output[:6]) == (3, "2 due "), ended.output
    assert "1 task of those that were listed wait no more" in ended.output


def test_the_commands_move_several_messages(vhost: Vhost) -> None:
    vhost.declare("q", "r")
    with vhost.connection(**RECORDED) as connection:
        for id_, queue in (("a", "q"), ("b", "q"), ("c", "r"), ("d", "r"), ("e", "q")):
            headers = {"x-delay": 60_000 + ord(id_), "task": f"shop.{queue}", "id": id_}
            connection.Producer().publish((), routing_key=queue, headers=headers)
    url = vhost.url("amqp")
    some = run(url, "--queue", "q", "reschedule", "a", "b", "c", "gone", "--countdown", "110")
    assert some.code == 3
    assert some.out.startswith("2 due 2")
    assert "queue 'r' is not one of the allowed queues" in some.err
    assert "no waiting message with the id 'gone'" in some.err
    assert sorted(ids(vhost)[-2:]) == ["a", "b"]
    assert run(url, "run-now", "--yes", "--task", "shop.r", "--any-queue").out.startswith("2 due 2")
    assert len(vhost.take("r", 2)) == 2
    assert run(url, "--queue", "q", "run-now", "--all", "--yes").out.startswith("3 due 2")
    assert len(vhost.take("q", 3)) == 3
    assert ids(vhost) == []
    for wrong in ((), ("a", "--all"), ("a", "--task", "shop.q")):
        assert run(url, "run-now", *wrong).code == 2


STREAMS = {f"celery-rabbit-delay.v3.{name}" for name in ("changes", "journal.600")}


@pytest.mark.own_vhost
def test_setup_creates_the_streams_for_passive_publishers_and_teardown_deletes_them(vhost: Vhost) -> None:
    vhost.declare("q")
    url = vhost.url("amqp")
    command = ("--journal", "0")
    assert run(url, *command, "setup").code == 0
    assert {name for name in vhost.names("queues") if name in STREAMS} == STREAMS
    assert run(url, *command, "verify", *management(vhost)).code == 0
    with vhost.connection() as connection:
        lead(connection, "q")
    with vhost.connection(**RECORDED, declare="passive") as connection:
        publish(connection, 60, correlation_id="a")
        publish(connection, 60, correlation_id="b")
        waiting_tasks.cancel(connection, ["a"])
    assert ids(vhost) == ["b"]
    assert "celery-rabbit-delay.v3.changes" in run(url, "status", "--json").out
    found = {stream["queue"]: stream["messages"] for stream in json.loads(run(url, "status", "--json").out)["streams"]}
    assert found.keys() == STREAMS
    other, without = ("--tick", "0.5", "--schedule"), ("--tick", "0.25", "--max-delay", "60")
    for options in (other, without):
        assert run(url, "setup", options=options).code == 0
    for given in (without, ("--tick", "0.5")):  # also who does not say that there is a schedule
        assert run(url, "verify", *management(vhost), options=given).code == 0
    verified = run(url, "verify", *management(vhost), options=(*without, "--schedule"))
    for stream in ("changes", "journal.600"):
        assert (
            f"missing    binding  celery-rabbit-delay.v3.250ms.route -> celery-rabbit-delay.v3.{stream}" in verified.out
        )
    done = run(url, *command, "--queue", "q", "teardown", "--yes", "--delete-messages")
    assert "streams stay: another cascade of this prefix leads to them" in done.out
    assert {name for name in vhost.names("queues") if name in STREAMS} == STREAMS
    assert "streams stay" not in run(url, "teardown", "--yes", "--delete-messages", options=other).out
    assert not STREAMS.intersection(vhost.names("queues")), "the one that is left leads to none"
    assert run(url, "teardown", "--yes", "--delete-messages", options=without).code == 0
    assert not [name for name in vhost.names("queues") if name.startswith("celery-rabbit-delay")]


@pytest.mark.own_vhost
def test_verify_finds_a_stream_with_other_arguments_and_one_that_nothing_leads_to(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    assert run(url, "setup").code == 0
    name = "celery-rabbit-delay.v3.changes"
    with vhost.plain() as connection:
        connection.default_channel.queue_unbind(name, vhost.cascade.behind_ingest, "@.changes")
    assert "binding" in run(url, "verify", *management(vhost)).out
    vhost.delete_queue(name)
    assert run(url, "verify").code == 0  # a worker creates it when it needs it
    vhost.declare(name, arguments={"x-queue-type": "stream", "x-max-age": "5s"})
    assert f"different  queue    {name}" in run(url, "verify").out


def test_the_export_of_a_cascade_with_a_journal_has_its_streams(vhost: Vhost) -> None:
    text = run(vhost.url("amqp"), "--journal", "60", "export").out
    assert {queue["name"] for queue in json.loads(text)["queues"]} >= STREAMS


def test_a_task_is_not_moved_beyond_its_expiry(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options=RECORDED)
    vhost.declare("celery")
    waits = app.send_task("t", countdown=60, expires=120)
    with pytest.raises(InvalidDelay, match=r"was not moved: it expires at .*Choose an earlier one"):
        celery_rabbit_delay.reschedule(app, waits.id, countdown=3600)
    assert [one.id for one in celery_rabbit_delay.scheduled(app)] == [waits.id]
    celery_rabbit_delay.reschedule(app, waits.id, countdown=90)
    [one] = celery_rabbit_delay.scheduled(app)
    assert one.due - datetime.now(timezone.utc) > timedelta(seconds=80)

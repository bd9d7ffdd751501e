"""Periodic entries that are written while beats run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from amqp import Message
from celery import Celery
from celery.schedules import crontab

from celery_rabbit_delay import DelayError, EntryConflict, InvalidEntry, periodic
from celery_rabbit_delay.periodic import beat
from celery_rabbit_delay.periodic.beat_status import PeriodicTask
from celery_rabbit_delay.periodic.core import entries as periodic_core
from celery_rabbit_delay.periodic.core.entries import Edit, State, Written
from celery_rabbit_delay.periodic.lock import REPLY_TO, Lock
from celery_rabbit_delay.periodic.schedules import definition_of
from tests.kit.broker import Vhost
from tests.kit.commands import documented_permissions as documented
from tests.kit.wait import wait_until

QUEUE = "celery-rabbit-delay.beat.shop"
CODE = {
    "hourly": {"task": "t", "schedule": 3600, "args": (1, 2)},
    "odd": {"task": "t", "schedule": crontab(minute="0", hour="4"), "args": (object(),)},
}

Serve = Callable[..., None]


@pytest.fixture
def app(vhost: Vhost) -> Iterator[Celery]:
    vhost.declare("celery")
    app = Celery("shop", broker=vhost.url("amqp"), set_as_current=False)
    app.conf.update(beat_schedule=CODE, beat_heartbeat=60)
    with closing(app):
        yield app


@pytest.fixture
def serve(app: Celery) -> Iterator[Serve]:
    """Yield a function that lets a beat run, as in a process of its own, and ends the one before."""
    ends: list[Callable[[], None]] = []

    def serve(abruptly: bool = False) -> None:
        while ends:
            ends.pop()()
        scheduler, ended = beat.Scheduler(app), threading.Event()

        def run() -> None:
            while not ended.is_set():
                ended.wait(min(max(scheduler.tick(), 0), 0.1))
            if not abruptly:
                scheduler.close()
            elif scheduler._lock is not None:
                scheduler._lock.abandon()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join(30)

        ends.append(end)
        wait_until(lambda: scheduler._lock is not None and scheduler._lock.is_held, "it is active")

    yield serve
    while ends:
        ends.pop()()


def listed(app: Celery) -> dict[str, PeriodicTask]:
    return {one.entry: one for one in periodic.entries(app)}


def test_without_a_beat_it_is_said_how_to_start_one_and_no_queue_is_created(
    app: Celery, serve: Serve, vhost: Vhost
) -> None:
    """A queue would look like that of a beat that has ended."""
    for does in (periodic.entries, lambda app: periodic.disable(app, "hourly", version=0)):
        with pytest.raises(DelayError, match="no beat is active: start one"):
            does(app)
    assert beat.queue_of(app) not in vhost.names("queues")
    serve()
    with pytest.raises(InvalidEntry, match="nothing is to be changed"):
        periodic.change(app, next(iter(CODE)))


def test_entries_are_added_changed_disabled_enabled_and_removed(app: Celery, serve: Serve) -> None:
    serve()
    began = datetime.now(timezone.utc) - timedelta(seconds=2)
    assert {name: (one.schedule, one.is_written) for name, one in listed(app).items()} == {
        "hourly": ("every 3600 s", False),
        "odd": ("crontab 0 4 * * *", False),
    }
    periodic.add(app, "report", "r", crontab(hour=4, minute=30), [1], {"a": 2}, {"queue": "mail"})
    report = listed(app)["report"]
    assert (report.task, report.schedule, report.version) == ("r", "crontab 30 4 * * *", 1)
    assert (report.is_written, report.is_enabled, report.total) == (True, True, 0)
    assert report.last is not None
    assert began < report.last
    assert f"{report.next:%H:%M}" == "04:30"
    periodic.change(app, "report", schedule=60, args=[3])
    report = listed(app)["report"]
    assert report.definition == {
        "task": "r",
        "schedule": "every 60 s",
        "args": [3],
        "kwargs": {"a": 2},
        "options": {"queue": "mail"},
    }
    periodic.disable(app, "report")
    assert (listed(app)["report"].is_enabled, listed(app)["report"].next) == (False, None)
    periodic.enable(app, "report")
    assert listed(app)["report"].next
    periodic.remove(app, "report")
    assert listed(app).keys() == CODE.keys()


def test_entries_of_the_code_are_disabled_enabled_and_changed_until_that_is_removed(app: Celery, serve: Serve) -> None:
    serve()
    periodic.disable(app, "odd")
    odd = listed(app)["odd"]
    assert (odd.is_enabled, odd.is_written, odd.next) == (False, False, None)
    periodic.enable(app, "odd")
    assert listed(app)["odd"].next
    periodic.change(app, "hourly", schedule="every 60 s")
    hourly = listed(app)["hourly"]
    assert hourly.is_written
    assert (hourly.schedule, (hourly.definition or {})["args"]) == ("every 60 s", [1, 2])
    periodic.remove(app, "hourly")
    assert (listed(app)["hourly"].schedule, listed(app)["hourly"].is_written) == ("every 3600 s", False)
    with pytest.raises(InvalidEntry, match="is not JSON: add one"):
        periodic.change(app, "odd", schedule=60)


def test_of_many_at_the_same_moment_one_wins(app: Celery, serve: Serve) -> None:
    serve()
    periodic.add(app, "report", "r", 3600)
    seen, results = listed(app)["report"].version, []

    def change(who: str) -> None:
        try:
            periodic.change(app, "report", args=[who], version=seen)
            results.append(who)
        except EntryConflict:
            results.append("")

    threads = [threading.Thread(target=change, args=[f"user {number}"]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = filter(None, results)
    assert len(results) == 8
    assert (listed(app)["report"].definition or {})["args"] == [winner]


def test_run_now_sends_one_task_and_says_which(app: Celery, serve: Serve, vhost: Vhost) -> None:
    serve()
    periodic.add(app, "report", "r", 3600, [1], options={"task_id": "always the same"})
    periodic.disable(app, "report")
    ids = [periodic.run_now(app, "report"), periodic.run_now(app, "hourly")]
    sent = vhost.take("celery", 2)
    assert [(one.headers["task"], one.headers["id"]) for one in sent] == [("r", ids[0]), ("t", ids[1])]
    assert vhost.count("celery") == 0
    with pytest.raises(InvalidEntry, match="there is no entry 'nothing'"):
        periodic.run_now(app, "nothing")


def test_who_edits_needs_the_permissions_of_a_beat_but_none_to_configure(
    app: Celery, serve: Serve, vhost: Vhost
) -> None:
    of_a_beat = documented("beat")
    app.conf.broker_url = vhost.url("amqp", vhost.user(**of_a_beat))
    serve()
    app.conf.broker_url = vhost.url("amqp", vhost.user(**of_a_beat | {"configure": "^$"}))
    periodic.add(app, "report", "r", 3600)
    periodic.disable(app, "report")
    assert not listed(app)["report"].is_enabled


def test_what_rabbitmq_refuses_is_told_and_the_beat_goes_on(app: Celery, serve: Serve, vhost: Vhost) -> None:
    serve()
    periodic.add(app, "lost", "r", 3600, options={"exchange": "nowhere", "routing_key": "lost"})
    with pytest.raises(DelayError, match="lost is not sent"):
        periodic.run_now(app, "lost")
    periodic.run_now(app, "hourly")
    assert vhost.take("celery", 1)


def test_among_thousands_a_change_or_a_run_calculates_and_writes_no_other_entry(
    app: Celery, vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = definition_of("t", "crontab 0 0 29 2 *", [], {}, {}, app)
    entries = {f"entry {one}": Written(one, True, definition) for one in range(1, 5001)}
    with vhost.plain() as connection:
        before = Lock(connection, QUEUE, "here:1", patience=60)
        wait_until(lambda: before.wait(0.1), "it is the active consumer")
        before.write(periodic_core.dump(State(5000, "", entries)))
    with closing(beat.Scheduler(app)) as scheduler:
        wait_until(lambda: scheduler.tick() and len(scheduler.schedule) == 5000 + len(CODE), "it knows them")
        calculated: list[Any] = []
        written: list[int] = []
        is_due, add = crontab.is_due, Lock.add

        def count(self: crontab, at: datetime) -> Any:
            calculated.append(self)
            return is_due(self, at)

        def measure(lock: Lock, body: bytes) -> None:
            written.append(len(body))
            add(lock, body)

        monkeypatch.setattr(crontab, "is_due", count)
        monkeypatch.setattr(Lock, "add", measure)
        monkeypatch.setattr(beat, "PAUSE", 600)
        for version, schedule in [(0, "every 0.1 s"), (5001, "crontab 0 0 29 2 *")]:
            changed = {**definition, "schedule": schedule}
            edit = Edit(f"id {version}", "often", version, changed, True)
            assert scheduler.answer(json.dumps({"edit": edit})) == {"done": True}
            wait_until(lambda: scheduler.tick() >= 0 and vhost.count("celery"), "it has run")
        assert len(scheduler.answer(json.dumps({"entry": "often"}))["entries"]) == 1
        assert len(calculated) < 10
        assert max(written) < 1000


def test_an_edit_that_was_made_and_not_answered_is_answered_by_the_next(
    app: Celery, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Lock.answer
    cut: list[Any] = []

    def answer(lock: Any, question: Any, body: bytes) -> None:
        if question.body and not cut:
            cut.append(question)
            raise TimeoutError("the network is cut")
        original(lock, question, body)

    monkeypatch.setattr(Lock, "answer", answer)
    serve()
    periodic.add(app, "report", "r", 3600)
    assert (len(cut), listed(app)["report"].version) == (1, 1)


def test_a_bad_entry_is_an_error_where_it_is_written_and_nothing_is_sent(app: Celery) -> None:
    app.conf.broker_url = "amqp://nobody@127.0.0.1:1//"
    for name, task, schedule, args in [
        ("", "r", 1, ()),
        ("a", "", 1, ()),
        ("a", "r", "crontab 61 * * * *", ()),
        ("a", "r", 1, (object(),)),
    ]:
        with pytest.raises(InvalidEntry):
            periodic.add(app, name, task, schedule, args)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (b"\xff", "decode"),
        (b'{"run": [], "id": ""}', "unhashable"),
        (b'{"edit": ["i", "a", 0, {"task": 0, "schedule": 0, "args": [], '
         b'"kwargs": {}, "options": {}}, true, false]}', "cannot use the task 0"),
    ],
)  # fmt: skip
def test_a_question_that_nobody_of_us_asks_is_answered(
    app: Celery, serve: Serve, vhost: Vhost, question: bytes, told: str
) -> None:
    serve()
    answers: list[Any] = []
    with vhost.plain() as connection:
        channel = connection.default_channel
        channel.basic_consume(REPLY_TO, no_ack=True, callback=lambda one: answers.append(json.loads(one.body)))
        channel.basic_publish(Message(question, reply_to=REPLY_TO), "", QUEUE)
        while not answers:
            connection.drain_events(timeout=30)
    assert told in answers[0]["error"]
    assert listed(app).keys() == CODE.keys()


def test_an_entry_that_cannot_be_read_here_stops_no_other(app: Celery, serve: Serve, vhost: Vhost) -> None:
    serve()
    periodic.add(app, "kept", "r", 3600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beat, "entry_of", lambda *_: 1 / 0)
        serve()
        assert (listed(app)["kept"].next, listed(app)["kept"].schedule) == (None, "every 3600 s")
    serve()
    assert listed(app)["kept"].next


def test_a_beat_that_ends_before_it_answers_does_not_keep_whoever_asks(app: Celery) -> None:
    with app.connection_for_write() as connection:
        ending = Lock(connection, QUEUE, "ending", 60)
        ending.write(b"")

        def end() -> None:
            wait_until(lambda: ending.wait(0) and ending.questions, "it is asked")
            ending.abandon()

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(DelayError, match="no beat is active"):
            periodic.run_now(app, "hourly")
        thread.join()


def test_without_an_answer_it_is_said_how_to_find_out(
    app: Celery, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    monkeypatch.setattr(Lock, "answer", lambda *_: None)
    app.conf.beat_heartbeat = 3
    with pytest.raises(DelayError, match="list the entries to see whether it is done"):
        periodic.run_now(app, "hourly")

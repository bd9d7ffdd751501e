"""The lock of a beat in RabbitMQ: who holds it, what is left to the next, and what others can do to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from json import dumps
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import kombu
import pytest
from amqp import Message
from amqp.exceptions import AMQPError
from celery import Celery
from celery.beat import Scheduler as CelerysScheduler
from celery.schedules import crontab

from celery_rabbit_delay import CascadeConflict, NotPermitted, UnsupportedConfiguration
from celery_rabbit_delay.periodic import beat
from celery_rabbit_delay.periodic.beat_status import BeatStatus, beat_status
from celery_rabbit_delay.periodic.core.entries import Edit, State, dump
from celery_rabbit_delay.periodic.core.runs import Run
from celery_rabbit_delay.periodic.lock import STEP, Lock
from tests.kit.broker import Vhost
from tests.kit.commands import celery, management, run
from tests.kit.commands import documented_permissions as documented
from tests.kit.node import free_port
from tests.kit.wait import wait_until

QUEUE = "celery-rabbit-delay.beat.shop"

MakeLock = Callable[..., Lock]


@pytest.fixture
def make_lock(vhost: Vhost) -> Iterator[MakeLock]:
    connections: list[kombu.Connection] = []

    def make(user: str = "guest", **options: Any) -> Lock:
        connections.append(kombu.Connection(vhost.url("amqp", user), heartbeat=60))
        return Lock(connections[-1], QUEUE, "here:1", patience=60)

    yield make
    for connection in connections:
        connection.collect()  # whatever the broker still has to say


def hold(lock: Lock, body: bytes = b"mine") -> None:
    wait_until(lambda: lock.wait(0.1), "it is the active consumer")
    lock.write(body)


def publish(vhost: Vhost, *bodies: bytes, **properties: Any) -> None:
    with vhost.plain() as connection:
        for body in bodies:
            connection.default_channel.basic_publish(Message(body, **properties), "", QUEUE)


def test_one_holds_the_lock_and_the_next_gets_what_it_has_left(vhost: Vhost, make_lock: MakeLock) -> None:
    first, second = make_lock(), make_lock()
    hold(first, b"1")
    hold(first, b"2")
    assert not second.wait(0.2)
    first.abandon()
    assert second.wait(60)
    assert second.left[-1] == b"2"  # the end of a connection may overtake its last acknowledgement
    second.write(b"3")
    assert second.left == []
    second.abandon()
    third = make_lock()
    assert third.wait(60)
    assert third.left[-1] == b"3"


def test_a_policy_that_delays_retries_keeps_what_is_left_from_no_holder(vhost: Vhost, make_lock: MakeLock) -> None:
    vhost.delay_retries()
    lock = make_lock()
    hold(lock, b"state")
    for _ in range(3):
        lock.abandon()
        lock = make_lock()
        assert lock.wait(60)
        assert lock.read_left()[0] == b"state"


def test_teardown_names_the_queues_of_beats_and_deletes_them_when_it_is_asked_to(
    vhost: Vhost, make_lock: MakeLock
) -> None:
    lock = make_lock()
    hold(lock)
    teardown = "teardown", "--yes", "--delete-messages", *management(vhost)
    kept = f"the queue '{QUEUE}' with the last runs and written entries of beat"
    wait_until(lambda: f"{kept} stays, --beat deletes it" in run(vhost.url("amqp"), *teardown).out, "the API shows it")
    refused = run(vhost.url("amqp"), *teardown, "--beat")
    assert (refused.code, f"the beat of '{QUEUE}' is active: stop all its processes first" in refused.err) == (1, True)
    lock.abandon()
    wait_until(lambda: f"{kept} is deleted" in run(vhost.url("amqp"), *teardown, "--beat").out, "it is not in use")
    assert QUEUE not in vhost.names("queues")
    assert kept not in run(vhost.url("amqp"), *teardown).out


def test_who_has_lost_the_lock_notices_before_it_has_written(vhost: Vhost, make_lock: MakeLock) -> None:
    first, second = make_lock(), make_lock()
    hold(first)
    vhost.delete_queue(QUEUE)
    with pytest.raises(AMQPError):
        first.write(b"late")
    with pytest.raises(AMQPError):
        second.wait(60)


def test_only_the_last_message_stays_however_often_it_is_replaced(vhost: Vhost, make_lock: MakeLock) -> None:
    lock = make_lock()
    for number in range(100):
        hold(lock, b"%d" % number)
    lock._channel.queue_declare(QUEUE, passive=True)  # what acknowledges the one before is not lost with the connection
    lock.abandon()
    wait_until(lambda: vhost.count(QUEUE) == 1, "the message is back in the queue")


def test_messages_of_others_do_not_displace_what_the_holder_has_written(vhost: Vhost, make_lock: MakeLock) -> None:
    lock = make_lock()
    hold(lock)
    publish(vhost, *[b"forged"] * 300)
    hold(lock, b"still mine")
    assert lock.left == []
    lock.abandon()
    after = make_lock()
    assert after.wait(60)
    assert after.left[-1] == b"still mine"
    assert b"forged" not in after.left


@pytest.mark.parametrize("transport", ["amqp", "rabbit-delay"])
def test_a_delayed_task_cannot_be_sent_on_a_connection_that_has_lost_the_lock(vhost: Vhost, transport: str) -> None:
    vhost.declare("q")
    with kombu.Connection(vhost.url(transport), transport_options={"confirm_publish": True}) as connection:
        lock = Lock(connection, QUEUE, "here:1", patience=60)
        hold(lock)
        producer = connection.Producer(lock.channel())
        producer.publish("x", routing_key="q")
        lock.abandon()
        with pytest.raises((AMQPError, OSError)):
            producer.publish("x", routing_key="q", headers={"x-delay": 100}, retry=False)
    assert len(vhost.take("q", 1)) == 1
    assert vhost.count("q") == 0


def test_the_holder_answers_who_asks_and_nobody_else(vhost: Vhost, make_lock: MakeLock) -> None:
    with vhost.connection() as connection:
        assert beat_status(connection, QUEUE) is None
        lock = make_lock()
        hold(lock)
        assert beat_status(connection, QUEUE, patience=0.5) == BeatStatus(None, [])
        vhost.declare("victim")
        for reply_to in ("victim", "amq.rabbitmq.reply-to.forged"):
            publish(vhost, b"", reply_to=reply_to)
        wait_until(lambda: lock.wait(0.1) and lock.questions, "the questions are there")
        for question in lock.questions:
            lock.answer(question, b"{}")
        hold(lock)
        assert vhost.count("victim") == 0


def test_other_brokers_and_other_queues_are_errors(vhost: Vhost, make_lock: MakeLock) -> None:
    with pytest.raises(UnsupportedConfiguration, match="is not RabbitMQ"):
        Lock(kombu.Connection("memory://"), QUEUE, "here:1", patience=60)
    vhost.declare(QUEUE)
    with pytest.raises(CascadeConflict, match="has other properties"):
        make_lock()


def test_a_beat_needs_no_more_than_its_row(vhost: Vhost, make_lock: MakeLock) -> None:
    permissions = documented("beat")
    hold(make_lock(vhost.user(**permissions)))
    for lacking in ("configure", "read"):
        with pytest.raises(NotPermitted, match="permission denied"):
            make_lock(vhost.user(**permissions | {lacking: "^$"}))
    unheard = make_lock(vhost.user(**permissions | {"write": "^$"}))
    with pytest.raises(AMQPError, match="access"):
        wait_until(lambda: unheard.wait(0.1), "it is refused")


@contextmanager
def scheduling(vhost: Vhost, schedule: dict[str, Any], ahead: timedelta = timedelta()) -> Iterator[beat.Scheduler]:
    """Yield a scheduler whose clock is ahead."""
    app = Celery("shop", broker=vhost.url("amqp"), set_as_current=False)
    app.conf.beat_schedule = schedule
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beat, "_now", lambda: datetime.now(timezone.utc) + ahead)
        patch.setattr(app, "now", lambda: (datetime.now(timezone.utc) + ahead).astimezone(app.timezone))
        with closing(app), closing(beat.Scheduler(app)) as scheduler:
            yield scheduler


def tick_for(scheduler: beat.Scheduler, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(max(scheduler.tick(), 0), 0.2))


def test_clocks_that_differ_send_nothing_twice(vhost: Vhost) -> None:
    vhost.declare("celery")
    schedule = {"each minute": {"task": "t", "schedule": crontab()}, "each half": {"task": "u", "schedule": 30}}
    seconds = datetime.now(timezone.utc).second
    ahead = timedelta(seconds=(58 - seconds) % 60 + 60)  # it is two seconds before the minute
    with scheduling(vhost, schedule, ahead) as fast:
        tick_for(fast, 4)
    assert vhost.count("celery") == 1
    with scheduling(vhost, schedule) as right:
        tick_for(right, 4)
    assert vhost.count("celery") == 1


def test_a_run_that_was_sent_and_not_noted_has_the_same_id_when_it_is_sent_again(vhost: Vhost) -> None:
    schedule = {"run": {"task": "t", "schedule": 0.5}}
    with scheduling(vhost, schedule) as first, pytest.MonkeyPatch.context() as patch:
        tick_for(first, 0.3)

        def add(lock: Lock, body: bytes) -> None:
            if sent:
                raise TimeoutError("the network is cut")
            original(lock, body)

        def send(scheduler: beat.Scheduler, entry: Any, id_: str) -> None:
            original_send(scheduler, entry, id_)
            sent.append(id_)

        sent: list[str] = []
        original, original_send = Lock.add, beat.Scheduler._send
        patch.setattr(Lock, "add", add)
        patch.setattr(beat.Scheduler, "_send", send)
        wait_until(lambda: first.tick() == STEP and first._lock is None, "it has sent, and could not note it")
    with scheduling(vhost, schedule) as second:
        tick_for(second, 1.5)
    ids = [message.headers["id"] for message in vhost.take("celery", 2)]
    assert ids[:2] == sent * 2
    assert len(set(ids[1:])) == len(ids) - 1


def test_what_wraps_apply_entry_of_celerys_scheduler_is_called_for_each_run(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the cron monitors of Sentry and the traces of Datadog do, when beat is there already."""
    vhost.declare("celery")
    checked_in: list[str] = []

    def wrapped(*args: Any, **kwargs: Any) -> None:
        _, entry = args
        checked_in.append(entry.name)
        headers = entry.options.pop("headers", {})
        headers.update({"check-in": entry.name})
        entry.options["headers"] = headers
        original(*args, **kwargs)

    def written(name: str, **options: Any) -> None:
        definition = {"task": name, "schedule": "crontab * * * * *", "args": [], "kwargs": {}, "options": options}
        edit = Edit(name, name, 0, definition)
        assert scheduler.answer(dumps({"edit": edit})) == {"done": True}

    ahead = timedelta(seconds=(57 - datetime.now(timezone.utc).second) % 60)  # it is three seconds before the minute
    at_each_minute = {name: {"task": name, "schedule": crontab()} for name in ("minute", "disabled")}
    with scheduling(vhost, at_each_minute, ahead) as scheduler:
        wait_until(lambda: scheduler.tick() and scheduler._lock and scheduler._lock.is_held, "it is active")
        disabling = Edit("disable", "disabled", 0, None, is_enabled=False)
        assert scheduler.answer(dumps({"edit": disabling})) == {"done": True}
        written("written")
        written("lost", exchange="nowhere", routing_key="lost", headers={"mine": 1})
        original = CelerysScheduler.apply_entry
        monkeypatch.setattr(CelerysScheduler, "apply_entry", wrapped)
        wait_until(lambda: scheduler.tick() >= 0 and len(checked_in) == 3, "all have run")
        assert sorted(checked_in) == ["lost", "minute", "written"]
        assert "beat: lost is not sent, trying again" in caplog.text
        assert set(scheduler.schedule) == {"minute", "lost", "written"}
        for name, answer in {"minute": {"done": True}, "lost": {"error": ANY}, "disabled": {"done": True}}.items():
            assert scheduler.answer(dumps({"run": name, "id": name})) == answer
        assert scheduler.answer(dumps({"entry": "lost"}))["entries"]["lost"]["definition"]["options"]["headers"] == {
            "mine": 1
        }
        assert sorted(checked_in) == ["disabled", "lost", "lost", "minute", "minute", "written"]
        vhost.declare("lost", exchange="nowhere")
        wait_until(lambda: scheduler.tick() >= 0 and vhost.count("lost"), "what was refused is sent")
    sent = [message.headers for message in vhost.take("celery", 4)]
    assert sorted(one["check-in"] for one in sent) == sorted(one["task"] for one in sent)
    assert sorted(one["task"] for one in sent) == ["disabled", "minute", "minute", "written"]


def test_what_is_no_state_is_dropped_with_a_warning(vhost: Vhost, caplog: pytest.LogCaptureFixture) -> None:
    schedule = {"run": {"task": "t", "schedule": 3600}}
    with scheduling(vhost, schedule) as scheduler:
        tick_for(scheduler, 0.2)
        begun = scheduler.schedule["run"].last_run_at
    wait_until(lambda: vhost.count(QUEUE) == 1, "nobody is active")
    publish(vhost, b"junk")
    publish(vhost, dump(State(runs={"run": Run(datetime(9999, 1, 1, tzinfo=timezone.utc), 1)})))
    with scheduling(vhost, schedule) as scheduler:
        tick_for(scheduler, 0.2)
        assert scheduler.schedule["run"].last_run_at == begun
    assert "not from a beat" in caplog.text


def test_a_worker_that_takes_the_scheduler_for_a_file_ends_and_says_what_to_write(tmp_path: Path) -> None:
    url = f"amqp://127.0.0.1:{free_port()}//"
    result = celery("-b", url, "worker", "-B", "-S", "rabbit-delay", directory=tmp_path)
    assert result.code == 1
    assert "use --scheduler rabbit-delay, or beat_scheduler" in result.err
    assert not list(tmp_path.iterdir())

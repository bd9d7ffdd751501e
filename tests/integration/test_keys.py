"""Only the last of all waiting messages with the same key is delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError
from celery.exceptions import Ignore
from kombu import Producer

import celery_rabbit_delay
from celery_rabbit_delay import StreamUnavailable
from celery_rabbit_delay.amqp import declare, event_loop
from celery_rabbit_delay.amqp.limited import LimitedConnection
from celery_rabbit_delay.amqp.stream_writer import StreamWriter
from celery_rabbit_delay.core.headers import X_DELAY_NUMBER
from celery_rabbit_delay.core.plan import Plan
from tests.kit.broker import Vhost, take

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

LAST = 11.0  # seconds: what is due then arrives after all others


def publish(connection: Any, name: str, delay: float, key: str | None = "report-42", **headers: Any) -> None:
    keyed = {} if key is None else {"x-delay-key": key}
    connection.Producer().publish(name, routing_key="q", headers={"x-delay": delay * 1000, **keyed, **headers})


def arriving(connection: Any) -> list[str]:
    """Yield messages until one that is due after all others."""
    found: list[str] = []
    publish(connection, "end", LAST, key=None)
    while "end" not in found:
        found += [message.payload for message in take(connection, "q", 1)]
    return found[:-1]


@pytest.mark.parametrize("journal", [pytest.param(None, marks=pytest.mark.more), 0])
def test_only_the_last_of_a_key_is_delivered_also_when_it_is_due_before_an_earlier_one(
    vhost: Vhost, journal: float | None
) -> None:
    vhost.declare("q")
    with vhost.connection(journal=journal) as connection:
        for name, delay in (("first", 7), ("second", 9), ("third", 8)):
            publish(connection, name, delay)
        publish(connection, "another", 7.5, key="report-43")
        publish(connection, "without", 8.5, key=None)
        assert sorted(arriving(connection)) == ["another", "third", "without"]


def test_the_brokers_order_decides_and_not_the_clocks_of_publishers(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) - timedelta(seconds=30)

    vhost.declare("q")
    with vhost.connection() as one, vhost.connection() as behind:
        publish(one, "first", 4)
        monkeypatch.setattr("celery_rabbit_delay.amqp.transport.datetime", Behind)
        publish(behind, "last", 4)
        assert arriving(one) == ["last"]


def test_a_consumer_that_has_run_for_a_while_learns_of_later_messages(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as publisher, vhost.connection() as consumer:
        publish(publisher, "before", 0.1)
        assert take(consumer, "q", 1)[0].payload == "before"
        publish(publisher, "first", 7)
        publish(publisher, "second", 8)
        assert arriving(consumer) == ["second"]


@pytest.mark.parametrize("delay", [0.01, 0.3])
def test_no_message_is_dropped_because_it_is_due_before_its_consumer_hears_that_it_is_the_last(
    vhost: Vhost, delay: float
) -> None:
    vhost.declare("q")
    with vhost.connection() as publisher, vhost.connection() as consumer:
        for n in range(20):
            publish(publisher, str(n), delay)
            assert take(consumer, "q", 1)[0].payload == str(n)


def test_the_messages_of_a_batch_replace_each_other(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection, connection.Producer() as producer:
        assert isinstance(producer, Producer)
        with celery_rabbit_delay.batch(producer):
            for name in ("first", "second", "third"):
                headers = {"x-delay": 7000, "x-delay-key": "report-42"}
                producer.publish(name, routing_key="q", headers=headers)
        assert arriving(connection) == ["third"]


@pytest.mark.parametrize(
    "error",
    [pytest.param(RecoverableConnectionError("lost"), marks=pytest.mark.more), StreamUnavailable("it has no leader")],
)
def test_a_batch_whose_keys_could_not_be_told_at_first_is_not_lost(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    vhost.declare("celery")
    app = make_app()
    headers = {"x-delay-key": "report-42"}
    app.send_task("t", ("first",), countdown=7, headers=headers)
    write_keys, errors = StreamWriter.write_keys, [error]

    def fail_once(self: StreamWriter, messages: Iterable[Plan]) -> None:
        if errors:
            raise errors.pop()
        write_keys(self, messages)

    monkeypatch.setattr(StreamWriter, "write_keys", fail_once)
    with celery_rabbit_delay.batch(app) as producer:
        app.send_task("t", ("second",), countdown=8, headers=headers, producer=producer)
    assert not errors
    app.send_task("t", ("end",), countdown=LAST)
    found: list[str] = []
    with vhost.connection() as connection:
        while "end" not in found:
            found += [message.payload[0][0] for message in take(connection, "celery", 1)]
    assert set(found) == {"second", "end"}  # it may come twice


@pytest.mark.parametrize("confirmed", ["at once", "later"])
def test_a_message_that_is_sent_in_an_event_loop_replaces_others(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, confirmed: str
) -> None:
    vhost.declare("q")
    timers: list[Callable[[], object]] = []
    with vhost.connection() as connection:
        publish(connection, "first", 7)
        if confirmed == "later":
            monkeypatch.setattr(LimitedConnection, "wait_until", lambda *args: False)
        event_loop.enter(lambda seconds, call: timers.append(call))
        try:
            publish(connection, "second", 8)
        finally:
            event_loop.leave()
        monkeypatch.undo()
        while timers:
            timers.pop()()
        assert arriving(connection) == ["second"]


@pytest.mark.parametrize("step", ["prepare_keys", "write_keys"])
def test_a_key_whose_stream_has_no_leader_at_first_is_written_and_its_message_sent_once(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, "first", 7)
        write, errors = getattr(StreamWriter, step), [StreamUnavailable("it has no leader")]

        def fail_once(self: StreamWriter, *plans: Any) -> None:
            if errors:
                self._connection.abandon()  # as RabbitMQ does with INTERNAL_ERROR
                raise errors.pop()
            write(self, *plans)

        monkeypatch.setattr(StreamWriter, step, fail_once)
        publish(connection, "second", 8)
        assert not errors
        assert arriving(connection) == ["second"]


@pytest.mark.long
def test_a_message_that_is_published_again_as_it_was_received_is_no_later_one(vhost: Vhost) -> None:
    """As Celery's retry does."""
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, "first", 0.1)
        [first] = take(connection, "q", 1)
        assert isinstance(first.headers[X_DELAY_NUMBER], int)
        publish(connection, "again", 3, **first.headers)
        assert arriving(connection) == ["again"]
        publish(connection, "second", 7)
        publish(connection, "again", 8, **first.headers)
        assert arriving(connection) == ["second"]


def test_a_moved_message_is_the_last_one_of_its_key(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options={"journal": 0})
    vhost.declare("celery")
    key = {"x-delay-key": "report-42"}
    first, last = (app.send_task("t", countdown=30, headers=key) for _ in range(2))
    with pytest.raises(celery_rabbit_delay.NotWaiting):
        celery_rabbit_delay.reschedule(app, first.id, countdown=50)
    celery_rabbit_delay.reschedule(app, last.id, countdown=0)
    with vhost.connection() as connection:
        [message] = take(connection, "celery", 1)
        assert message.headers["id"] == last.id
    assert list(celery_rabbit_delay.scheduled(app)) == []


def test_a_consumer_goes_on_after_the_streams_were_deleted(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection, vhost.connection() as sender:
        publish(sender, "first", 0.1)
        assert [one.payload for one in take(connection, "q", 1)] == ["first"]
        for name in vhost.names("queues"):
            if name.endswith((".changes", ".keys")):
                vhost.delete_queue(name)
        for name in ("second", "third"):
            publish(sender, name, 6)
        assert [one.payload for one in take(connection, "q", 1)] == ["third"]
    assert vhost.count("q") == 0


@pytest.mark.own_vhost
def test_a_task_replaces_another_while_another_process_is_creating_the_cascade(vhost: Vhost) -> None:
    vhost.declare("q")
    *exchanges, _ = vhost.cascade.exchanges()
    with vhost.connection() as connection:
        for exchange in exchanges:  # what the other process does first
            declare.declare_exchange(connection.default_channel, exchange)
        for name in ("first", "second"):
            publish(connection, name, 7)
        assert arriving(connection) == ["second"]


@pytest.mark.own_vhost
def test_a_task_replaces_another_after_the_way_to_the_keys_was_deleted(vhost: Vhost) -> None:
    vhost.declare("q")
    cascade = vhost.cascade
    for name in ("first", "second"):
        with vhost.connection() as connection:
            publish(connection, name, 9)
            connection.default_channel.exchange_unbind(cascade.behind_ingest, cascade.ingest, "")
    with vhost.connection() as connection:
        assert arriving(connection) == ["second"]


def started(message: Any, task: Any) -> Any:
    """Make a task run in this thread as a worker runs the one in a message; return it."""
    custom = {name: value for name, value in message.headers.items() if name.startswith("x-")}
    task.typing = False  # it takes no arguments
    task.push_request(
        id=message.headers["id"],
        retries=message.headers["retries"],
        headers=custom,
        delivery_info={"exchange": "", "routing_key": "celery"},
        called_directly=False,
        args=(),
        kwargs={},
    )
    return task


@pytest.mark.parametrize(
    ("how", "countdown"),  # of the parents: one that waits, is due, or has none
    [*((how, 0.5) for how in ("child", "chain", "link", "replace", "retry of another")), ("child", 0), ("link", None)],
)
def test_a_task_that_got_the_headers_of_another_one_is_neither_its_retry_nor_dropped_with_it(
    vhost: Vhost, make_app: MakeApp, how: str, countdown: float | None
) -> None:
    app = make_app()
    vhost.declare("celery")
    task = app.tasks["t"]
    found: list[Any] = []

    with vhost.connection() as connection:

        def receive(name: str) -> Any:
            """Take messages until the next one of that name comes; on a busy machine others may come before."""
            while True:
                found.extend(take(connection, "celery", 1))
                if found[-1].payload[0] == [name]:
                    return found[-1]

        for number in range(2):
            app.send_task("t", ("parent",), countdown=countdown, headers={"x-delay-key": "cart-7"})
            started(receive("parent"), task)
            headers = dict(task.request.headers)
            late = task.si("late").set(headers=headers, countdown=3)
            if how == "child":
                late.apply_async()
                task.apply_async(("now",), headers=headers)
                receive("now")
            elif how == "chain":
                (late | task.si("last")).apply_async()
            elif how == "link":
                task.apply_async(("first",), link=late, headers=headers, countdown=0.05)
                _, _, embed = receive("first").payload
                app.signature(embed["callbacks"][0]).apply_async()
            elif how == "replace":
                with pytest.raises(Ignore):
                    task.replace(late)
            else:
                task.request.update(id=f"another {number}", headers=None)
                task.retry(args=("late",), headers=headers, countdown=3, throw=False)
            task.pop_request()
        children = [message for message in found if message.payload[0] != ["parent"]]
        while [message.payload[0] for message in children].count(["late"]) < 2:
            children += take(connection, "celery", 1)
    assert not [one for one in children if one.headers.keys() & {"x-delay-key", "x-delay-number"}]
    assert all(one.headers.get("x-delay-of", one.headers)["id"] == one.headers["id"] for one in children)


def test_a_retry_is_still_dropped_once_a_later_task_has_its_key(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    vhost.declare("celery")
    task, key = app.tasks["t"], {"x-delay-key": "cart-7"}
    with vhost.connection() as connection:
        app.send_task("t", ("first",), countdown=0.05, headers=key)
        [message] = take(connection, "celery", 1)
        started(message, task).retry(args=("first",), countdown=3, throw=False)
        task.pop_request()
        app.send_task("t", ("second",), countdown=3.5, headers=key)
        [only] = take(connection, "celery", 1)
        assert only.payload[0] == ["second"]
    assert vhost.count("celery") == 0

"""The private parts of Celery, Kombu and py-amqp do what this package relies on."""

from __future__ import annotations

import re
import select
import socket
from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import amqp
import kombu
import pytest
from amqp import spec
from celery import Celery, beat
from celery.worker.request import Request

from celery_rabbit_delay import upstream


def test_settings_are_read_without_loading_the_configuration() -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.broker_url = "amqp://early//"
    assert upstream.settings_so_far(app).get("broker_url") == "amqp://early//"
    assert not app.configured
    assert app.conf.task_protocol == 2  # loads it
    assert app.configured
    assert upstream.settings_so_far(app).broker_url == "amqp://early//"


def test_forgotten_connections_stay_with_whoever_holds_them() -> None:
    app = Celery("shop", broker="amqp://before//", set_as_current=False)
    pool, producers = app.pool, app.amqp.producer_pool
    app.conf.broker_url = "amqp://after//"
    assert app.pool is pool
    upstream.forget_connections(app)
    assert app.pool.connection.hostname == "after"
    assert app.amqp.producer_pool.connections.connection.hostname == "after"
    assert pool.connection.hostname == producers.connections.connection.hostname == "before"


@pytest.mark.filterwarnings("ignore:(?s).*The 'queue' task attribute is deprecated")
@pytest.mark.parametrize(
    ("routes", "names"),
    [
        (None, set()),
        ("tests.unit.test_upstream.route", set()),
        (
            {"shop.mail": "mail", "shop.*": {"queue": "rest", "priority": 3}, "shop.x": {"exchange": "x"}},
            {"mail", "rest"},
        ),
        ([[(re.compile("feed.*"), {"queue": kombu.Queue("feeds")}), ("feed.y", "y")]], {"feeds", "y"}),
        ([{"a": "one"}, {"b.*": "two"}], {"one", "two"}),
    ],
)
def test_the_queues_that_an_app_routes_to_are_known(routes: Any, names: set[str]) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.task_routes = routes
    app.task(name="own", queue="of the task", shared=False)(route)
    assert upstream.queues_routed_to(app) == {*names, "of the task"}


def route(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a function that chooses is not called")


def test_a_mixin_comes_before_the_class_that_an_object_has() -> None:
    class Base:
        def word(self) -> str:
            return "base"

    class Mixin:
        extra = 0

        def word(self) -> str:
            return f"mixed {super().word()}"  # type: ignore[misc]

    one: Any = Base()
    other = Base()
    upstream.mix_in(one, Mixin, extra=5)
    assert (one.word(), other.word()) == ("mixed base", "base")
    assert isinstance(one, Base)
    assert isinstance(one, Mixin)
    assert one.extra == 5
    assert type(one).__name__ == "Mixin"


def test_a_request_without_its_eta_is_one_to_run_at_once() -> None:
    request = Request.__new__(Request)
    request._eta = datetime(2030, 1, 1, tzinfo=timezone.utc)
    assert request.eta == datetime(2030, 1, 1, tzinfo=timezone.utc)
    upstream.clear_eta(request)
    assert request.eta is None


def connection_to(frames: list[Any], **options: Any) -> Any:
    """Return a connection that writes its frames into a list."""
    connection = amqp.Connection(**options)
    connection._transport = SimpleNamespace(having_timeout=lambda timeout: nullcontext(), sock=None)
    connection._frame_writer = lambda *frame: frames.append(frame)
    return connection


def test_a_channel_that_is_closed_without_waiting_is_closed_once() -> None:
    frames: list[Any] = []
    channel = amqp.Channel(connection_to(frames))
    upstream.close_without_waiting(channel)
    assert frames == []  # it was not open yet
    channel.is_open = True
    upstream.close_without_waiting(channel)
    upstream.close_without_waiting(channel)
    [(_, channel_id, method, *_)] = frames
    assert (channel_id, method) == (channel.channel_id, spec.Channel.Close)


def test_a_connection_is_ended_once_either_side_has_closed_it_whatever_was_not_read() -> None:
    ours, theirs = socket.socketpair()
    connection = SimpleNamespace(_transport=SimpleNamespace(sock=ours))
    assert not upstream.is_ended(connection)
    theirs.send(b"not read")
    assert not upstream.is_ended(connection)
    theirs.close()
    assert upstream.is_ended(connection)
    assert ours.recv(100) == b"not read"
    ours.close()
    assert upstream.is_ended(connection)
    assert upstream.is_ended(SimpleNamespace(_transport=None))


def test_a_connection_has_input_once_something_came_or_the_other_side_has_closed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        connection = SimpleNamespace(transport=SimpleNamespace(sock=ours))
        assert not upstream.has_input(connection)
        theirs.send(b"1")
        assert upstream.has_input(connection)
        ours.recv(1)
        assert not upstream.has_input(connection)
        theirs.close()
        assert upstream.has_input(connection)
        secure = SimpleNamespace(pending=None, fileno=ours.fileno)
        assert upstream.has_input(SimpleNamespace(transport=SimpleNamespace(sock=secure))), "TLS"
        monkeypatch.delattr(select, "poll", raising=False)
        assert upstream.has_input(connection), "nobody knows"
    assert upstream.has_input(connection), "closed here"
    assert upstream.has_input(SimpleNamespace(transport=SimpleNamespace(sock=None)))


def test_a_closed_socket_is_closed_for_this_process_alone() -> None:
    ours, theirs = socket.socketpair()
    child = socket.fromfd(ours.fileno(), ours.family, ours.type)  # another process's copy
    connection = amqp.Connection()
    upstream.close_socket(connection)  # was never open
    connection._transport = SimpleNamespace(sock=ours)
    upstream.close_socket(connection)
    assert connection._transport.sock is None
    assert ours.fileno() == -1
    child.sendall(b"still open")
    assert theirs.recv(10) == b"still open"
    upstream.close_socket(connection)
    for end in (child, theirs):
        end.close()


def test_a_scheduler_runs_an_entry_again_when_it_is_told_to() -> None:
    sent: list[str] = []

    class Scheduler(beat.Scheduler):  # type: ignore[misc]
        def apply_entry(self, entry: Any, producer: Any = None) -> None:
            sent.append(entry.name)
            raise LookupError

        producer = None

    app = Celery("shop", broker="memory://", set_as_current=False)
    long_ago = datetime(2026, 1, 1, tzinfo=timezone.utc)
    scheduler = Scheduler(app)
    entry = scheduler.add(name="run", task="t", schedule=60, last_run_at=long_ago)
    with pytest.raises(LookupError):
        scheduler.tick()
    scheduler.schedule["run"] = entry
    upstream.schedule_again(scheduler, entry, 30)
    [event] = scheduler._heap
    assert event[2] is entry
    assert 28 < event[0] - scheduler._when(entry, 0) <= 31
    going_on = scheduler._heap
    upstream.unschedule(scheduler, "other")
    assert scheduler._heap == [event]
    upstream.unschedule(scheduler, "run")
    assert scheduler._heap == []
    assert going_on == [event]
    upstream.schedule_again(scheduler, entry, 0)
    with pytest.raises(LookupError):
        scheduler.tick()
    assert sent == ["run", "run"]

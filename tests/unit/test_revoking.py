"""Celery's remote control commands, which are stored in RabbitMQ as well; no broker is contacted."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from amqp.exceptions import PreconditionFailed, RecoverableConnectionError
from celery import Celery
from celery.app.control import Control
from celery.exceptions import SoftTimeLimitExceeded

import celery_rabbit_delay
from celery_rabbit_delay.schedule.app import pausing, revoking
from celery_rabbit_delay.schedule.app.revoking import changes_in
from celery_rabbit_delay.schedule.core.changes import Changes

ID = uuid.UUID("7e2b6a4c-5d4e-4e0b-8d4b-0c1f6ed7f2a1")


class Heard(Control):  # type: ignore[misc]
    """Celery's remote control, which notes what it would send."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self.heard: list[Any] = []

    def broadcast(self, command: str, arguments: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.heard.append((command, arguments.get("task_id", arguments.get("headers"))))


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    app = Celery("shop", broker="amqp://nobody.example//", control=Heard, set_as_current=False)
    celery_rabbit_delay.install(app, schedule=True)
    monkeypatch.setattr(kombu.Connection, "default_channel", None)
    return app


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (ID, str(ID)),
        ([ID, "b"], [str(ID), "b"]),
        ((str(ID),), [str(ID)]),
        ("a", "a"),
        (5, 5),
        (None, None),
        ([], []),
    ],
)
@pytest.mark.parametrize("command", ["revoke", "terminate"])
def test_an_id_may_be_a_uuid_and_whatever_it_is_workers_are_told_and_it_is_stored(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, command: str, ids: Any, told: Any
) -> None:
    stored: list[bytes] = []
    monkeypatch.setattr(revoking, "write_changes", lambda connection, messages, seconds: stored.extend(messages))
    getattr(app.control, command)(ids)
    assert app.control.heard == [("revoke", told)]
    known = Changes(lambda: 0)
    assert [id_ for message in stored for id_ in known.apply(message)] == [
        str(id_) for id_ in (ids if isinstance(ids, (list, tuple)) else [ids] if ids else [])
    ]
    assert not caplog.records


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        raise error

    return function


@pytest.mark.parametrize("where", ["changes_in", "write_changes"])
def test_whatever_our_part_raises_workers_are_told(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.setattr(revoking, where, raising(ArithmeticError("a fault")))
    app.control.revoke("a")
    app.control.revoke_by_stamped_headers({"customer": "7"})
    assert app.control.heard == [("revoke", "a"), ("revoke_by_stamped_headers", {"customer": "7"})]
    assert caplog.messages == 2 * ["RabbitMQ cannot store this revoke, so only the running workers know of it: a fault"]


def test_an_interrupt_ends_a_call(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoking, "write_changes", raising(SoftTimeLimitExceeded()))
    with pytest.raises(SoftTimeLimitExceeded):
        app.control.revoke("a")


@pytest.mark.parametrize("headers", [None, 5, "x", ["no value"], {}])
def test_odd_headers_are_left_to_celery(headers: Any) -> None:
    assert changes_in("revoke_by_stamped_headers", {"headers": headers}) == []
    assert changes_in("shutdown", {}) == []


@pytest.mark.parametrize("id_", [5, None, b"a"])
def test_an_id_that_is_none_is_an_error_where_it_would_be_an_untrue_answer(app: Celery, id_: Any) -> None:
    for call in (celery_rabbit_delay.find, celery_rabbit_delay.reschedule, celery_rabbit_delay.cancel):
        more: dict[str, Any] = {"countdown": 5} if call is celery_rabbit_delay.reschedule else {}
        with pytest.raises(TypeError, match="is not the id of a task: use a str"):
            call(app, id_, **more)
        with pytest.raises(ValueError, match="the id of a task is empty"):
            call(app, "", **more)


@pytest.mark.parametrize("name", [5, None, b"q", kombu.Queue("q")])
def test_a_queue_is_paused_by_its_name(app: Celery, name: Any) -> None:
    for call in (celery_rabbit_delay.pause, celery_rabbit_delay.resume):
        with pytest.raises(TypeError, match="is not the name of a queue: use a str"):
            call(app, name)


def test_a_worker_that_may_not_consume_a_queue_again_connects_again() -> None:
    """RabbitMQ has closed the channel, with the consumers of all its queues."""

    def follow_pauses() -> None:
        raise PreconditionFailed("the queue has other arguments by now")

    consumer: Any = SimpleNamespace(task_consumer=SimpleNamespace(follow_pauses=follow_pauses))
    with pytest.raises(RecoverableConnectionError, match="other arguments"):
        pausing.follow_pauses(consumer)

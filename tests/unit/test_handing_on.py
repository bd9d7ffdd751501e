"""The choice of tasks that a worker hands on."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import RecoverableConnectionError
from celery.worker import state as worker_state

from celery_rabbit_delay import InvalidDelay, InvalidDestination, MessageRefused, Options
from celery_rabbit_delay.delay.amqp.interceptor import Interceptor
from celery_rabbit_delay.delay.amqp.limited import PAUSE
from celery_rabbit_delay.delay.app.handing_on import HandingOn, due_of, has_waited

DUE = datetime(2030, 7, 1, 12, tzinfo=timezone.utc)
SOON = datetime.now(timezone.utc) + timedelta(hours=1)


def message(headers: dict[str, Any], payload: Any = None, delayed_until: datetime | None = None) -> Any:
    return SimpleNamespace(headers=headers, payload=payload, delayed_until=delayed_until, held=None)


@pytest.mark.parametrize(
    ("headers", "payload", "due"),
    [
        ({"task": "t", "eta": "2030-07-01T12:00:00+00:00"}, [[], {}, {}], DUE),
        ({"task": "t", "eta": "2030-07-01T14:00:00+02:00"}, None, DUE),
        ({"task": "t", "eta": "2030-07-01T12:00:00"}, None, DUE),  # UTC to Celery's worker
        ({"task": "t", "eta": None}, {"task": "t", "eta": "2030-07-01T12:00:00"}, None),
        ({"task": "t", "eta": "soon"}, None, None),
        ({"task": "t", "eta": 5}, None, None),
        ({"task": "t", "eta": "0001-01-01T00:00:00+14:00"}, None, None),
        ({}, {"task": "t", "eta": "2030-07-01T12:00:00"}, DUE),  # task protocol 1
        ({}, {"task": "t"}, None),
        ({}, {"eta": "2030-07-01T12:00:00"}, None),
        ({"eta": "2030-07-01T12:00:00"}, "not a task", None),
    ],
)
def test_the_eta_of_either_task_protocol_is_read_as_celerys_worker_reads_it(
    headers: dict[str, Any], payload: Any, due: datetime | None
) -> None:
    assert due_of(message(headers, payload)) == due


def test_a_body_that_cannot_be_decoded_is_celerys_to_complain_of() -> None:
    class Undecodable:
        headers: dict[str, Any] = {}  # noqa: RUF012

        @property
        def payload(self) -> Any:
            raise ValueError("not JSON")

    assert due_of(Undecodable()) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delayed_until", "waited"),
    [
        (None, False),
        (DUE, True),
        (DUE - timedelta(milliseconds=1), True),  # the header counts whole milliseconds
        (DUE + timedelta(days=1), True),  # an x-delay beside the eta
        (DUE - timedelta(hours=1), False),  # a retry, published by a worker that does not know the header
    ],
)
def test_a_task_that_came_out_of_the_cascade_is_not_sent_round_again_by_a_worker_whose_clock_is_slow(
    delayed_until: datetime | None, waited: bool
) -> None:
    assert has_waited(message({}, delayed_until=delayed_until), DUE) is waited


class Worker:
    """A worker's consumer, with what sends on its connection."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[Any] = []
        self.acknowledged: list[str] = []
        self.fails: Exception | None = None
        self.seconds: float | None = None
        queues = [SimpleNamespace(name=name, no_ack=name == "no ack") for name in ("q", "theirs", "no ack")]
        tags = {queue.name: f"tag of {queue.name}" for queue in queues}
        connection = SimpleNamespace(
            sender=self, delay_options=Options(**options), userid="guest", interceptor=Interceptor()
        )
        self.consumer: Any = SimpleNamespace(
            channel=SimpleNamespace(connection=connection), connection=connection, queues=queues, _active_tags=tags
        )
        self.handing_on = HandingOn(self.consumer)

    def publish(self, plan: Any, seconds: float) -> None:
        self.seconds = seconds
        if self.fails:
            raise self.fails
        self.sent.append(plan)

    def offer(self, id_: str, queue: str = "q", due: datetime = SOON, **properties: Any) -> bool:
        info = {"exchange": "", "routing_key": queue, "consumer_tag": f"tag of {queue}"}
        one = message({"task": "t", "id": id_, "eta": due.isoformat()}, {})
        one.properties, one.delivery_info = properties, info
        one.amqp_message, one.ack = Message(b""), partial(self.acknowledged.append, id_)
        return self.handing_on.offer(one)


@pytest.mark.parametrize(
    "task",
    [
        {"due": datetime(2020, 1, 1, tzinfo=timezone.utc)},
        {"queue": "no ack"},
        {"queue": "elsewhere"},
        {"user_id": "another"},
        {"id_": "revoked"},
    ],
    ids=str,
)
def test_a_worker_keeps_what_it_may_not_hand_on(task: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_state, "revoked", {"revoked"})
    worker = Worker()
    assert not worker.offer(**{"id_": "1", **task})
    assert (worker.sent, worker.acknowledged) == ([], [])


@pytest.mark.parametrize("error", [InvalidDelay("too long"), InvalidDestination("no"), MessageRefused("too large")])
def test_a_refusal_that_concerns_a_task_alone_keeps_no_other_of_its_queue(error: Exception) -> None:
    worker = Worker()
    worker.fails = error
    assert not worker.offer("1")
    worker.fails = None
    assert worker.offer("2")
    assert worker.acknowledged == ["2"]


@pytest.mark.parametrize("error", [RecoverableConnectionError("lost"), TimeoutError("no answer"), OSError("reset")])
def test_a_worker_whose_broker_does_not_answer_holds_tasks_for_a_moment(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait keeps the worker from everything else, so it does not wait for one task after the other."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    worker = Worker()
    worker.fails = error
    assert not worker.offer("1")
    worker.fails = None
    now += PAUSE - 0.1
    assert not worker.offer("2", "theirs")
    now += 0.2
    assert worker.offer("3")
    assert worker.acknowledged == ["3"]


def test_a_consumer_that_has_ended_takes_what_still_comes_and_acknowledges_nothing() -> None:
    worker = Worker()
    worker.handing_on.is_over = True
    assert worker.offer("1")
    assert (worker.sent, worker.acknowledged) == ([], [])

"""The choice of tasks that a worker hands on."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay import NotPermitted
from celery_rabbit_delay.amqp.event_loop import LONGEST, LOOK, EventLoop
from celery_rabbit_delay.app import handing_on
from celery_rabbit_delay.app.handing_on import (
    MOST,
    HandingOn,
    Report,
    Task,
    came_early,
    due_of,
    has_waited,
)
from celery_rabbit_delay.core.headers import State

DUE = datetime(2030, 7, 1, 12, tzinfo=timezone.utc)


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


ETA = {"task": "t", "eta": DUE.isoformat()}


@pytest.mark.parametrize(
    ("headers", "seconds", "early"),
    [
        ({}, -1, False),
        ({}, 0, False),
        ({}, 0.001, True),
        (ETA, 0.001, False),  # Celery holds it, if it is not due by the clock of this host
        (ETA, 5, False),
        (ETA, 5.001, True),
        ({"task": "t", "eta": (DUE - timedelta(hours=1)).isoformat()}, 1, True),  # it also has an x-delay
    ],
)
def test_a_message_that_came_before_its_delivery_time_is_noticed_by_what_nobody_else_would_hold(
    headers: dict[str, Any], seconds: float, early: bool
) -> None:
    given, now = message(headers), DUE - timedelta(seconds=seconds)
    assert came_early(given, due_of(given), now) is None, "it has passed levels, or comes from elsewhere"
    given.held = State("root", "", DUE, {})
    assert (came_early(given, due_of(given), now) is not None) is early


def test_a_worker_reports_once_for_all_tasks_that_it_hands_on_and_needs_no_timer_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    timers: list[Any] = []

    def call_after(seconds: float, report: Any) -> Any:
        timers.append(SimpleNamespace(fire=report, cancel=lambda: None))
        return timers[-1]

    worker = Worker()
    consumer = SimpleNamespace(task_consumer=worker, timer=SimpleNamespace(call_after=call_after))
    Report(consumer).start(consumer)
    assert not timers
    with caplog.at_level(logging.INFO):
        for tasks in (3, 2):
            worker.take(*map(task, range(tasks)))
            worker.finish()
            timers[-1].fire()
        worker.handing_on.report()
    assert len(timers) == 2
    assert [record.getMessage().split()[0] for record in caplog.records] == ["3", "2"]


class Worker:
    """A worker's consumer, its event loop, and what sends on its connection."""

    is_blocked = False

    def __init__(self, at_once: int = 7) -> None:
        self.at_once = at_once  # so many answers are there at each look
        self.sent: list[Any] = []
        self.waiting: list[Any] = []
        self.timers: list[Any] = []
        self.pauses: list[float] = []
        self.kept: list[int] = []
        self.lost = False
        self.breaks: list[bool] = []
        connection = SimpleNamespace(sender=self, delay_options=None)
        self.consumer: Any = SimpleNamespace(channel=SimpleNamespace(connection=connection))
        self.loop = EventLoop(self.call_later)
        self.handing_on = HandingOn(self.consumer)
        self.handing_on.keep = lambda message: self.kept.append(message.number)

    def call_later(self, seconds: float, call: Any) -> None:
        self.pauses.append(seconds)
        self.timers.append(call)

    @property
    def unanswered(self) -> int:
        return len(self.waiting)

    def submit(self, plan: Any, answered: Any, seconds: float) -> None:
        if plan == "forbidden":
            raise NotPermitted("it may not")
        if self.breaks:  # when the message is in the socket, or before
            if self.breaks.pop():
                answered(RecoverableConnectionError("lost"))
            raise OSError("broken pipe")
        self.sent.append(plan)
        self.waiting.append(answered)
        assert len(self.waiting) <= MOST

    def publish(self, plan: Any, seconds: float | None) -> None:
        if self.lost:
            raise RecoverableConnectionError("lost")
        self.sent.append(plan)

    def read(self, seconds: float = 0) -> None:
        answered, self.waiting = self.waiting[: self.at_once], self.waiting[self.at_once :]
        for answer in answered:
            answer(RecoverableConnectionError("lost") if self.lost else None)

    def take(self, *tasks: Any) -> None:
        for one in tasks:
            self.handing_on.take(one, self.loop)
            assert len(self.timers) == 1, "it looks for the answer"

    def turn(self) -> None:
        timers, self.timers = self.timers, []
        for call in timers:
            call()
        assert len(self.timers) <= 1

    def finish(self) -> None:
        while self.timers:
            self.turn()


def task(number: int, queue: str = "q", plan: Any = None, due: datetime = DUE) -> Any:
    info = {"exchange": "", "routing_key": queue}
    message: Any = SimpleNamespace(ack=lambda: None, number=number, delivery_info=info, headers={}, amqp_message=None)
    of_queue: Any = SimpleNamespace(name=queue)
    destination: Any = number if plan is None else plan
    return Task(message, of_queue, destination, due)


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a number take the place of a plan, and no time pass: a slow broker counts as silent."""
    monkeypatch.setattr(
        handing_on, "plan", SimpleNamespace(of_received=lambda _, received, destination, *more: destination)
    )
    monkeypatch.setattr(handing_on, "time", SimpleNamespace(monotonic=lambda: 1000.0, monotonic_ns=lambda: 0))


def test_a_worker_hands_on_the_rest_as_answers_come_and_keeps_what_it_cannot_hand_on() -> None:
    worker = Worker()
    tasks = [task(number) if number % 2 else task(number, "theirs", "forbidden") for number in range(1, 3 * MOST)]
    worker.take(*tasks, task(3 * MOST, due=datetime.now(timezone.utc)))  # is due meanwhile
    worker.finish()
    assert worker.sent == [number for number in range(3 * MOST) if number % 2]
    assert sorted(worker.kept) == [number for number in range(1, 3 * MOST + 1) if not number % 2]


def test_a_worker_looks_for_answers_less_and_less_often_while_none_comes() -> None:
    worker = Worker(at_once=0)
    worker.take(task(0))
    for _ in range(10):
        worker.turn()
    assert worker.pauses[:4] == [LOOK, 2 * LOOK, 4 * LOOK, 8 * LOOK]
    assert worker.pauses[-1] == LONGEST
    worker.at_once = 1  # the broker answers
    worker.turn()
    worker.take(task(1))
    assert worker.pauses[-1] == LOOK


def test_a_worker_to_which_more_and_more_come_reads_on_before_it_sends_more() -> None:
    worker = Worker(at_once=MOST)
    worker.take(*map(task, range(MOST + 10)))
    assert len(worker.sent) == MOST
    worker.turn()
    assert len(worker.sent) == MOST, "more have come since"
    worker.turn()
    assert len(worker.sent) == MOST + 10, "none has come since"


def test_a_worker_whose_loop_looks_for_other_answers_sends_what_comes_in_a_burst() -> None:
    worker = Worker(at_once=MOST)
    worker.take(*map(task, range(MOST + 1)))
    worker.finish()
    other = SimpleNamespace(submit=lambda *args: None, read=lambda seconds: None, unanswered=1)
    worker.loop.submit(other, None, lambda refusal: None)  # type: ignore[arg-type]
    worker.take(*map(task, range(MOST + 1)))
    for _ in range(10):
        worker.turn()
    assert len(worker.sent) == 2 * (MOST + 1)


@given(st.lists(st.tuples(st.integers(0, MOST + 5), st.integers(0, 3)), max_size=8), st.sampled_from([7, 50, MOST]))
@example([(MOST, 1), (1, 0)], MOST)  # all were sent and answered when one more came
def test_whatever_comes_between_two_looks_is_handed_on(arrivals: list[tuple[int, int]], at_once: int) -> None:
    worker = Worker(at_once)
    numbers = iter(range(10 * MOST))
    for amount, turns in arrivals:
        worker.take(*(task(next(numbers)) for _ in range(amount)))
        for _ in range(turns):
            worker.turn()
    worker.finish()
    assert worker.sent == list(range(sum(amount for amount, _ in arrivals)))


def test_a_worker_whose_connection_fails_keeps_what_it_cannot_hand_on() -> None:
    worker = Worker()
    worker.take(*map(task, range(10)))
    worker.lost = True
    worker.finish()
    assert worker.kept == list(range(10))


@pytest.mark.parametrize("went_out", [False, True])
def test_a_task_whose_connection_breaks_while_it_is_sent_is_kept_or_sent_again_but_not_both(went_out: bool) -> None:
    worker, acknowledged = Worker(), list[int]()
    worker.breaks = [went_out]
    one = task(0)
    one.message.ack = partial(acknowledged.append, 0)
    worker.handing_on.take(one, worker.loop)
    worker.finish()
    assert (worker.sent, acknowledged, worker.kept) == (([0], [0], []) if went_out else ([], [], [0]))


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_consumer_that_ends_waits_for_the_answers_and_for_none_if_its_connection_is_lost(is_lost: bool) -> None:
    worker, acknowledged = Worker(), list[int]()
    for number in range(MOST + 10):
        one = task(number)
        one.message.ack = partial(acknowledged.append, number)
        worker.take(one)
    if is_lost:
        worker.consumer.channel.connection = None
    worker.handing_on.finish()
    worker.finish()
    assert worker.sent == list(range(MOST)), "the others are not acknowledged, so they come again"
    assert len(acknowledged) == (0 if is_lost else MOST)

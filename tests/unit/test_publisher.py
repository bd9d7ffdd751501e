"""A publisher creates each outbox that it needs once, and repairs what was deleted. No broker is contacted."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import InternalError, PreconditionFailed, RecoverableConnectionError, ResourceError
from freezegun import freeze_time

from celery_rabbit_delay import (
    CascadeConflict,
    InvalidDestination,
    LimitReached,
    NotPermitted,
    Options,
)
from celery_rabbit_delay.amqp import create, declare, publisher, routes
from celery_rabbit_delay.amqp.confirms import NotStored, Outgoing
from celery_rabbit_delay.amqp.delivery_time import BrokerClock
from celery_rabbit_delay.amqp.publisher import DelayedPublisher
from celery_rabbit_delay.amqp.routes import Process
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.headers import X_DELIVERY_TIME
from celery_rabbit_delay.core.plan import Plan

DESTINATION = Destination("", ("q",))


SHORT_LIVED = Destination("", ("amq.gen-1",), short_lived=True)
MINUTE = 480  # ticks


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: of a remaining delay fewer ticks may be left."""
    for clock in ("monotonic_ns", "time_ns"):
        monkeypatch.setattr(time, clock, partial(int, getattr(time, clock)()))


class Client:
    """A `kombu.Connection`, of which only the identity is of interest."""


class Parts:
    """Takes the place of the functions that declare, and of a connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: Options, high: bool = False) -> None:
        self.declared: list[tuple[Destination, list[int]]] = []
        self.asked: list[int] = []
        self.sent: list[str] = []
        self.refused: set[int] = set()
        self.refusal_to_create: type[Exception] = LimitReached
        self.bound_by_user: list[Destination] = []
        self.options = options
        self.cascade = options.high_cascade if high else options.cascade
        self.client: Any = Client()  # or what is known of it would be collected
        self.connection: Any = SimpleNamespace(
            client=self.client, host="localhost", virtual_host="/", seconds_left=lambda: None, must_not_wait=False
        )
        declaring = SimpleNamespace(connection=self.connection)
        self.channel = SimpleNamespace(
            get_channel=lambda: declaring, send=self.take, wait=self.wait, server_version=(4, 1, 0)
        )
        monkeypatch.setattr(publisher, "ConfirmedChannel", lambda connection: self.channel)
        self.again()
        for name in ("bind_destination", "require_cascade", "require_route", "outbox_exists"):
            monkeypatch.setattr(declare, name, getattr(self, name))

    def again(self) -> Parts:
        """Connect again."""
        self.publisher = DelayedPublisher(self.connection, self.cascade, self.options, self.bind_for_user)
        return self

    def bind_for_user(self, cascade: Any, destination: Destination) -> None:
        self.bound_by_user.append(destination)

    def bind_destination(
        self, channel: Any, cascade: Any, destination: Destination, outboxes: Any, check: bool = False, seen: Any = ()
    ) -> None:
        if refused := self.refused.intersection(outboxes):
            raise self.refusal_to_create(f"an outbox of {refused} ticks is refused")
        self.declared.append((destination, list(outboxes)))

    def require_cascade(self, channel: Any, cascade: Any) -> None:
        pass

    def require_route(self, channel: Any, cascade: Any, destination: Destination) -> None:
        pass

    def outbox_exists(self, channel: Any, cascade: Any, destination: Destination, outbox: int) -> bool:
        self.asked.append(outbox)
        return True

    def take(self, outgoing: Outgoing) -> Outgoing:
        self.last = outgoing
        return outgoing

    def wait(self, outgoing: Outgoing) -> None:
        self.sent.append(outgoing.key)

    def send(self, seconds: float, destination: Destination = DESTINATION) -> str:
        """Publish a message; return its routing key."""
        delay = int(seconds * 1_000_000)
        self.publisher.publish(Plan(Message("x"), {"CC": []}, destination, time.monotonic_ns() + delay * 1000, delay))
        return self.sent[-1]


def by_time(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> list[BrokerClock | None]:
    """Let the publisher find out that messages wait, with these clocks, one after the other, the last one for good."""
    clocks: list[BrokerClock | None] = [BrokerClock(1000, time.monotonic_ns(), 0)]

    def choose(channel: Any, options: Options, cascade: Any) -> Any:
        clock = clocks.pop(0) if clocks[1:] else clocks[0]
        return (replace(cascade, by_time=True), clock) if clock else (cascade, None)

    monkeypatch.setattr(create, "choose", choose)
    parts.publisher.choose_way()
    return clocks


def test_where_messages_wait_for_a_delivery_time_each_takes_the_outbox_without_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts(monkeypatch, Options())
    by_time(parts, monkeypatch)
    for seconds in (60, 64.125):
        before = time.monotonic_ns()
        assert parts.send(seconds) == "@.+q"
        due = before + int(seconds * 1e9)
        assert due // 1_000_000 <= parts.last.message.headers[X_DELIVERY_TIME] <= due // 1_000_000 + 10_000
        assert parts.last.exchange == parts.cascade.outbox_ingest
    assert parts.declared == [(DESTINATION, [0])]
    assert parts.publisher.writer.cascade.by_time, "or a missing stream would come with levels"


def test_each_message_goes_the_way_that_the_process_has_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())
    clocks = by_time(parts, monkeypatch)
    assert parts.send(60) == "@.+q"
    clocks[:] = [None]
    parts.publisher.chooses = False
    assert parts.send(60) == "@.+q"
    parts.publisher.chooses = True
    assert parts.send(300) == "@.300s.+q"
    assert X_DELIVERY_TIME not in parts.last.message.headers


@pytest.fixture
def from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each delay of an outbox be one that is used often."""
    monkeypatch.setattr(routes, "_OFTEN", 1)


@pytest.mark.usefixtures("from_the_first")
def test_an_outbox_is_created_with_the_route_to_its_destination_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())
    assert parts.send(60) == parts.send(60) == "@.60s.+q"
    assert parts.declared == [(DESTINATION, [0, MINUTE])]
    assert parts.send(300) == "@.300s.+q"
    assert parts.declared[1:] == [(DESTINATION, [5 * MINUTE])]
    assert parts.send(64.125) == "@.^9.^0", "powers alone are as short"
    assert parts.send(69) == "@.^9"
    assert parts.declared[2:] == [(DESTINATION, [40, 80, 120])], "those that any delay may end in come together"
    parts.publisher.routes.forget("q")
    assert parts.send(300) == "@.300s.+q"
    assert parts.declared[3:] == [(DESTINATION, [0, 5 * MINUTE])]


@pytest.mark.usefixtures("from_the_first")
@pytest.mark.parametrize("options", [Options(), Options(declare="passive")], ids=["auto", "passive"])
def test_an_outbox_is_used_only_when_the_broker_has_certainly_written_it_down(
    monkeypatch: pytest.MonkeyPatch, options: Options, process: Process
) -> None:
    monkeypatch.setattr(declare, "SAVED_AFTER", 60)
    parts = Parts(monkeypatch, options)
    assert parts.send(60) == parts.send(60) == "@.^8.^7.^6.^5"
    assert parts.declared == [(DESTINATION, [0, MINUTE])] * (options.declare == "auto")
    other = parts.again()
    assert other.send(60) == "@.^8.^7.^6.^5"
    process.safe_from.update(dict.fromkeys(process.safe_from, time.monotonic()))
    assert parts.again().send(60) == "@.60s.+q", "what one connection has seen, the next one uses"
    assert parts.send(300) == "@.^11.^8.^6.^5"


@pytest.mark.parametrize("options", [Options(), Options(declare="passive")], ids=["auto", "passive"])
@pytest.mark.parametrize(
    ("version", "delays", "waits"),
    [
        ((4, 0, 9), [0.5], [1.0]),
        ((4, 0, 9), [1.5, 60], []),
        ((3, 10, 8), [10, 0.5, 1.4, 0.5], [1.0]),
        ((4, 1, 0), [0.5], []),
    ],
)
def test_nothing_arrives_in_an_outbox_that_another_process_may_just_be_creating(
    monkeypatch: pytest.MonkeyPatch,
    options: Options,
    version: tuple[int, ...],
    delays: list[float],
    waits: list[float],
) -> None:
    """Before 4.1, RabbitMQ starts it without its TTL; levels hold a message until it is due."""
    monkeypatch.setattr(declare, "SAVED_AFTER", 1.5)
    waited: list[float] = []
    with freeze_time() as clock:

        def sleep(seconds: float) -> None:
            waited.append(round(seconds, 6))
            clock.tick(seconds)

        monkeypatch.setattr(time, "sleep", sleep)
        parts = Parts(monkeypatch, options)
        parts.channel.server_version = version
        for delay in delays:
            parts.send(delay)
        clock.tick(1.5)
        parts.again().send(0.1)
    assert [seconds for seconds in waited if seconds] == waits


def test_a_limit_that_ends_while_a_new_outbox_is_waited_for_ends_the_try_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds_left() -> None:
        raise TimeoutError("no answer")

    parts = Parts(monkeypatch, Options())
    parts.channel.server_version = (4, 0, 9)
    parts.connection.seconds_left = seconds_left
    with pytest.raises(TimeoutError, match="no answer"):
        parts.send(0.5)
    assert not hasattr(parts, "last")


@pytest.mark.parametrize(
    ("options", "high", "destination"),
    [
        (Options(outboxes=()), False, DESTINATION),
        (Options(), True, DESTINATION),
        (Options(), False, SHORT_LIVED),
        (Options(outboxes=(), declare="passive"), False, DESTINATION),
    ],
)
def test_who_may_use_no_outboxes_that_delay_needs_levels_alone(
    monkeypatch: pytest.MonkeyPatch, options: Options, high: bool, destination: Destination
) -> None:
    parts = Parts(monkeypatch, options, high)
    assert parts.send(60, destination) == "@.^8.^7.^6.^5"
    assert [outboxes for _, outboxes in parts.declared] == [[0]] * (options.declare == "auto")
    assert parts.asked == []


@pytest.mark.parametrize("error", [LimitReached, NotPermitted, CascadeConflict, PreconditionFailed])
@pytest.mark.parametrize("known", [False, True], ids=["a new destination", "a known destination"])
def test_an_outbox_that_cannot_be_created_costs_hops_and_no_message_and_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Parts(monkeypatch, Options())
    parts.refused, parts.refusal_to_create = {MINUTE, 80, 2400}, error
    if known:
        parts.send(2)
    for _ in range(2):
        for _ in range(2):
            assert parts.send(60) == "@.^8.^7.^6.^5"
            assert parts.send(70.5) == "@.^9.^3.^2", "of those that others end in, one is there"
        parts.again()
    assert sum("could not be created" in one.getMessage() for one in caplog.records) == 2
    assert [40] in [outboxes for _, outboxes in parts.declared]


@pytest.mark.usefixtures("from_the_first")
@pytest.mark.parametrize("error", [InternalError, ResourceError])
def test_an_outbox_for_which_the_broker_closes_the_connection_is_done_without_on_the_next_one(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    parts = Parts(monkeypatch, Options())
    parts.refused, parts.refusal_to_create = {MINUTE}, error
    with pytest.raises(RecoverableConnectionError, match="is refused"):
        parts.send(60)
    assert parts.again().send(60) == "@.^8.^7.^6.^5"


def made(parts: Parts) -> dict[Destination, set[int]]:
    found: dict[Destination, set[int]] = {}
    for destination, outboxes in parts.declared:
        found.setdefault(destination, set()).update(outboxes)
    return found


@pytest.mark.parametrize("kind", ["any time up to 10 minutes", "whole seconds up to 2 minutes", "Celery's jitter"])
@pytest.mark.parametrize(("processes", "messages"), [(1, 100), (1, 1000), (16, 10), (100, 10)])
def test_twenty_queues_with_jittered_retries_make_few_queues(
    monkeypatch: pytest.MonkeyPatch, process: Process, processes: int, messages: int, kind: str
) -> None:
    parts, chosen = Parts(monkeypatch, Options()), random.Random(kind)
    queues = [Destination("", (f"q{number}",)) for number in range(20)]

    def delay() -> float:
        if kind.startswith("any"):
            return chosen.uniform(1, 600)
        return chosen.randint(1, 120 if kind.startswith("whole") else 2 ** chosen.randint(0, 9))

    for number in range(processes * messages):
        if number % messages == 0:
            parts.again()
            process.used.clear()
        for queue in queues:
            parts.send(delay(), queue)
    outboxes = [len(ticks) for ticks in made(parts).values()]
    others = len(parts.cascade.levels) + 3
    assert others + sum(outboxes) <= 170
    assert max(outboxes) <= 8
    assert min(outboxes) >= 4


def test_round_delays_that_are_in_use_get_outboxes_also_where_others_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())
    for seconds in (60, 3600):
        assert [parts.send(seconds)[:3] for _ in range(3)] == 3 * ["@.^"], "it may be one of many"
        assert parts.send(seconds) == f"@.{seconds}s.+q"
    for number in range(100):
        parts.send(7.3 + number / 8)
    assert parts.send(45).startswith("@.^")
    assert [360] not in [outboxes for _, outboxes in parts.declared]
    for _ in range(60):
        parts.send(45)
    assert parts.sent[-1] == "@.45s.+q"


def test_a_queue_that_is_exclusive_to_the_user_is_bound_by_his_connection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InvalidDestination("it is exclusive to another connection")

    monkeypatch.setattr(declare, "bind_destination", refuse)
    assert parts.send(64, SHORT_LIVED) == parts.send(64, SHORT_LIVED)
    assert parts.bound_by_user == [SHORT_LIVED]


def test_a_refusal_that_comes_before_the_answer_to_the_record_opens_another_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a level that has room again would seem full to the channel for ever."""
    parts = Parts(monkeypatch, Options())
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    refusals, resets = [NotStored()], list[int]()

    def wait(outgoing: Outgoing) -> None:
        if refusals:
            raise refusals.pop()
        parts.wait(outgoing)

    parts.channel.unanswered = 1
    parts.channel.reset = lambda: resets.append(parts.channel.unanswered)
    parts.channel.wait = wait
    parts.connection.read_all = lambda: setattr(parts.channel, "unanswered", 0)
    parts.send(10)
    assert resets == [0]

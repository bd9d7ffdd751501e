"""A publisher creates each outbox that it needs once, and repairs what was deleted. No broker is contacted."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message

from celery_rabbit_delay import CascadeMissing, InvalidDestination, NotRouted, Options
from celery_rabbit_delay.amqp import declare
from celery_rabbit_delay.amqp.confirms import Outgoing
from celery_rabbit_delay.amqp.publisher import DelayedPublisher
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.plan import Plan

DESTINATION = Destination("", ("q",))


SHORT_LIVED = Destination("", ("amq.gen-1",), short_lived=True)
MINUTE = 480  # ticks


class Client:
    """A `kombu.Connection`, of which only the identity is of interest."""


class Parts:
    """Takes the place of the functions that declare, and of a connection; it is told which outboxes are missing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: Options, high: bool = False) -> None:
        self.declared: list[tuple[Destination, list[int]]] = []
        self.asked: list[int] = []
        self.sent: list[str] = []
        self.missing: set[int] = set()
        self.bound_by_user: list[Destination] = []
        self.cascade = options.high_cascade if high else options.cascade
        connection: Any = SimpleNamespace(client=Client())
        self.client = connection.client  # or what is known of it would be collected
        self.publisher = DelayedPublisher(connection, self.cascade, options, self.bind_for_user)
        channel: Any = SimpleNamespace(get_channel=lambda: None, send=self.take, wait=self.wait)
        self.publisher.channel = self.publisher.routes._channel = channel
        for name in ("bind_destination", "require_cascade", "require_route", "outbox_exists"):
            monkeypatch.setattr(declare, name, getattr(self, name))

    def bind_for_user(self, cascade: Any, destination: Destination) -> None:
        self.bound_by_user.append(destination)

    def bind_destination(
        self, channel: Any, cascade: Any, destination: Destination, outboxes: Any, check: bool = False
    ) -> None:
        self.declared.append((destination, list(outboxes)))
        self.missing -= set(outboxes)

    def require_cascade(self, channel: Any, cascade: Any) -> None:
        pass

    def require_route(self, channel: Any, cascade: Any, destination: Destination) -> None:
        pass

    def outbox_exists(self, channel: Any, cascade: Any, destination: Destination, outbox: int) -> bool:
        self.asked.append(outbox)
        return outbox not in self.missing

    def take(self, outgoing: Outgoing) -> Outgoing:
        return outgoing

    def wait(self, outgoing: Outgoing) -> None:
        gone = {DESTINATION.outbox_address(self.cascade.milliseconds(outbox)) for outbox in self.missing}
        if outgoing.exchange == self.cascade.outbox_ingest and outgoing.key in gone:
            raise NotRouted("NO_ROUTE")
        self.sent.append(outgoing.key)

    def send(self, seconds: float, destination: Destination = DESTINATION) -> str:
        """Publish a message; return its routing key."""
        delay = int(seconds * 1_000_000)
        self.publisher.publish(Plan(Message("x"), {"CC": []}, destination, time.monotonic_ns() + delay * 1000, delay))
        return self.sent[-1]


def test_an_outbox_is_created_with_the_route_to_its_destination_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())
    assert parts.send(60) == parts.send(60) == "@.60s.+q"
    assert parts.declared == [(DESTINATION, [0, MINUTE])]
    assert parts.send(300) == "@.300s.+q"
    assert parts.declared[1:] == [(DESTINATION, [5 * MINUTE])]
    assert parts.send(64.125) == "@.^9.^0", "powers alone are as short"
    assert len(parts.declared) == 2
    parts.publisher.routes.forget("q")
    assert parts.send(300) == "@.300s.+q"
    assert parts.declared[2:] == [(DESTINATION, [0, 5 * MINUTE])]


@pytest.mark.parametrize("options", [Options(), Options(declare="passive")], ids=["auto", "passive"])
def test_an_outbox_is_used_only_when_the_broker_has_certainly_written_it_down(
    monkeypatch: pytest.MonkeyPatch, options: Options
) -> None:
    monkeypatch.setattr(declare, "SAVED_AFTER", 60)
    parts = Parts(monkeypatch, options)
    assert parts.send(60) == parts.send(60) == "@.^8.^7.^6.^5"
    assert parts.declared == [(DESTINATION, [0, MINUTE])] * (options.declare == "auto")
    known = parts.publisher.routes.known
    known[DESTINATION] = known[DESTINATION]._replace(safe_from=time.monotonic())
    assert parts.send(60) == "@.60s.+q"
    assert parts.send(300) == "@.^11.^8.^6.^5"


def test_a_destination_is_led_to_without_an_outbox_that_delays_if_none_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts(monkeypatch, Options())
    parts.publisher.routes.ensure(DESTINATION)
    assert parts.send(64) == "@.^9"
    assert parts.declared == [(DESTINATION, [0])]


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


def test_a_deleted_outbox_is_created_again_and_the_message_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())
    repaired: list[Any] = []
    monkeypatch.setattr("celery_rabbit_delay.amqp.routes.create_cascade", lambda *args: repaired.append(args))
    parts.send(60)
    parts.missing = {MINUTE}
    assert parts.send(60) == "@.60s.+q"
    assert len(repaired) == 1
    assert [outboxes for _, outboxes in parts.declared] == [[0, MINUTE], [0, MINUTE]]


def test_a_passive_publisher_uses_the_outboxes_that_exist_and_asks_for_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts(monkeypatch, Options(declare="passive"))
    parts.missing = {MINUTE}
    for _ in range(3):
        assert parts.send(300) == "@.300s.+q"
        assert parts.send(60).startswith("@.^")
    assert parts.asked.count(MINUTE) == 1
    assert len(parts.asked) == len(set(parts.asked))
    assert parts.declared == []


def test_a_passive_publisher_does_without_an_outbox_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options(declare="passive"))
    assert parts.send(60) == "@.60s.+q"
    parts.missing = {MINUTE}
    assert parts.send(60).startswith("@.^")
    assert parts.declared == []


def test_a_passive_publisher_without_a_cascade_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options(declare="passive"))

    def missing(*args: Any) -> None:
        raise CascadeMissing("run setup")

    monkeypatch.setattr(declare, "require_cascade", missing)
    with pytest.raises(CascadeMissing, match="run setup"):
        parts.send(60)


def test_a_queue_that_is_exclusive_to_the_user_is_bound_by_his_connection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(monkeypatch, Options())

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InvalidDestination("it is exclusive to another connection")

    monkeypatch.setattr(declare, "bind_destination", refuse)
    assert parts.send(64, SHORT_LIVED) == parts.send(64, SHORT_LIVED)
    assert parts.bound_by_user == [SHORT_LIVED]

"""A publisher learns from the broker's answers which outboxes there are, and repairs what was deleted.

No broker is contacted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import PreconditionFailed
from freezegun import freeze_time

from celery_rabbit_delay import (
    CascadeMissing,
    DestinationNotFound,
    LimitReached,
    MessageRefused,
    NotPermitted,
    NotRouted,
    Options,
)
from celery_rabbit_delay.delay.amqp import create, declare, publisher, routes
from celery_rabbit_delay.delay.amqp.confirms import NotStored, Outgoing
from celery_rabbit_delay.delay.amqp.interceptor import Interceptor
from celery_rabbit_delay.delay.amqp.publisher import DelayedPublisher
from celery_rabbit_delay.delay.amqp.routes import AGAIN, OFTEN, Routes
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.delay.core.plan import Plan

QUEUE, EXCHANGE, KEY = Destination("", "q"), Destination("orders"), Destination("orders", "new")
SHORT_LIVED = Destination("", "amq.gen-1")
MINUTE, HOUR = 480, 28_800  # ticks
LEVELS = "@.^8.^7.^6.^5"  # of a minute


class Client:
    """A `kombu.Connection`, of which only the identity is of interest."""


class Broker:
    """Takes the place of the functions that declare, and of connections, and returns what no outbox takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_cascade = True
        self.destinations = {QUEUE, EXCHANGE, KEY, SHORT_LIVED}
        #: By destination and ticks: those of 10 s were made by another process.
        self.declared = {(one, 80) for one in (QUEUE, EXCHANGE, KEY)}
        self.bound = set(self.declared)
        self.did: list[str] = []
        self.refusal: Exception | None = None  # to declare an outbox
        self.answers: list[Exception] = []  # to the next messages
        self.sent: list[Outgoing] = []
        self.version: tuple[int, ...] = (4, 3, 0)
        self.client = Client()  # or what is known of it would be collected
        for name in ("exists", "require_cascade", "require_destination", "require_route"):
            monkeypatch.setattr(declare, name, getattr(self, name))
        for name in ("lead_to", "declare_outboxes", "bind_outboxes"):
            monkeypatch.setattr(declare, name, getattr(self, name))
        for module in (create, routes):
            monkeypatch.setattr(module, "create_cascade", self.create_cascade)
        monkeypatch.setattr(publisher, "ConfirmedChannel", lambda connection: self.channel)
        monkeypatch.setattr(routes, "_all", {})
        self.channel: Any = SimpleNamespace(
            get_channel=lambda: None,
            unanswered=0,
            send=self.send,
            wait=self.wait,
            reset=partial(self.did.append, "reset"),
        )

    def connect(self, options: Options, through_levels: bool = True) -> DelayedPublisher:
        self.channel.server_version = self.version
        connection: Any = SimpleNamespace(
            host="localhost",
            virtual_host="/",
            server_version=self.version,
            client=self.client,
            read_all=lambda: None,
        )
        return DelayedPublisher(connection, options, through_levels, Interceptor())

    def exists(self, ask_for: Any, channel: Any, name: str) -> bool:
        self.did.append("look")
        return self.has_cascade

    def create_cascade(self, channel: Any, cascade: Any) -> None:
        self.did.append("create")
        self.has_cascade = True

    def require_cascade(self, channel: Any, cascade: Any) -> None:
        self.did.append("look")
        if not self.has_cascade:
            raise CascadeMissing("run setup")

    def require_destination(self, channel: Any, destination: Destination) -> None:
        if destination not in self.destinations:
            raise DestinationNotFound("declare it")

    def require_route(self, channel: Any, cascade: Any, destination: Destination, outboxes: Any) -> Any:
        self.did.append("require")
        return tuple(ticks for ticks in outboxes if (destination, ticks) in self.bound)

    def lead_to(self, channel: Any, cascade: Any, destination: Destination, safely: bool) -> None:
        self.did.append("lead safely" if safely else "lead")
        self.bound.add((destination, 0))

    def declare_outboxes(self, channel: Any, cascade: Any, destination: Destination, outboxes: Any) -> None:
        self.did.append(f"declare {len(outboxes)}")
        if self.refusal:
            raise self.refusal
        self.declared |= {(destination, ticks) for ticks in outboxes}

    def bind_outboxes(self, channel: Any, cascade: Any, destination: Destination, outboxes: Any) -> None:
        wanted = {(destination, ticks) for ticks in outboxes}
        if wanted - self.declared:
            raise CascadeMissing("it was deleted")
        self.did.append(f"bind {len(outboxes)}")
        self.bound |= wanted

    def send(self, outgoing: Outgoing, on_answer: Any = None) -> Outgoing:
        self.sent.append(outgoing)
        if on_answer:
            on_answer(self._answer(outgoing))
        return outgoing

    def wait(self, outgoing: Outgoing) -> None:
        if answer := self._answer(outgoing):
            raise answer

    def _answer(self, outgoing: Outgoing) -> Exception | None:
        if self.answers:
            return self.answers.pop(0)
        if not self.has_cascade:
            return NotRouted("no queue took it")
        if outgoing.exchange.endswith(".outboxes"):
            addresses = {to.address(ticks * 125) for to, ticks in self.bound}
            return None if outgoing.key in addresses else NotRouted("no queue took it")
        return None


@pytest.fixture
def clock() -> Iterator[Any]:
    with freeze_time() as frozen:
        yield frozen


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, clock: Any) -> Broker:
    monkeypatch.setattr(time, "sleep", clock.tick)
    monkeypatch.setattr(declare, "SAVED_AFTER", 1.5)
    return Broker(monkeypatch)


def plan(seconds: float, destination: Destination = QUEUE, **properties: Any) -> Plan:
    headers = {HEADER: {"routing_key": "new"}}
    due = time.monotonic_ns() + int(seconds * 10**9)
    return Plan(Message("x", **properties), headers, destination, due)


def publish(by: DelayedPublisher, broker: Any, seconds: float, destination: Destination = QUEUE) -> str:
    """Publish a message; return the key with which it was stored."""
    by.publish(plan(seconds, destination))
    return str(broker.sent[-1].key)


def test_a_destination_that_does_not_exist_is_an_error_until_it_does(broker: Broker) -> None:
    broker.destinations.clear()
    by = broker.connect(Options())
    with pytest.raises(DestinationNotFound):
        publish(by, broker, 10)
    broker.destinations.add(QUEUE)
    assert publish(by, broker, 10) == "@.10s.+q"
    passive = broker.connect(Options(declare="passive"))
    assert publish(passive, broker, 10) == "@.10s.+q"
    assert broker.did[-2:] == ["look", "require"]


def test_short_lived_queues_are_looked_at_each_time_and_have_no_outboxes(broker: Broker) -> None:
    by = broker.connect(Options())
    assert [publish(by, broker, 10, SHORT_LIVED) for _ in range(2)] == ["@.^6.^4"] * 2
    assert broker.did == ["look"]
    broker.destinations.clear()
    with pytest.raises(DestinationNotFound):
        publish(by, broker, 10, SHORT_LIVED)


def test_an_outbox_that_returns_messages_is_declared_if_it_is_missed_often_and_bound_when_it_is_safe(
    broker: Broker, clock: Any
) -> None:
    by = broker.connect(Options())
    keys = [publish(by, broker, 60) for _ in range(OFTEN + 2)]
    assert keys == [LEVELS] * (OFTEN + 2)
    assert Counter(outgoing.key for outgoing in broker.sent)["@.60s.+q"] == 1, "it is tried once"
    assert broker.did[2:] == ["declare 1", "declare 5"]
    clock.tick(declare.SAVED_AFTER - 0.1)
    assert publish(broker.connect(Options()), broker, 60) == LEVELS, "also through the next connection"
    clock.tick(0.2)
    assert publish(by, broker, 60) == publish(by, broker, 60) == "@.60s.+q"
    assert broker.did[2:] == ["declare 1", "declare 5", "bind 1"]


def test_an_outbox_that_is_missed_now_and_then_is_tried_again_and_not_declared(broker: Broker, clock: Any) -> None:
    by = broker.connect(Options())
    for _ in range(3):
        assert [publish(by, broker, 3600)[:3] for _ in range(OFTEN - 1)] == ["@.^"] * (OFTEN - 1)
        clock.tick(AGAIN)
    broker.declared.add((QUEUE, HOUR))  # another process has made it
    broker.bound.add((QUEUE, HOUR))
    assert publish(by, broker, 3600) == "@.3600s.+q"
    assert broker.did == ["look", "lead"]


def test_who_creates_nothing_tries_again_and_does_with_the_outboxes_that_there_are(broker: Broker, clock: Any) -> None:
    by = broker.connect(Options(declare="passive"))
    assert {publish(by, broker, 60) for _ in range(3 * OFTEN)} == {"@.^8.^7.^4"}
    clock.tick(AGAIN)
    assert publish(by, broker, 60) == "@.^8.^7.^4", "and 10 s in an outbox"
    assert broker.did == ["look", "require"]


@pytest.mark.parametrize("refusal", [LimitReached("no more"), NotPermitted("it may not")])
def test_an_outbox_that_cannot_be_created_costs_hops_and_no_message_and_is_tried_seldom(
    broker: Broker, clock: Any, caplog: pytest.LogCaptureFixture, refusal: Exception
) -> None:
    by = broker.connect(Options())
    broker.refusal = refusal
    assert {publish(by, broker, 60) for _ in range(3 * OFTEN)} == {LEVELS}
    assert broker.did[2:] == ["declare 1", "declare 5"]
    assert len(caplog.records) == 2
    assert str(refusal) in caplog.text
    clock.tick(AGAIN)
    broker.refusal = None
    for _ in range(OFTEN):
        publish(by, broker, 60)
    clock.tick(declare.SAVED_AFTER)
    assert publish(by, broker, 60) == "@.60s.+q"


def test_an_outbox_that_is_deleted_before_it_is_bound_is_missed_again(broker: Broker, clock: Any) -> None:
    by = broker.connect(Options())
    for _ in range(OFTEN):
        publish(by, broker, 60)
    broker.declared.discard((QUEUE, MINUTE))
    clock.tick(declare.SAVED_AFTER)
    assert publish(by, broker, 60) == "@.^8.^7.^4", "and 10 s in an outbox"
    clock.tick(AGAIN)
    for _ in range(OFTEN):
        publish(by, broker, 60)
    clock.tick(declare.SAVED_AFTER)
    assert publish(by, broker, 60) == "@.60s.+q"


def test_delays_that_are_not_round_end_in_few_outboxes_which_are_created_if_they_are_missed_often(
    broker: Broker, clock: Any
) -> None:
    by = broker.connect(Options())
    assert {publish(by, broker, 10) for _ in range(2 * OFTEN)} == {"@.10s.+q"}, "these miss none"
    clock.tick(1e9)
    assert {publish(by, broker, 64) for _ in range(OFTEN)} == {"@.^9"}
    assert broker.did == ["look", "lead"], "but one of these was a long time after the first"
    assert publish(by, broker, 63) == "@.^8.^7.^6.^5.^4.^3"
    clock.tick(declare.SAVED_AFTER - 0.1)
    assert publish(by, broker, 63) == "@.^8.^7.^6.^5.^4.^3"
    clock.tick(0.2)
    assert {publish(by, broker, 63) for _ in range(9)} == {"@.^8.^7"}, "and 15 s in an outbox"
    assert broker.did == ["look", "lead", "declare 5", "bind 5"]
    broker.bound.discard((QUEUE, 80))
    assert publish(by, broker, 10) == "@.^6.^4"
    assert broker.did[4:] == ["lead"], "of one that was deleted all are looked at again"


def test_outboxes_that_many_delays_may_end_in_are_asked_for_again_after_a_refusal(broker: Broker, clock: Any) -> None:
    by = broker.connect(Options())
    broker.refusal = LimitReached("no more")
    assert {publish(by, broker, 63) for _ in range(9)} == {"@.^8.^7.^6.^5.^4.^3"}
    broker.refusal = None
    clock.tick(AGAIN)
    assert {publish(by, broker, 63) for _ in range(OFTEN + 1)} == {"@.^8.^7.^6.^5.^4.^3"}
    clock.tick(declare.SAVED_AFTER)
    assert publish(by, broker, 63) == "@.^8.^7"


def test_what_another_thread_has_forgotten_is_not_known_again_because_an_outbox_is_missing(broker: Broker) -> None:
    by = broker.connect(Options(declare="passive"))
    publish(by, broker, 4)
    by.routes.forget()
    by.routes.missed(QUEUE, MINUTE)
    publish(by, broker, 4)
    assert broker.did == ["look", "require"] * 2


def test_a_cascade_that_was_deleted_is_created_again_but_not_for_ever(broker: Broker) -> None:
    by = broker.connect(Options())
    publish(by, broker, 4)
    broker.has_cascade = False
    publish(by, broker, 4)
    assert broker.did == ["look", "lead", "create", "look", "lead"]
    broker.answers = [NotRouted("still")] * 9
    with pytest.raises(CascadeMissing, match="no level of the cascade accepted the message"):
        publish(by, broker, 4)
    broker.answers, passive = [NotRouted("a level is gone")], broker.connect(Options(declare="passive"))
    with pytest.raises(CascadeMissing, match="no level of the cascade accepted the message"):
        publish(passive, broker, 4)


def test_what_is_sent_without_waiting_is_noted_when_the_answer_comes(broker: Broker) -> None:
    by, answers = broker.connect(Options()), list[Any]()
    for seconds in (60, 60, 10):
        by.submit(plan(seconds), answers.append)
    assert [type(answer) for answer in answers] == [NotRouted, type(None), type(None)]
    assert [outgoing.key for outgoing in broker.sent] == ["@.60s.+q", LEVELS, "@.10s.+q"]
    broker.answers = [PreconditionFailed("too large")]
    by.submit(plan(10), answers.append)
    assert type(answers[-1]) is MessageRefused


def test_what_cannot_be_stored_now_is_tried_again_for_a_moment_on_a_new_channel(broker: Broker) -> None:
    """Or a level that has room again would seem full to the channel for ever."""
    by = broker.connect(Options())
    broker.answers = [NotStored(), NotStored()]
    publish(by, broker, 10)
    assert broker.did.count("reset") == 2
    broker.answers = [NotStored()] * 1000
    with pytest.raises(NotStored):
        publish(by, broker, 10)


@pytest.mark.parametrize(
    ("version", "delays", "waits"),
    [((4, 0, 9), [0.25], 0.05), ((4, 0, 9), [0.5, 60], 0), ((3, 10, 8), [30, 0.25], 0.05), ((4, 1, 0), [0.25], 0)],
)
def test_nothing_arrives_in_an_outbox_before_rabbitmq_has_started_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], delays: list[float], waits: float
) -> None:
    """Another process may just be creating it, and before 4.1 RabbitMQ shows it too early."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(declare, "STARTED_AFTER", 0.3)
    broker.version = version
    by = broker.connect(Options())
    for delay in delays:
        publish(by, broker, delay)
    assert sum(waited) == pytest.approx(waits, abs=0.01)


@pytest.mark.parametrize(
    ("version", "priority", "is_sent_with"),
    [
        ((4, 0, 5), 9, 4),
        ((4, 2, 9), 5, 4),
        ((4, 1, 0), 3, 3),
        ((4, 1, 0), None, None),
        ((4, 3, 0), 9, 9),
        ((3, 13), 9, 9),
    ],
)
def test_a_priority_that_would_hold_others_up_is_capped_and_that_is_said_once(
    broker: Broker, caplog: pytest.LogCaptureFixture, version: Any, priority: int | None, is_sent_with: int | None
) -> None:
    publisher._tell_of_cap.cache_clear()
    broker.version, given = version, dict[str, Any]({} if priority is None else {"priority": priority})
    by, message = broker.connect(Options()), plan(10, **given)
    by.publish(message)
    by.publish(message)
    assert broker.sent[-1].message.properties.get("priority") == is_sent_with
    assert message.message.properties.get("priority") == priority, "the caller's own message stays as it is"
    assert len([one for one in caplog.records if "priority above 4" in one.getMessage()]) == (priority != is_sent_with)


def test_routes_are_those_of_a_broker_a_virtual_host_a_cascade_and_what_a_process_may_create() -> None:
    def of(host: str = "h", virtual_host: str = "/", **options: Any) -> Routes:
        connection, chosen = SimpleNamespace(host=host, virtual_host=virtual_host), Options(**options)
        return routes.routes_of(connection, chosen.cascade, chosen)

    assert of() is of(slack=0)
    different = [of(), of("other"), of(virtual_host="v"), of(prefix="p"), of(declare="passive"), of(outboxes=(1,))]
    assert len(set(map(id, different))) == len(different)

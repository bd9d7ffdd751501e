"""A message waits for a delivery time only where a broker is proved to hold it, and long enough. On virtual clocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, NotFound
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.amqp import create, declare, delivery_time
from celery_rabbit_delay.delay.amqp.delivery_time import MARGINS, BrokerClock
from celery_rabbit_delay.delay.core.headers import X_DELIVERY_TIME
from celery_rabbit_delay.delay.core.topology import PROBE

MS = 1_000_000
OPTIONS = Options(delivery_time=True)
CASCADE = OPTIONS.cascade
BY_TIME = replace(CASCADE, by_time=True)

#: The wall clock of this host when its monotonic clock starts, in nanoseconds.
EPOCH = 1_900_000_000_000 * MS + 123


class Broker:
    """A queue that holds messages, or does not, and passes them on, with a clock of its own, and the channel to it."""

    server_version = (4, 4)
    host, virtual_host = "localhost:5672", "/"

    def __init__(self, holds: bool = True, ahead: int = 0, pauses: Iterator[int] | None = None) -> None:
        """`ahead`: nanoseconds; `pauses`: how long each step takes, in nanoseconds."""
        self.now = 0  # monotonic, of this host
        self.holds, self.ahead = holds, ahead
        self.pauses = pauses or iter(lambda: MS, None)
        self.queue: list[tuple[int, str]] = []  # delivery times and bodies
        self.callback: Any = None
        self.refusal: Exception | None = None
        self.is_stuck = False
        self.asked = 0
        self.time: Any = SimpleNamespace(monotonic_ns=lambda: self.now, time_ns=lambda: EPOCH + self.now)

    @property
    def clock(self) -> int:
        return EPOCH + self.now + self.ahead

    def deliver(self) -> None:
        """Deliver what is ready, in the order in which it was sent, or in which it has become due."""
        now = self.clock // MS
        ready = [one for one in self.queue if not (self.holds and one[0] > now)]
        for one in sorted(ready, key=lambda one: one[0]) if self.holds else ready:
            self.queue.remove(one)
            self.callback(SimpleNamespace(body=one[1]))

    def send(self, outgoing: Any) -> None:
        assert (outgoing.exchange, outgoing.key) == (BY_TIME.outbox_ingest, PROBE)
        self.now += next(self.pauses)
        headers = outgoing.message.properties["application_headers"]
        assert headers["CC"] == [self.reply]
        if not self.is_stuck:
            self.queue.append((headers.get(X_DELIVERY_TIME, 0), outgoing.message.body))
        self.deliver()

    def wait_until(self, is_done: Any, seconds: float) -> bool:
        end = self.now + int(seconds * 1000) * MS
        while not is_done() and self.now < end:
            self.now += next(self.pauses) + MS
            self.deliver()
        return bool(is_done())

    def get_channel(self) -> Any:
        return self

    @property
    def connection(self) -> Any:
        return self

    def queue_declare(self, name: str, exclusive: bool, auto_delete: bool, nowait: bool) -> None:
        assert exclusive
        assert auto_delete, "it ends with its consumer"
        self.reply = name

    def queue_bind(self, queue: str, exchange: str, key: str, nowait: bool) -> None:
        assert (queue, exchange, key, nowait) == (self.reply, BY_TIME.probe, self.reply, True)

    def basic_consume(self, queue: str, no_ack: bool, callback: Any) -> str:
        assert (queue, no_ack) == (self.reply, True)
        self.asked += 1
        if self.refusal:
            raise self.refusal
        self.callback = callback
        return "tag"

    def basic_cancel(self, tag: str, nowait: bool) -> None:
        assert tag == "tag"
        self.callback, self.queue = None, []


def ask(broker: Any, monkeypatch: pytest.MonkeyPatch, is_proved: bool = False) -> BrokerClock:
    with monkeypatch.context() as patched:
        patched.setattr(delivery_time, "time", broker.time)
        return delivery_time.ask(broker, BY_TIME, is_proved)


pauses = st.lists(st.integers(0, 300 * MS) | st.integers(0, 5 * MS), min_size=40, max_size=40)


@given(st.booleans(), st.booleans(), st.integers(-40_000 * MS, 40_000 * MS) | st.integers(-500 * MS, 500 * MS), pauses)
def test_what_is_found_out_is_true_however_long_anything_takes(
    holds: bool, is_proved: bool, ahead: int, pauses: list[int]
) -> None:
    broker = Broker(holds, ahead, itertools.cycle(pauses))
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = ask(broker, monkeypatch, is_proved)
    if clock.ahead is None:
        return
    assert holds, "a broker that does not hold messages is never believed to"
    for due in (broker.now, broker.now + 1, broker.now + 10**15):
        # The broker lets a message go when its clock says the delivery time, at the earliest.
        let_go = clock.delivery_time(due) * MS - EPOCH - ahead
        assert let_go >= due, "early"


@pytest.mark.parametrize("ahead", [-1_500, -5, 0, 5, 20, 90, 390, 600])
def test_a_clock_that_is_behind_or_a_little_ahead_will_do(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(ahead=ahead * MS)
    clock = ask(broker, monkeypatch)
    assert clock.ahead is not None
    margin = clock.ahead - EPOCH
    assert margin - broker.ahead >= 0
    assert margin <= max(MARGINS[0], 4 * ahead + 25) * MS


@pytest.mark.parametrize(
    "what", [{"holds": False}, {"ahead": 641 * MS}, {"is_stuck": True}, {"ahead": -3600_000 * MS}], ids=str
)
def test_messages_pass_levels_where_it_is_not_proved(what: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    vars(broker).update(what)
    assert ask(broker, monkeypatch).ahead is None


class Chosen:
    """Chooses on a broker, and notes what is created there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.created: list[str] = []
        self.has_marker = False
        monkeypatch.setattr(create, "create_parts", lambda channel, cascade: self.created.append(cascade.root))
        monkeypatch.setattr(create, "create_marker", self.create_marker)
        monkeypatch.setattr(declare, "exchange_exists", lambda channel, name: self.has_marker)
        self.monkeypatch = monkeypatch

    def create_marker(self, channel: Any, cascade: Any) -> None:
        self.has_marker = True
        self.created.append(cascade.marker)

    def __call__(self, broker: Any, options: Options = OPTIONS) -> Any:
        self.monkeypatch.setattr(delivery_time, "time", broker.time)
        return create.choose(broker, options, options.cascade)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Chosen:
    return Chosen(monkeypatch)


def test_the_marker_is_created_once_and_only_when_the_broker_was_seen_to_hold_messages(chosen: Chosen) -> None:
    assert chosen(Broker(holds=False)) == (CASCADE, None)
    assert chosen.created == [BY_TIME.root]
    delivery_time.known.clear()
    cascade, clock = chosen(Broker())
    assert (cascade, clock is not None) == (BY_TIME, True)
    assert chosen.created[1:] == [BY_TIME.root, BY_TIME.marker]
    delivery_time.known.clear()
    assert chosen(Broker())[0] == BY_TIME
    assert not chosen.created[3:]


def test_a_process_that_finds_the_marker_repairs_what_is_missing_besides(chosen: Chosen) -> None:
    chosen.has_marker, broker = True, Broker()
    broker.refusal = NotFound(f"no exchange '{BY_TIME.probe}'")
    assert chosen(broker) == (CASCADE, None)
    assert (chosen.created, broker.asked) == ([BY_TIME.root], 2)


def test_a_no_is_asked_again_after_five_minutes_and_a_yes_is_believed(chosen: Chosen) -> None:
    broker = Broker(holds=False)
    assert chosen(broker) == chosen(broker) == (CASCADE, None)
    broker.holds = True  # the last node was upgraded
    broker.now += 299_000 * MS
    assert chosen(broker) == (CASCADE, None)
    assert broker.asked == 1
    broker.now += 2_000 * MS
    assert chosen(broker)[0] == chosen(broker)[0] == BY_TIME
    broker.now += 290_000 * MS
    assert chosen(broker)[0] == BY_TIME
    assert broker.asked == 2


@pytest.mark.parametrize(("passes", "is_set"), [(301_000 * MS, 0), (0, 6 * MS), (0, -6 * MS)])
def test_the_clock_is_asked_for_again_after_five_minutes_and_when_that_of_the_host_was_set(
    passes: int, is_set: int, chosen: Chosen
) -> None:
    broker = Broker()
    _, before = chosen(broker)
    broker.now += passes
    broker.time.time_ns = lambda: EPOCH + broker.now + is_set
    broker.ahead += 30 * MS
    _, after = chosen(broker)
    assert broker.asked == 2
    assert after.ahead > before.ahead


def test_what_is_known_belongs_to_one_broker_and_virtual_host(chosen: Chosen) -> None:
    brokers = [Broker() for _ in range(3)]
    brokers[1].host, brokers[2].virtual_host = "other:5672", "other"
    for broker in (*brokers, *brokers):
        assert chosen(broker)[0] == BY_TIME
    assert [broker.asked for broker in brokers] == [1, 1, 1]


def test_what_another_thread_has_found_out_meanwhile_counts(chosen: Chosen, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Broker(ahead=700 * MS)
    cancel = slow.basic_cancel

    def cancelled(tag: str, nowait: bool) -> None:
        cancel(tag, nowait)
        assert chosen(Broker())[0] == BY_TIME

    monkeypatch.setattr(slow, "basic_cancel", cancelled)
    assert chosen(slow)[0] == BY_TIME


def test_a_publisher_that_creates_nothing_does_not_ask(chosen: Chosen) -> None:
    broker = Broker()
    assert chosen(broker, replace(OPTIONS, declare="passive")) == (CASCADE, None)
    assert (chosen.created, broker.asked) == ([], 0)


@pytest.mark.parametrize("refusal", [AccessRefused("no"), NotFound("no exchange 'celery-rabbit-delay.v3.125ms.x'")])
def test_a_broker_that_does_not_let_one_ask_has_levels_and_is_asked_again_later(
    refusal: Exception, chosen: Chosen
) -> None:
    broker = Broker()
    broker.refusal = refusal
    assert chosen(broker) == chosen(broker) == (CASCADE, None)
    assert broker.asked == 1


@pytest.mark.parametrize(
    ("wanted", "version", "asks"),
    [(True, (3, 10), False), (True, (4, 3, 6), False), (True, (4, 4), True), (True, (5,), True), (False, (5,), False)],
)
def test_only_releases_that_may_hold_messages_are_asked_and_only_if_the_option_says_so(
    wanted: bool, version: tuple[int, ...], asks: bool, chosen: Chosen
) -> None:
    broker = Broker()
    broker.server_version = version  # type: ignore[assignment]
    assert chosen(broker, Options(delivery_time=wanted))[0].by_time is asks
    assert bool(broker.asked) is asks

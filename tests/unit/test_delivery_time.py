"""A message waits for a delivery time only where a broker is proved to hold it, and long enough. On virtual clocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, NotFound
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import Options
from celery_rabbit_delay.amqp import create, declare, delivery_time
from celery_rabbit_delay.amqp.delivery_time import MARGINS, BrokerClock
from celery_rabbit_delay.core.errors import CascadeMissing, NotRouted
from celery_rabbit_delay.core.headers import X_DELIVERY_TIME
from celery_rabbit_delay.core.topology import PROBE

MS = 1_000_000
OPTIONS = Options(delivery_time=True)
CASCADE = OPTIONS.cascade
BY_TIME = replace(CASCADE, by_time=True)

#: The wall clock of this host when its monotonic clock starts, in nanoseconds.
EPOCH = 1_900_000_000_000 * MS + 123


class Broker:
    """A queue that holds messages, or does not, with a clock of its own, and the channel to it."""

    server_version = (4, 4)

    def __init__(self, holds: bool = True, ahead: int = 0, pauses: Iterator[int] | None = None) -> None:
        """`ahead`: nanoseconds; `pauses`: how long each step takes, in nanoseconds."""
        self.now = 0  # monotonic, of this host
        self.holds, self.ahead = holds, ahead
        self.pauses = pauses or iter(lambda: MS, None)
        self.queue: list[tuple[int, str]] = []  # delivery times and names
        self.callback: Any = None
        self.lacks_probe = self.refuses = self.is_stuck = self.is_read = False
        self.lost: set[int] = set()  # messages, by their delay in milliseconds, that others take
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
            self.callback(SimpleNamespace(correlation_id=one[1]))

    def send(self, outgoing: Any) -> Any:
        assert (outgoing.exchange, outgoing.key) == (BY_TIME.outbox_ingest, PROBE)
        if self.refuses:
            raise AccessRefused("no")
        self.now += next(self.pauses)
        properties = outgoing.message.properties
        name = properties["correlation_id"]
        if not self.is_stuck and int(name.partition(" ")[2] or 0) not in self.lost:
            self.queue.append((properties["application_headers"].get(X_DELIVERY_TIME, 0), name))
        self.deliver()
        return name

    def wait(self, sent: str) -> None:
        if self.lacks_probe:
            raise NotRouted("NO_ROUTE")
        self.now += next(self.pauses)
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

    def basic_consume(self, queue: str, no_ack: bool, callback: Any) -> str:
        assert (queue, no_ack) == (BY_TIME.probe, True)
        self.callback = callback
        return "tag"

    def basic_cancel(self, tag: str) -> None:
        self.callback = None

    def queue_declare(self, name: str, exclusive: bool, auto_delete: bool) -> None:
        assert name.startswith(BY_TIME.probe)

    def queue_delete(self, name: str, nowait: bool) -> None:
        pass


def ask(broker: Any, monkeypatch: pytest.MonkeyPatch) -> BrokerClock | None:
    with monkeypatch.context() as patched:
        patched.setattr(delivery_time, "time", broker.time)
        return delivery_time.ask(broker, BY_TIME)


pauses = st.lists(st.integers(0, 300 * MS) | st.integers(0, 5 * MS), min_size=40, max_size=40)
lost = st.sets(st.sampled_from(MARGINS))


@given(st.booleans(), st.integers(-40_000 * MS, 40_000 * MS) | st.integers(-500 * MS, 500 * MS), pauses, lost)
def test_what_is_found_out_is_true_however_long_anything_takes(
    holds: bool, ahead: int, pauses: list[int], lost: set[int]
) -> None:
    broker = Broker(holds, ahead, itertools.cycle(pauses))
    broker.lost = lost
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = ask(broker, monkeypatch)
    if clock is None:
        return
    assert holds, "a broker that does not hold messages is never believed to"
    for due in (broker.now, broker.now + 1, broker.now + 10**15):
        # The broker lets a message go when its clock says the delivery time, at the earliest.
        let_go = clock.delivery_time(due) * MS - EPOCH - ahead
        assert let_go >= due, "early"


@pytest.mark.parametrize("ahead", [-1_500, -5, 0, 5, 20, 90, 390])
def test_a_clock_that_is_behind_or_a_little_ahead_will_do(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(ahead=ahead * MS)
    clock = ask(broker, monkeypatch)
    assert clock is not None
    margin = clock.ahead - EPOCH
    assert clock.ahead - EPOCH - broker.ahead >= 0
    assert margin <= max(MARGINS[0], 4 * max(ahead, 0) + 25) * MS


@pytest.mark.parametrize(
    "what",
    [{"holds": False}, {"ahead": 401 * MS}, {"is_stuck": True}, {"lost": {10}}, {"ahead": -3600_000 * MS}],
    ids=str,
)
def test_messages_pass_levels_where_it_is_not_proved(what: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    vars(broker).update(what)
    assert ask(broker, monkeypatch) is None


def test_nobody_asks_while_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_time, "exclusive_reader", lambda *_: nullcontext(False))
    assert ask(Broker(), monkeypatch) is None


def test_a_proof_is_old_after_ten_minutes_and_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    clock = ask(broker, monkeypatch)
    assert clock
    monkeypatch.setattr(delivery_time, "time", broker.time)
    for minutes, old in ((0, False), (9, False), (11, True)):
        broker.now = clock.asked + minutes * 60_000 * MS
        assert clock.is_old is old
    broker.now = clock.asked
    monkeypatch.setattr(broker.time, "time_ns", lambda: EPOCH + broker.now + 6 * MS)
    assert clock.is_old, "the clock was set, or the host was suspended"


class Chosen:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, exists: bool = False) -> None:
        self.created: list[Any] = []
        monkeypatch.setattr(declare, "exchange_exists", lambda channel, name: exists)
        monkeypatch.setattr(create, "create_cascade", self.create)
        self.monkeypatch = monkeypatch
        self.broker: Any = None

    def create(self, channel: Any, cascade: Any) -> None:
        self.created.append(cascade)
        channel.lacks_probe = False

    def __call__(self, broker: Any, options: Options = OPTIONS, high: bool = False) -> Any:
        self.monkeypatch.setattr(delivery_time, "time", broker.time)
        cascade = options.high_cascade if high else options.cascade
        return create.choose(broker, options, cascade)


def test_the_kind_of_cascade_that_the_broker_can_use_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Chosen(monkeypatch)
    cascade, clock = chosen(Broker())
    assert (cascade, clock is not None, chosen.created) == (BY_TIME, True, [BY_TIME])
    assert chosen(Broker(holds=False)) == (CASCADE, None)


@pytest.mark.parametrize("lacking", ["the queue", "its binding"])
def test_a_part_that_was_deleted_is_created_again(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    chosen, broker = Chosen(monkeypatch, exists=True), Broker()
    consume, broker.lacks_probe = broker.basic_consume, True

    def refuse(*args: Any, **kwargs: Any) -> str:
        if broker.lacks_probe:
            raise NotFound("no queue")
        return consume(*args, **kwargs)

    if lacking == "the queue":
        monkeypatch.setattr(broker, "basic_consume", refuse)
    assert chosen(broker)[0] == BY_TIME
    assert chosen.created == [BY_TIME]


def test_a_publisher_that_creates_nothing_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, broker = Chosen(monkeypatch, exists=True), Broker()
    assert chosen(broker, replace(OPTIONS, declare="passive")) == (CASCADE, None)
    assert (chosen.created, broker.queue) == ([], [])


def test_a_broker_that_does_not_let_one_ask_has_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    broker.refuses = True
    assert Chosen(monkeypatch, exists=True)(broker) == (CASCADE, None)

    def refuse(channel: Any, name: str) -> bool:
        raise CascadeMissing("gone")

    monkeypatch.setattr(declare, "exchange_exists", refuse)
    assert create.choose(Broker(), OPTIONS, CASCADE) == (CASCADE, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "version", "asks"),
    [(True, (3, 10), False), (True, (4, 3, 6), False), (True, (4, 4), True), (True, (5,), True), (False, (5,), False)],
)
def test_only_releases_that_may_hold_messages_are_asked_and_only_if_the_option_says_so(
    wanted: bool, version: tuple[int, ...], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    broker.server_version = version  # type: ignore[assignment]
    chosen = Chosen(monkeypatch)
    assert chosen(broker, Options(delivery_time=wanted))[0].by_time is asks
    assert bool(broker.queue) is asks
    assert not chosen(broker, Options(delivery_time=wanted), high=True)[0].by_time

"""The topology against a model of the broker, for every delay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.levels import fewest_set_bits
from celery_rabbit_delay.delay.core.options import TEN_YEARS
from celery_rabbit_delay.delay.core.topology import Binding, Cascade, Exchange, Queue
from celery_rabbit_delay.operate.addresses import outbox_of
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.core.streams import all_streams
from tests.kit.broker_model import BrokerModel

TICK = 10  # milliseconds
CASCADE = Cascade("t", timedelta(milliseconds=TICK), powers=11)
LONG = replace(CASCADE, powers=49)
BY_TIME = replace(CASCADE, by_time=True)
SHOP = Destination("", "shop")
MAILS = Destination("", "mails")
ORDERS, NEW = Destination("orders"), Destination("orders", "new")
REPLY = Destination("", "amq.gen-1")


def entry(ticks: int, destination: Destination, *users: str, outbox: int = 0) -> tuple[str, ...]:
    """Return the exchange of a delayed message and its keys: its own, and those in its CC header."""
    exchange, keys = LONG.entry(LONG.route(ticks, outbox), destination)
    return exchange, *keys, *own_key(destination), *users


def own_key(destination: Destination) -> list[str]:
    """Return the key with which a message was sent whose outbox dead-letters with no key of its own."""
    return [destination.key or "new"] if destination.key is None or destination.is_short_lived else []


def model_with_queues(*names: str | None, cascade: Cascade = CASCADE) -> BrokerModel:
    model = BrokerModel(cascade)
    model.queues |= {name: Queue(name, {}) for name in names if name}
    return model


def named_exchange(model: BrokerModel, *queues: str, kind: str = "direct") -> None:
    model.exchanges["orders"] = Exchange("orders", kind)
    model.bind(Binding("orders", queue, "queue", "new") for queue in queues)


def bind(
    model: BrokerModel, destination: Destination, cascade: Cascade = CASCADE, outboxes: Iterable[int] = ()
) -> None:
    for ticks in (0, *outboxes):
        outbox = cascade.outbox(destination, ticks)
        model.queues[outbox.name] = outbox
        model.bind(cascade.outbox_bindings(destination, ticks))


class Process:
    """A process with options of its own on a broker that it may share with others, which it may be unable to change."""

    def __init__(
        self,
        model: BrokerModel,
        destination: Destination = SHOP,
        queue: str = "shop",
        passive: bool = False,
        **own: Any,
    ) -> None:
        self.model = model
        self.destination, self.queue = destination, queue
        self.options = Options(**{"prefix": "t", "tick": TICK / 1000, "max_delay": 20, **own})
        self.cascade = self.options.cascade
        model.add(self.cascade)
        self.usable = () if destination.is_short_lived else self.options.outbox_ticks
        if passive:  # it misses those that others have not made, and does without
            there = {n for n in self.usable if self.cascade.outbox_name(destination, n) in model.queues}
            self.usable = tuple(there.union(self.options.combined_in(self.options.cascade)))
        if not destination.is_short_lived:
            bind(model, destination, self.cascade, self.usable)

    def send(self, delay: int) -> int:
        """Publish a message with a delay in microseconds; return how many queues it passes, after a check."""
        cascade, options = self.cascade, self.options
        ticks, combined = options.ticks(delay), () if self.destination.is_short_lived else None
        route = options.route(cascade, ticks, combined, ticks in self.usable)
        exchange, keys = cascade.entry(route, self.destination)
        arrived, visited = self.model.publish(exchange, *keys, *own_key(self.destination))
        assert [queue for _, queue in arrived] == [self.queue], "exactly one copy, and at its destination"
        tick, slack = cascade.tick // timedelta(microseconds=1), options.slack
        fraction, most = slack if isinstance(slack, tuple) else (slack, options.max_delay)
        allowed = min(delay * fraction, most * 1_000_000)
        assert delay <= arrived[0][0] * 1000 < delay + allowed + tick, "it is neither early nor too late"
        assert visited == [
            *(level.queue for level in route.levels),
            cascade.outbox_name(self.destination, route.outbox),
        ]
        assert route.outbox in (0, *self.usable)
        alone = fewest_set_bits(ticks, min(int(allowed) // tick, cascade.max_ticks - ticks))
        assert len(route.levels) <= alone.bit_count(), "outboxes add no levels"
        return len(visited)

    def walk(self, step: int = 1) -> Counter[int]:
        """Send a message with each delay, or every so many; return how many pass how many queues."""
        longest = int(self.options.max_delay * 1000) // TICK
        delays = {*range(1, longest + 1, step), *self.usable, longest}
        return Counter(self.send(ticks * TICK * 1000) for ticks in sorted(delays))


WAYS: list[dict[str, Any]] = [
    {},
    {"outboxes": ()},
    {"outboxes": (0.05, 0.5, 7.77, 19)},
    {"slack": 0},
    {"slack": 0, "outboxes": ()},
    {"slack": (0.05, 0.2)},
    {"max_delay": 5},
    *({"destination": one, "queue": one.key if one == REPLY else "shop"} for one in (ORDERS, NEW, REPLY)),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_delay_arrives_once_within_its_slack_one_outbox_last(way: dict[str, Any]) -> None:
    model = model_with_queues("shop", "mails", REPLY.key)
    named_exchange(model, "shop")
    for other in (MAILS, ORDERS, NEW):
        Process(model, other)
    process = Process(model, **way)
    passed = process.walk()
    tick = process.cascade.tick // timedelta(microseconds=1)
    for ticks in process.usable:
        assert process.send(ticks * tick) == 1, "a round delay passes its outbox alone"
        assert process.send(ticks * tick - 1) == 1, "also if it takes a moment to publish it"
    assert passed[1] >= len(process.usable)


@pytest.fixture(scope="module")
def defaults() -> Process:
    return Process(model_with_queues("shop", cascade=Options().cascade), prefix="celery-rabbit-delay", **DEFAULTS)


DEFAULTS: dict[str, Any] = {"tick": 0.125, "max_delay": Options().max_delay}


LONGEST = int(Options().max_delay)


@given(st.integers(1, LONGEST * 1_000_000) | st.integers(1, LONGEST).map(lambda seconds: seconds * 1_000_000))
def test_any_delay_of_the_default_options_arrives_once_within_its_slack(defaults: Process, delay: int) -> None:
    assert defaults.options == Options()
    defaults.send(delay)


def test_a_node_that_starts_restores_few_bindings() -> None:
    options, queues = Options(), [Destination("", f"q{number}") for number in range(5)]
    topology = Topology.of(
        [options.cascade], queues, all_streams(options.cascade), options.combined_in(options.cascade)
    )
    assert len(topology.bindings) <= 280


@given(st.sets(st.integers(0, 27), min_size=1))
def test_a_message_passes_its_levels_however_far_apart_they_are(powers: set[int]) -> None:
    cascade = Options().cascade
    model = model_with_queues("shop", cascade=cascade)
    bind(model, SHOP, cascade)
    ticks = sum(1 << power for power in powers)
    exchange, keys = cascade.entry(cascade.route(ticks, 0), SHOP)
    arrived, visited = model.publish(exchange, *keys)
    assert arrived == [(cascade.milliseconds(ticks), "shop")]
    levels = [cascade.levels[power].queue for power in sorted(powers, reverse=True)]
    assert visited == [*levels, cascade.outbox_name(SHOP)]


seconds = st.integers(1, 200).map(lambda n: n / 10)
sets = st.lists(seconds, max_size=6, unique=True)
slacks = st.sampled_from([0, 0.001, 0.1, (0.5, 0.3)])
ways = st.fixed_dictionaries(
    {"max_delay": st.just(20) | st.integers(21, 90), "slack": slacks},
    optional={"outboxes": sets},
) | st.fixed_dictionaries({"max_delay": st.integers(3, 19), "slack": slacks})


@given(st.lists(ways, min_size=2, max_size=3), st.booleans(), st.integers(100, 300))
def test_processes_with_any_options_share_a_cascade_and_what_each_sends_arrives(
    several: list[dict[str, Any]], passive: bool, step: int
) -> None:
    model = model_with_queues("shop", "mails")
    Process(model, MAILS)
    processes = [Process(model, passive=passive and number > 0, **way) for number, way in enumerate(several)]
    assert len({process.cascade.root for process in processes}) == 1
    for process in processes:
        process.walk(step)


@pytest.mark.parametrize(
    "key", ["^0", "^1.^0", "^9", "^3.shop", "#", "*.^1", "a.@.^1", "+shop", "60s.+shop", "shop", "new.@.^3"]
)
def test_a_users_routing_key_that_looks_like_one_of_ours_matches_no_level_and_no_outbox(key: str) -> None:
    outboxes = (100, 300)
    model = model_with_queues("shop", "mails")
    model.exchanges["orders"] = Exchange("orders", "fanout")
    model.bind([Binding("orders", "shop", "queue", "")])
    for destination in (ORDERS, MAILS):
        bind(model, destination, outboxes=outboxes)
    for ticks in (*(1 << power for power in range(8)), 0b01010101, 0b10101010, 255):
        for outbox in (0, *outboxes):
            exchange, *keys, _ = entry(ticks, ORDERS, outbox=outbox)
            assert model.publish(exchange, *keys, key)[0] == [((ticks + outbox) * TICK, "shop")]
    for outbox in outboxes:
        exchange, *keys, _ = entry(0, ORDERS, outbox=outbox)
        assert model.publish(exchange, *keys, key)[0] == [(outbox * TICK, "shop")]


def test_a_message_for_a_short_lived_queue_that_is_gone_is_dropped_as_without_a_delay() -> None:
    model = model_with_queues(REPLY.key)
    assert model.publish(*entry(6, REPLY))[0] == [(60, REPLY.key)]
    model.delete_queue(REPLY.key or "")
    assert model.publish(*entry(6, REPLY))[0] == []


def test_only_its_own_outboxes_lead_to_what_belongs_to_a_user() -> None:
    for destination in (SHOP, ORDERS, NEW, REPLY):
        topology = Topology.of([CASCADE, BY_TIME], [destination], [], [100])
        ours = {*topology.exchanges, *topology.queues}
        assert all({one.source, one.destination} <= ours for one in topology.bindings)


@pytest.mark.parametrize(
    "forged",
    ["@.^3.^9", "@.^3.x", "@.^9.^3.^2.^77", "@.^9.^9.^77", "@.^3.", "@.^3.@.^2.x", "@.^3.^2.@", "@.^3.+shop", "@.^3.*"],
)
def test_a_key_that_somebody_made_up_ends_among_the_orphans_once(forged: str) -> None:
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=[100])
    arrived, _ = model.publish(CASCADE.ingest, forged, "shop", SHOP.address())
    assert [queue for _, queue in arrived] == [CASCADE.orphans]


@pytest.mark.parametrize(
    "forged", ["@", "@.", "@.^11", "@.^", "@.x", "@..^3", "@.^3x", "@.#", "@.*", "@.^3^2", "@.+shop", "@.=+shop", "^3"]
)
def test_a_key_without_a_level_returns_to_whoever_made_it_up(forged: str) -> None:
    model = model_with_queues("shop")
    bind(model, SHOP, outboxes=[100])
    assert model.route(CASCADE.ingest, (forged, "shop", SHOP.address())) == set()


def test_a_copy_of_an_address_in_cc_leads_to_the_outbox_that_it_names_and_no_other() -> None:
    """Whoever may publish to a cascade may publish to all its destinations, but to no other by accident."""
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=[100])
    minute, now, other = SHOP.address(100 * TICK), SHOP.address(), MAILS.address()
    for forged, arrives in (
        ((CASCADE.ingest, "@.^3", "shop", minute), [(1080, "shop")]),
        ((CASCADE.outbox_ingest, minute, "shop", now, other), [(1000, "shop")]),
        ((CASCADE.ingest, "@.^3", now, minute), [(80, "shop"), (1080, "shop")]),
    ):
        assert sorted(model.publish(*forged)[0]) == arrives


def by_time(destination: Destination) -> tuple[str, ...]:
    """Return the exchange of a message that waits for a delivery time, and its keys."""
    exchange, keys = BY_TIME.entry(Options(prefix="t", tick=TICK / 1000).route(BY_TIME, 6000), destination)
    return exchange, *keys, *own_key(destination)


def test_a_cascade_by_time_has_three_queues_and_one_for_each_destination() -> None:
    topology = Topology.of([BY_TIME], [SHOP, MAILS])
    assert len(topology.queues) == 3 + 2
    assert not BY_TIME.levels
    assert BY_TIME.marker != CASCADE.marker
    with_levels = Topology.of([CASCADE, BY_TIME], [SHOP])
    for kind in ("queues", "exchanges"):
        merged, alone = getattr(with_levels, kind), getattr(Topology.of([CASCADE], [SHOP]), kind)
        assert all(merged[name] == part for name, part in alone.items()), "both kinds declare what they share alike"


@pytest.mark.parametrize("destination", [SHOP, ORDERS, NEW, REPLY])
def test_levels_and_delivery_times_lead_to_the_same_exchanges_and_queues(destination: Destination) -> None:
    model = BrokerModel(BY_TIME, holds_messages=True)
    model.add(CASCADE)
    model.queues |= {name: Queue(name, {}) for name in ("shop", "audit", REPLY.key or "")}
    named_exchange(model, "shop", "audit")
    if not destination.is_short_lived:
        bind(model, destination, BY_TIME)
    through_levels, _ = model.publish(*entry(7, destination))
    held, _ = model.publish(*by_time(destination), until=7 * TICK)
    assert sorted(held) == sorted(through_levels) != []


def test_a_message_for_an_outbox_that_is_gone_or_not_bound_for_delivery_times_returns_to_its_publisher() -> None:
    model = model_with_queues("shop", cascade=BY_TIME)
    exchange, *keys = by_time(SHOP)
    assert model.route(exchange, tuple(keys)) == set()
    bind(model, SHOP)  # as a release without delivery times declares it
    assert model.route(exchange, tuple(keys)) == set()


def test_names_all_carry_the_prefix_and_fit_into_amqp() -> None:
    cascade = Options(prefix="p" * 150, tick=0.001, max_delay=TEN_YEARS).cascade
    names = [e.name for e in cascade.exchanges()] + [q.name for q in cascade.queues()]
    destinations = SHOP, ORDERS, NEW
    names += [cascade.outbox_name(one, n) for one in destinations for n in (0, 1, cascade.max_ticks)]
    assert len(names) == len(set(names))
    assert all(name.startswith("p" * 150 + ".") and len(name) <= 255 for name in names)
    routes = [cascade.route(n, cascade.max_ticks) for n in (0, cascade.max_ticks)]
    assert all(len(key) <= 255 for route in routes for one in destinations for key in cascade.entry(route, one)[1])


def test_queues_keep_messages_until_the_next_one_has_them_and_have_no_limit() -> None:
    outboxes = [CASCADE.outbox(one, ticks) for one in (SHOP, ORDERS, NEW) for ticks in (0, 100)]
    for queue in (*CASCADE.queues(), *outboxes):
        assert queue.arguments["x-queue-type"] == "quorum"
        assert "x-max-length" not in queue.arguments
        if "x-dead-letter-exchange" in queue.arguments and queue.name != CASCADE.short_lived_outbox:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"
            assert queue.arguments["x-queue-leader-locator"] == "balanced"


def test_an_outbox_says_what_it_is_for() -> None:
    assert CASCADE.outbox_name(SHOP, 100) == "t.v3.10ms.out.1s.+shop"
    assert CASCADE.outbox_name(SHOP, 1) == "t.v3.10ms.out.10ms.+shop"
    assert CASCADE.outbox_name(SHOP) == "t.v3.10ms.out.+shop"
    assert outbox_of(CASCADE, "t.v3.10ms.out.1s.+shop") == ("t.v3.10ms.out.1s.+shop", 100, SHOP)
    for other in (CASCADE.levels[0].queue, CASCADE.orphans, "shop", "t.v3.10ms.out.short-lived", "t.v3.10ms.outer"):
        assert outbox_of(CASCADE, other) is None
    assert outbox_of(CASCADE, "t.v3.10ms.out.7ms.+shop") is None, "no whole number of ticks"


def test_cascades_that_are_declared_differently_share_no_name() -> None:
    others = [
        CASCADE,
        Cascade("t", timedelta(milliseconds=20), 11),
        Cascade("u", timedelta(milliseconds=10), 11),
    ]
    topologies = [Topology.of([cascade], [SHOP], [], [1]) for cascade in others]
    names = [name for topology in topologies for name in (*topology.exchanges, *topology.queues)]
    assert len(names) == len(set(names))


def test_a_cascade_with_a_longer_maximum_adds_levels_and_changes_none() -> None:
    short, long = Topology.of([CASCADE]), Topology.of([replace(CASCADE, powers=12)])
    assert all(long.exchanges[name] == exchange for name, exchange in short.exchanges.items() if name != CASCADE.marker)
    assert all(long.queues[name] == queue for name, queue in short.queues.items())
    assert short.bindings.keys() < long.bindings.keys()


def test_each_number_of_levels_has_a_marker_of_its_own() -> None:
    sets = [replace(CASCADE, powers=powers) for powers in (10, 11, 12)]
    assert len({cascade.marker for cascade in sets}) == len(sets)

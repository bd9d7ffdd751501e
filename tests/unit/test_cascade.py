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
from celery_rabbit_delay.core.destination import SHORT_LIVED, Destination
from celery_rabbit_delay.core.levels import DEFAULT_OUTBOXES, fewest_set_bits
from celery_rabbit_delay.core.options import TEN_YEARS
from celery_rabbit_delay.core.topology import Binding, Cascade, Exchange, Queue, Topology
from tests.kit.broker_model import BrokerModel

TICK = 10  # milliseconds
CASCADE = Cascade("t", timedelta(milliseconds=TICK), powers=11)
LONG = replace(CASCADE, powers=49)
SHOP = Destination("", ("shop",))
MAILS = Destination("", ("mails",))


def entry(ticks: int, destination: Destination, *users: str, outbox: int = 0) -> tuple[str, ...]:
    """Return the exchange of a delayed message and its keys: its own, and those in its CC header."""
    exchange, (key, *addresses) = LONG.entry(LONG.route(ticks, outbox), destination)
    return exchange, key, *users, *addresses


def model_with_queues(*names: str, cascade: Cascade = CASCADE) -> BrokerModel:
    model = BrokerModel(cascade)
    for name in names:
        model.queues[name] = Queue(name, {})
    return model


def bind(
    model: BrokerModel, destination: Destination, cascade: Cascade = CASCADE, outboxes: Iterable[int] = ()
) -> None:
    for ticks in (0, *outboxes):
        outbox = cascade.outbox(destination, ticks)
        model.queues[outbox.name] = outbox
        model.bind(cascade.outbox_bindings(destination, ticks))
    model.bind(cascade.exit_bindings(destination))


class Process:
    """A process with options of its own on a broker that it may share with others, which it may be unable to change."""

    def __init__(
        self, model: BrokerModel, destination: Destination = SHOP, passive: bool = False, high: bool = False, **own: Any
    ) -> None:
        self.model = model
        self.destination = destination
        self.options = Options(**{"prefix": "t", "tick": TICK / 1000, "max_delay": 20, **own})
        self.cascade = self.options.high_cascade if high else self.options.cascade
        self.usable = () if high else self.options.outbox_ticks
        model.add(self.cascade)
        if passive:
            there = model.queues
            self.usable = tuple(n for n in self.usable if self.cascade.outbox_name(destination, n) in there)
        bind(model, destination, self.cascade, () if passive else self.usable)

    def send(self, delay: int) -> int:
        """Publish a message with a delay in microseconds; return how many queues it passes, after a check."""
        cascade, options = self.cascade, self.options
        route = options.route(cascade, options.ticks(delay), outboxes=self.usable)
        exchange, (key, *addresses) = cascade.entry(route, self.destination)
        [user_key] = self.destination.queues
        arrived, visited = self.model.publish(exchange, key, user_key, *addresses)
        assert [queue for _, queue in arrived] == [user_key], "exactly one copy, and at its destination"
        tick, slack = cascade.tick // timedelta(microseconds=1), options.slack
        fraction, most = slack if isinstance(slack, tuple) else (slack, options.max_delay)
        allowed = min(delay * fraction, most * 1_000_000)
        assert delay <= arrived[0][0] * 1000 < delay + allowed + tick, "it is neither early nor too late"
        assert visited == [
            *(level.queue for level in route.levels),
            cascade.outbox_name(self.destination, route.outbox),
        ]
        assert route.outbox in (0, *self.usable)
        ticks = -(-delay // tick)
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
    {"high": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_delay_arrives_once_within_its_slack_one_outbox_last(way: dict[str, Any]) -> None:
    model = model_with_queues("shop", "mails")
    Process(model, MAILS)
    process = Process(model, **way)
    passed = process.walk()
    tick = process.cascade.tick // timedelta(microseconds=1)
    for ticks in process.usable:
        assert process.send(ticks * tick) == 1, "a round delay passes its outbox alone"
        assert process.send(ticks * tick - 1) == 1, "also if it takes a moment to publish it"
    assert passed[1] >= len(process.usable)


def test_an_outbox_that_a_passive_process_lacks_costs_it_a_hop() -> None:
    model = model_with_queues("shop")
    Process(model, outboxes=(1,))
    passive = Process(model, passive=True)
    assert [passive.send(seconds * 1_000_000) for seconds in (1, 2)] == [1, 4]  # 1 s and 64, 32 and 4 ticks


@pytest.fixture(scope="module")
def defaults() -> Process:
    return Process(model_with_queues("shop", cascade=Options().cascade), prefix="celery-rabbit-delay", **DEFAULTS)


DEFAULTS: dict[str, Any] = {"tick": 0.125, "max_delay": Options().max_delay}


LONGEST = int(Options().max_delay)


@given(st.integers(1, LONGEST * 1_000_000) | st.integers(1, LONGEST).map(lambda seconds: seconds * 1_000_000))
def test_any_delay_of_the_default_options_arrives_once_within_its_slack(defaults: Process, delay: int) -> None:
    assert defaults.options == Options()
    defaults.send(delay)


@pytest.mark.parametrize("seconds", DEFAULT_OUTBOXES)
def test_each_default_outbox_takes_its_delay_alone(defaults: Process, seconds: float) -> None:
    for publishing in (0, 1, 20_000, 124_999):
        assert defaults.send(int(seconds * 1_000_000) - publishing) == 1


seconds = st.integers(1, 200).map(lambda n: n / 10)
sets = st.lists(seconds, max_size=6, unique=True)
slacks = st.sampled_from([0, 0.001, 0.1, (0.5, 0.3)])
ways = st.fixed_dictionaries(
    {"max_delay": st.just(20) | st.integers(21, 90), "slack": slacks},
    optional={"outboxes": sets, "high": st.booleans()},
) | st.fixed_dictionaries({"max_delay": st.integers(3, 19), "slack": slacks}, optional={"high": st.booleans()})


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
    "key",
    ["^0", "^1.^0", "^9", "@^3", "@x.^3", "^3.shop", "#", "*.^1", "a.@.^1", "@shop.^1", "+shop", "60s.+shop", "shop"],
)
def test_a_users_routing_key_that_looks_like_one_of_ours_matches_no_level_and_no_outbox(key: str) -> None:
    outboxes = (100, 300)
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=outboxes)
    for ticks in (*(1 << power for power in range(8)), 0b01010101, 0b10101010, 255):
        for outbox in (0, *outboxes):
            arrived, _ = model.publish(*entry(ticks, SHOP, key, f"{key}.{key}", outbox=outbox))
            assert arrived == [((ticks + outbox) * TICK, "shop")]
    for outbox in outboxes:
        arrived, _ = model.publish(*entry(0, SHOP, key, f"{key}.{key}", outbox=outbox))
        assert arrived == [(outbox * TICK, "shop")]


def test_a_message_whose_queue_is_gone_becomes_an_orphan() -> None:
    model = model_with_queues("shop")
    bind(model, SHOP, outboxes=[100])
    model.delete_queue("shop")
    for ticks, outbox in ((5, 0), (5, 100), (0, 100)):
        arrived, _ = model.publish(*entry(ticks, SHOP, "shop", outbox=outbox))
        assert arrived == [((ticks + outbox) * TICK, CASCADE.orphans)]


def test_a_message_whose_outbox_is_gone_returns_to_its_publisher_or_becomes_an_orphan() -> None:
    model = model_with_queues("shop")
    bind(model, SHOP, outboxes=[100])
    model.delete_queue(CASCADE.outbox_name(SHOP, 100))
    exchange, *keys = entry(0, SHOP, "shop", outbox=100)
    assert model.route(exchange, tuple(keys)) == set()
    arrived, _ = model.publish(*entry(5, SHOP, "shop", outbox=100))
    assert arrived == [(5 * TICK, CASCADE.orphans)]


def named_exchange(model: BrokerModel, *queues: str, kind: str = "direct") -> None:
    model.exchanges["orders"] = Exchange("orders", kind)
    model.bind(Binding("orders", queue, "queue", "new") for queue in queues)


@pytest.mark.parametrize("outbox", [0, 100])
@pytest.mark.parametrize("destination", [Destination("orders"), Destination("orders", key="new")])
def test_a_named_exchange_routes_by_the_original_key(destination: Destination, outbox: int) -> None:
    model = model_with_queues("shop", "audit")
    named_exchange(model, "shop", "audit")
    bind(model, destination, outboxes=[100])
    arrived, _ = model.publish(*entry(6, destination, "new", outbox=outbox))
    due = (6 + outbox) * TICK
    assert sorted(arrived) == [(due, "audit"), (due, "shop")]


@pytest.mark.parametrize("outbox", [0, 100])
def test_what_an_exchange_cannot_route_waits_in_its_outbox_and_nowhere_else(outbox: int) -> None:
    model = model_with_queues()
    named_exchange(model)
    destination = Destination("orders")
    bind(model, destination, outboxes=[100])
    arrived, visited = model.publish(*entry(6, destination, "new", outbox=outbox))
    assert arrived == [((6 + outbox) * TICK, CASCADE.outbox_name(destination, outbox))]
    assert len(visited) == 3


@pytest.mark.parametrize("outbox", [0, 100])
def test_a_fanout_exchange_without_listeners_drops_messages(outbox: int) -> None:
    model = model_with_queues()
    named_exchange(model, kind="fanout")
    destination = Destination("orders", fanout=True)
    bind(model, destination, outboxes=[100])
    arrived, _ = model.publish(*entry(6, destination, "new", outbox=outbox))
    assert arrived == []


def test_a_message_for_an_exchange_that_is_gone_becomes_an_orphan() -> None:
    model = model_with_queues()
    destination = Destination("orders")
    model.queues[CASCADE.outbox_name(destination)] = CASCADE.outbox(destination)
    model.bind(CASCADE.outbox_bindings(destination))
    arrived, _ = model.publish(*entry(6, destination, "new"))
    assert arrived == [(60, CASCADE.orphans)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Destination("", ("shop",)), Destination("", ("shop",), short_lived=True)),
        (Destination("orders"), Destination("orders", key="new")),
    ],
)
def test_a_message_enters_one_outbox_even_where_its_destination_has_several(
    one: Destination, other: Destination
) -> None:
    model = model_with_queues("shop")
    named_exchange(model, "shop")
    for destination in (one, other):
        bind(model, destination, outboxes=() if destination.short_lived else [100, 200])
    for destination in (one, other):
        key = "new" if destination.exchange else "shop"
        for outbox in (0,) if destination.short_lived else (0, 100, 200):
            arrived, _ = model.publish(*entry(6, destination, key, outbox=outbox))
            assert arrived == [((6 + outbox) * TICK, "shop")]


def test_short_lived_queues_share_an_outbox_and_leave_nothing_behind() -> None:
    model = model_with_queues("amq.gen-1")
    destination = Destination("", ("amq.gen-1",), short_lived=True)
    before = {source: list(bindings) for source, bindings in model.bindings.items()}
    assert list(CASCADE.outbox_bindings(destination, 100)) == []
    model.bind(CASCADE.exit_bindings(destination))
    arrived, _ = model.publish(*entry(6, destination, "amq.gen-1"))
    assert arrived == [(60, "amq.gen-1")]
    model.delete_queue("amq.gen-1")
    assert {source: bindings for source, bindings in model.bindings.items() if bindings} == before


def test_what_somebody_sends_an_exchange_by_way_of_short_lived_queues_becomes_an_orphan() -> None:
    model = model_with_queues()
    named_exchange(model)
    orders = Destination("orders")
    bind(model, orders)
    arrived, _ = model.publish(CASCADE.ingest, "@.^3", "no such key", SHORT_LIVED, orders.address)
    assert arrived == [(80, CASCADE.orphans)]


@pytest.mark.parametrize(
    "forged",
    ["@.^3.^9", "@.^3.x", "@.^9.^3.^2.^77", "@.^9.^9.^77", "@.^3.", "@.^3.@.^2.x", "@.^3.^2.@", "@.^3.+shop", "@.^3.*"],
)
def test_a_key_that_somebody_made_up_ends_among_the_orphans_once(forged: str) -> None:
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=[100])
    addresses = SHOP.outbox_address(), SHOP.address
    arrived, _ = model.publish(CASCADE.ingest, forged, "shop", *addresses)
    assert [queue for _, queue in arrived] == [CASCADE.orphans]


@pytest.mark.parametrize(
    ("forged", "ticks"), [("@.^3.^3", 8), ("@.^9.^9.^3", 520), ("@.^9.^3.^3.^3.^1", 522), ("@.^3.^2.^9.^3", 8)]
)
def test_a_key_that_somebody_made_up_of_repeated_levels_leads_to_his_own_destination_alone(
    forged: str, ticks: int
) -> None:
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=[100])
    arrived, _ = model.publish(CASCADE.ingest, forged, "shop", SHOP.outbox_address(), SHOP.address)
    assert (ticks * TICK, "shop") in arrived
    assert {queue for _, queue in arrived} <= {"shop", CASCADE.orphans}


@pytest.mark.parametrize(
    "forged", ["@", "@.", "@.^11", "@.^", "@.x", "@..^3", "@.^3x", "@.#", "@.*", "@.^3^2", "@.+shop", "@.=+shop", "^3"]
)
def test_a_key_without_a_level_returns_to_whoever_made_it_up(forged: str) -> None:
    model = model_with_queues("shop")
    bind(model, SHOP, outboxes=[100])
    assert model.route(CASCADE.ingest, (forged, "shop", SHOP.outbox_address(), SHOP.address)) == set()


def test_a_copy_of_an_address_in_cc_leads_to_the_outbox_that_it_names_and_no_other() -> None:
    """Whoever may publish to a cascade may publish to all its destinations, but to no other by accident."""
    model = model_with_queues("shop", "mails")
    for destination in (SHOP, MAILS):
        bind(model, destination, outboxes=[100])
    milliseconds = 100 * TICK
    forged = [
        (CASCADE.ingest, "@.^3", "shop", SHOP.outbox_address(milliseconds), SHOP.address),
        (CASCADE.outbox_ingest, SHOP.outbox_address(milliseconds), "shop", SHOP.address, MAILS.outbox_address()),
    ]
    assert [model.publish(*one)[0] for one in forged] == [[(1080, "shop")], [(1000, "shop")]]
    both = model.publish(CASCADE.ingest, "@.^3", SHOP.outbox_address(), SHOP.outbox_address(milliseconds), SHOP.address)
    assert sorted(both[0]) == [(80, "shop"), (1080, "shop")]


def test_high_priorities_have_levels_of_their_own_and_share_the_rest() -> None:
    high = replace(CASCADE, high=True)
    model = model_with_queues("shop")
    model.add(high)
    bind(model, SHOP)
    for cascade in (CASCADE, high):
        exchange, (key, *addresses) = cascade.entry(cascade.route(11, 0), SHOP)
        arrived, visited = model.publish(exchange, key, "shop", *addresses)
        assert arrived == [(110, "shop")]
        assert visited == [*(cascade.levels[level].queue for level in (3, 1, 0)), CASCADE.outbox_name(SHOP)]
    assert list(high.exit_bindings(SHOP)) == list(CASCADE.exit_bindings(SHOP))
    assert list(high.outbox_bindings(SHOP, 100)) == list(CASCADE.outbox_bindings(SHOP, 100))
    assert high.outbox(SHOP, 100) == CASCADE.outbox(SHOP, 100)
    assert not {q.name for q in high.queues() if ".delay." in q.name} & {q.name for q in CASCADE.queues()}


BY_TIME = replace(CASCADE, by_time=True)


def by_time(destination: Destination, *users: str) -> tuple[str, ...]:
    """Return the exchange of a message that waits for a delivery time, and its keys."""
    options = Options(prefix="t", tick=TICK / 1000)
    assert not options.wanted(BY_TIME, 6000, 6000).outboxes
    exchange, (key, *addresses) = BY_TIME.entry(options.route(BY_TIME, 6000, 6000), destination)
    return exchange, key, *users, *addresses


def test_a_cascade_by_time_has_at_most_five_queues_and_one_for_each_destination() -> None:
    topology = Topology.of([BY_TIME], [SHOP, MAILS])
    assert len(topology.queues) == 4 + 2
    assert not BY_TIME.levels
    assert BY_TIME.marker != CASCADE.marker
    with_levels = Topology.of([CASCADE, BY_TIME], [SHOP])
    for kind in ("queues", "exchanges"):
        merged, alone = getattr(with_levels, kind), getattr(Topology.of([CASCADE], [SHOP]), kind)
        assert all(merged[name] == part for name, part in alone.items()), "both kinds declare what they share alike"


@given(st.integers(1, 1 << 40))
def test_a_broker_that_holds_messages_delivers_each_once_when_it_is_due_through_one_outbox(due: int) -> None:
    model = BrokerModel(BY_TIME, holds_messages=True)
    model.add(CASCADE)  # what an earlier release has left
    model.queues["shop"] = Queue("shop", {})
    bind(model, SHOP, BY_TIME)
    arrived, visited = model.publish(*by_time(SHOP, "shop"), until=due)
    assert (arrived, visited) == ([(due, "shop")], [BY_TIME.outbox_name(SHOP)])


def test_a_broker_that_does_not_hold_messages_delivers_them_at_once() -> None:
    model = model_with_queues("shop", cascade=BY_TIME)
    bind(model, SHOP, BY_TIME)
    assert model.publish(*by_time(SHOP, "shop"), until=5000)[0] == [(0, "shop")]


def test_levels_and_delivery_times_lead_to_the_same_exchanges_queues_and_orphans() -> None:
    for destination in (
        SHOP,
        Destination("orders"),
        Destination("orders", key="new"),
        Destination("", ("x",), short_lived=True),
    ):
        model = BrokerModel(BY_TIME, holds_messages=True)
        model.add(CASCADE)
        for name in ("shop", "x", "audit"):
            model.queues[name] = Queue(name, {})
        named_exchange(model, "shop", "audit")
        bind(model, destination, BY_TIME)
        key = "new" if destination.exchange else destination.queues[0]
        through_levels, _ = model.publish(*entry(7, destination, key))
        held, _ = model.publish(*by_time(destination, key), until=7 * TICK)
        assert sorted(held) == sorted(through_levels)
        for name in {queue for _, queue in held}:
            model.delete_queue(name)
        if not destination.exchange:
            assert model.publish(*by_time(destination, key), until=7)[0] == [(7, BY_TIME.orphans)]


def test_a_message_for_an_outbox_that_is_gone_or_not_bound_for_delivery_times_returns_to_its_publisher() -> None:
    model = model_with_queues("shop", cascade=BY_TIME)
    exchange, *keys = by_time(SHOP, "shop")
    assert model.route(exchange, tuple(keys)) == set()
    bind(model, SHOP)  # as a release without delivery times declares it
    assert model.route(exchange, tuple(keys)) == set()


def test_names_all_carry_the_prefix_and_fit_into_amqp() -> None:
    cascade = Options(prefix="p" * 150, tick=0.001, max_delay=TEN_YEARS).high_cascade
    names = [e.name for e in cascade.exchanges()] + [q.name for q in cascade.queues()]
    long = Destination("x" * 255, key="y" * 255)
    names += [cascade.outbox_name(destination, n) for destination in (SHOP, long) for n in (0, 1, cascade.max_ticks)]
    assert len(names) == len(set(names))
    assert all(name.startswith("p" * 150 + ".") and len(name) <= 255 for name in names)
    keys = [key for n in (0, cascade.max_ticks) for key in cascade.entry(cascade.route(n, cascade.max_ticks), long)[1]]
    assert all(len(key) <= 255 for key in keys)


def test_queues_keep_messages_until_the_next_one_has_them_and_have_no_limit() -> None:
    for queue in (*CASCADE.queues(), CASCADE.outbox(SHOP), CASCADE.outbox(SHOP, 100)):
        assert queue.arguments["x-queue-type"] == "quorum"
        assert "x-max-length" not in queue.arguments
        assert "x-dead-letter-routing-key" not in queue.arguments  # it would strip the CC header
        if "x-dead-letter-exchange" in queue.arguments:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"
            assert queue.arguments["x-queue-leader-locator"] == "balanced"


def test_a_level_keeps_a_message_for_its_ticks_and_an_outbox_for_its_own() -> None:
    seconds = {queue.name: queue.seconds for queue in CASCADE.queues() if ".delay." in queue.name}
    assert seconds == {level.queue: level.ticks * 0.01 for level in CASCADE.levels}
    assert [CASCADE.outbox(SHOP, ticks).seconds for ticks in (0, 1, 100)] == [0, 0.01, 1]


def test_an_outbox_says_what_it_is_for() -> None:
    assert CASCADE.outbox_name(SHOP, 100) == "t.v3.10ms.out.1s.+shop"
    assert CASCADE.outbox_name(SHOP, 1) == "t.v3.10ms.out.10ms.+shop"
    assert CASCADE.outbox_name(SHOP) == "t.v3.10ms.out.+shop"
    for other in (CASCADE.levels[0].queue, CASCADE.orphans, "shop", "t.v3.10ms.out.short-lived", "t.v3.10ms.outer"):
        assert CASCADE.outbox_of(other) is None


def test_a_topology_has_each_part_of_several_cascades_and_destinations_once() -> None:
    high = replace(CASCADE, high=True)
    destinations = [SHOP, Destination("orders", key="new"), Destination("", ("reply",), short_lived=True)]
    topology = Topology.of([CASCADE, high], iter(destinations), outboxes=iter([100]))
    assert topology.exchanges.keys() == {e.name for c in (CASCADE, high) for e in c.exchanges()}
    outboxes = {CASCADE.outbox_name(destination, n) for destination in destinations[:2] for n in (0, 100)}
    assert topology.queues.keys() == {q.name for c in (CASCADE, high) for q in c.queues()} | outboxes
    expected = [one for cascade in (CASCADE, high) for one in cascade.bindings()]
    expected += [one for destination in destinations for one in CASCADE.exit_bindings(destination)]
    expected += [one for to in destinations[:2] for n in (0, 100) for one in CASCADE.outbox_bindings(to, n)]
    assert topology.bindings.keys() == set(expected)


def test_an_outbox_whose_name_would_be_too_long_for_amqp_is_named_by_a_hash() -> None:
    cascade = replace(CASCADE, prefix="p" * 150)
    destinations = [Destination("", (name * 100,)) for name in "xy"]
    names = [cascade.outbox_name(destination, ticks) for destination in destinations for ticks in (0, 100)]
    assert len(set(names)) == 4
    for name, begin in zip(names, ["!", "1s.!"] * 2, strict=True):
        assert name.startswith(f"{cascade.root}.out.{begin}")
        assert len(name) <= 255
        found = cascade.outbox_of(name)
        assert found is not None
        assert (found.names, found.delay) == (None, 1000 if "1s." in begin else 0)


def test_cascades_that_are_declared_differently_share_no_name() -> None:
    others = [
        CASCADE,
        Cascade("t", timedelta(milliseconds=20), 11),
        Cascade("u", timedelta(milliseconds=10), 11),
    ]
    topologies = {cascade: Topology.of([cascade], [SHOP], [], [1]) for cascade in others}
    names = [name for c, t in topologies.items() for name in {*t.exchanges, *t.queues} - {c.streams_root}]
    assert len(names) == len(set(names))


def test_a_cascade_with_a_longer_maximum_adds_levels_and_changes_none() -> None:
    short, long = Topology.of([CASCADE]), Topology.of([replace(CASCADE, powers=12)])
    assert all(long.exchanges[name] == exchange for name, exchange in short.exchanges.items() if name != CASCADE.marker)
    assert all(long.queues[name] == queue for name, queue in short.queues.items())
    assert short.bindings.keys() < long.bindings.keys()


def test_each_number_of_levels_has_a_marker_of_its_own() -> None:
    sets = [replace(CASCADE, powers=powers) for powers in (10, 11, 12)]
    assert len({cascade.marker for cascade in sets}) == len(sets)

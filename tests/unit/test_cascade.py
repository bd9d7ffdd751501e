"""The topology against a model of the broker, for every delay."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import Options
from celery_rabbit_delay.core import routing_key
from celery_rabbit_delay.core.destination import SHORT_LIVED, Destination, is_match
from celery_rabbit_delay.core.levels import Level
from celery_rabbit_delay.core.options import TEN_YEARS
from celery_rabbit_delay.core.topology import Binding, Cascade, Exchange, Queue, Topology
from testkit.broker_model import BrokerModel

CASCADE = Cascade("t", timedelta(milliseconds=10), powers=11)
LONG = Cascade("t", timedelta(milliseconds=10), powers=49)
SHOP = Destination("", ("shop",))


def keys(ticks: int, destination: Destination, *users: str) -> tuple[str, ...]:
    """Return the routing keys of a delayed message: its own, and those in its CC header."""
    return keys_of(LONG.route(ticks, 0), destination, *users)


def keys_of(route: tuple[Level, ...], destination: Destination, *users: str) -> tuple[str, ...]:
    return *routing_key.steps(route), *users, destination.outbox_address, destination.address


def model_with_queues(*names: str, cascade: Cascade = CASCADE) -> BrokerModel:
    model = BrokerModel(cascade)
    for name in names:
        model.queues[name] = Queue(name, {})
    return model


def test_every_delay_arrives_once_on_time_with_one_hop_per_set_bit() -> None:
    model = model_with_queues("shop")
    bind(model, SHOP)
    for ticks in range(1, CASCADE.max_ticks + 1):
        arrived, visited = model.publish(CASCADE.ingest, *keys(ticks, SHOP, "shop"))
        assert arrived == [(ticks * 10, "shop")]
        assert len(visited) == ticks.bit_count() + 1  # the outbox


@given(st.integers(1, (1 << 31) - 1))
def test_any_delay_of_the_default_cascade_arrives_once_on_time(ticks: int) -> None:
    cascade = Cascade("t", timedelta(milliseconds=125), powers=31)
    model = model_with_queues("shop", cascade=cascade)
    bind(model, SHOP, cascade)
    arrived, visited = model.publish(cascade.ingest, *keys(ticks, SHOP, "shop"))
    assert arrived == [(ticks * 125, "shop")]
    assert len(visited) == ticks.bit_count() + 1  # the outbox


#: Lanes of which two are next to each other, two add up to a third, and some are longer than powers of two that exist.
LANES = (3, 5, 6, 24, 100, 101, 201, 900)
WITH_LANES = replace(CASCADE, lanes=LANES)

DEFAULT = Options().cascade


@pytest.mark.parametrize("slack", [0, 1, 9])
@pytest.mark.parametrize("shard", [1, 2])
@pytest.mark.parametrize("high", [False, True])
def test_every_delay_arrives_once_through_lanes_with_as_few_hops_as_promised(
    slack: int, shard: int, high: bool
) -> None:
    model = model_with_queues("shop", cascade=WITH_LANES)
    for number, priority in ((2, False), (1, True), (2, True)):
        model.add(replace(WITH_LANES, shard=number, high=priority))
    bind(model, SHOP, WITH_LANES)
    bind(model, SHOP, replace(WITH_LANES, shard=2))
    chosen = replace(WITH_LANES, shard=shard, high=high)
    for ticks in range(1, chosen.max_ticks + 1):
        route = chosen.route(ticks, slack)
        arrived, visited = model.publish(chosen.ingest, *keys_of(route, SHOP, "shop"))
        [(after, queue)] = arrived
        assert queue == "shop"
        assert ticks * 10 <= after <= (ticks + slack) * 10
        assert visited == [*(level.queue for level in route), chosen.outbox_name(SHOP)]
        assert len(route) <= len(CASCADE.route(ticks, slack))


@pytest.fixture(scope="module")
def default_model() -> BrokerModel:
    model = model_with_queues("shop", cascade=DEFAULT)
    bind(model, SHOP, DEFAULT)
    return model


@given(data=st.data())
def test_any_delay_of_the_default_options_arrives_once_within_its_slack(
    default_model: BrokerModel, data: st.DataObject
) -> None:
    ticks = data.draw(st.integers(1, DEFAULT.max_ticks))
    route = DEFAULT.route(ticks, data.draw(st.integers(0, 8)))
    arrived, visited = default_model.publish(DEFAULT.ingest, *keys_of(route, SHOP, "shop"))
    [(after, _)] = arrived
    assert ticks * 125 <= after <= (ticks + 8) * 125
    assert visited == [*(level.queue for level in route), DEFAULT.outbox_name(SHOP)]


lane_sets = st.sets(st.integers(1, 2047).filter(lambda n: n & (n - 1)), max_size=8).map(sorted).map(tuple)


@given(lane_sets, lane_sets, st.integers(9, 11), st.integers(9, 11), st.data())
def test_cascades_with_other_levels_share_one_and_what_each_sends_arrives(
    one: tuple[int, ...], other: tuple[int, ...], powers: int, other_powers: int, data: st.DataObject
) -> None:
    sharing = [
        replace(CASCADE, lanes=tuple(n for n in lanes if n < 1 << powers), powers=powers)
        for lanes, powers in ((one, powers), (other, other_powers))
    ]
    model = model_with_queues("shop", cascade=sharing[0])
    model.add(sharing[1])
    bind(model, SHOP)
    for cascade in sharing:
        ticks = data.draw(st.integers(1, cascade.max_ticks))
        route = cascade.route(ticks, data.draw(st.integers(0, 20)))
        arrived, visited = model.publish(cascade.ingest, *keys_of(route, SHOP, "shop"))
        assert arrived == [(10 * sum(level.ticks for level in route), "shop")]
        assert visited == [*(level.queue for level in route), cascade.outbox_name(SHOP)]


@pytest.mark.parametrize("seconds", [0.125, 15, 60, 3601, 86_399, 2_592_000 * 3 + 7, 200_000_001])
def test_the_default_lanes_arrive_once_on_time(seconds: float) -> None:
    options = Options()
    model = model_with_queues("shop", cascade=options.cascade)
    bind(model, SHOP, options.cascade)
    route = options.route(options.cascade, int(seconds * 1_000_000))
    arrived, visited = model.publish(options.cascade.ingest, *keys_of(route, SHOP, "shop"))
    [(after, _)] = arrived
    assert 0 <= after - seconds * 1000 < 125 + 1000
    assert visited[:-1] == [level.queue for level in route]


def test_shards_have_levels_and_outboxes_of_their_own_and_share_the_rest() -> None:
    second = replace(WITH_LANES, shard=2)
    model = model_with_queues("shop", cascade=WITH_LANES)
    model.add(second)
    bind(model, SHOP, WITH_LANES)
    bind(model, SHOP, second)
    for shard in (WITH_LANES, second):
        route = shard.route(931, 0)
        arrived, visited = model.publish(shard.ingest, *keys_of(route, SHOP, "shop"))
        assert arrived == [(9310, "shop")]
        assert visited == [*(level.queue for level in route), shard.outbox_name(SHOP)]
    assert [level.queue for level in second.route(8, 0)] == ["t.v2.10ms.s2.delay.80"]
    assert {b for b in second.destination_bindings(SHOP) if b.source == WITH_LANES.exit} < {
        *WITH_LANES.destination_bindings(SHOP)
    }


def test_each_set_of_levels_has_a_marker_of_its_own() -> None:
    sets = [CASCADE, WITH_LANES, replace(CASCADE, lanes=LANES[1:]), replace(WITH_LANES, powers=12)]
    sets += [replace(cascade, shard=2) for cascade in sets]
    assert len({cascade.marker for cascade in sets}) == len(sets)
    assert [replace(CASCADE, shard=c.shard).with_recorded_levels(c.levels_record()) for c in sets] == sets


@pytest.mark.parametrize("tick", [0.001, 0.125, 3600])
def test_the_longest_cascade_with_the_most_lanes_is_read_from_its_record(tick: float) -> None:
    options = Options(tick=tick, max_delay=TEN_YEARS, lanes=[TEN_YEARS - n * tick for n in range(64)])
    cascade = options.cascade
    assert len(cascade.lanes) >= 63  # one may be a power of two
    assert Options(tick=tick).cascade.with_recorded_levels(cascade.levels_record()) == cascade


MADE_UP: list[str | bytes] = [
    "",
    b"\xff\xfe\x00",
    "[" * 100_000,
    "1" * 10_000,
    *("null", "5", '"powers"', "[]", "{}", "NaN", '{"powers": 3}', '{"lanes": []}'),
    *(f'{{"powers": {powers}, "lanes": []}}' for powers in ("10000000", "36", "0", "-1", "3.0", "true", '"3"', "null")),
    *(
        f'{{"powers": 10, "lanes": {lanes}}}'
        for lanes in ("null", "5", '"3"', "{}", "[true]", "[3.0]", '["3"]', "[[3]]", "[0]", "[-3]", "[1]", "[4]")
    ),
    '{"powers": 10, "lanes": [1025]}',  # as long as all powers, and more
    f'{{"powers": 10, "lanes": [{", ".join(["3"] * 65)}]}}',
]


@pytest.mark.parametrize("record", MADE_UP, ids=lambda record: repr(record)[:40])
def test_what_is_no_record_of_levels_is_none(record: str | bytes) -> None:
    assert CASCADE.with_recorded_levels(record) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(st.binary() | st.text() | st.builds(lambda p, n: json.dumps({"powers": p, "lanes": n}), values, values))
def test_no_record_raises_an_error_or_costs_more_than_the_longest_cascade(record: str | bytes) -> None:
    found = CASCADE.with_recorded_levels(record)
    assert found is None or (found.powers <= 35 and len(found.levels) <= 35 + 64)


@pytest.mark.parametrize(
    "key", ["^0", ">^1", "^1>^0", "~3>^0", "->^0", "@x.~3>-", "^3>^2.shop", "#", "*.^1", "a.@.^1", "@shop.^1", "@"]
)
def test_a_users_routing_key_that_looks_like_bits_matches_no_level(key: str) -> None:
    model = model_with_queues("shop")
    bind(model, SHOP)
    for ticks in range(1, 256):
        arrived, _ = model.publish(CASCADE.ingest, *keys(ticks, SHOP, key, f"{key}.{key}"))
        assert arrived == [(ticks * 10, "shop")]


def test_a_message_whose_queue_is_gone_becomes_an_orphan() -> None:
    model = model_with_queues("shop")
    bind(model, SHOP)
    model.delete_queue("shop")
    arrived, _ = model.publish(CASCADE.ingest, *keys(5, SHOP, "shop"))
    assert arrived == [(50, CASCADE.orphans)]


def named_exchange(model: BrokerModel, *queues: str, kind: str = "direct") -> None:
    model.exchanges["orders"] = Exchange("orders", kind)
    model.bind(Binding("orders", queue, "queue", "new") for queue in queues)


def bind(model: BrokerModel, destination: Destination, cascade: Cascade = CASCADE) -> None:
    outbox = cascade.outbox(destination)
    model.queues[outbox.name] = outbox
    model.bind(cascade.destination_bindings(destination))


@pytest.mark.parametrize("destination", [Destination("orders"), Destination("orders", key="new")])
def test_a_named_exchange_routes_by_the_original_key(destination: Destination) -> None:
    model = model_with_queues("shop", "audit")
    named_exchange(model, "shop", "audit")
    bind(model, destination)
    arrived, _ = model.publish(CASCADE.ingest, *keys(6, destination, "new"))
    assert sorted(arrived) == [(60, "audit"), (60, "shop")]


def test_what_an_exchange_cannot_route_waits_in_its_outbox_and_nowhere_else() -> None:
    model = model_with_queues()
    named_exchange(model)
    destination = Destination("orders")
    bind(model, destination)
    arrived, visited = model.publish(CASCADE.ingest, *keys(6, destination, "new"))
    assert arrived == [(60, CASCADE.outbox_name(destination))]
    assert len(visited) == 3


def test_a_fanout_exchange_without_listeners_drops_messages() -> None:
    model = model_with_queues()
    named_exchange(model, kind="fanout")
    destination = Destination("orders", fanout=True)
    bind(model, destination)
    arrived, _ = model.publish(CASCADE.ingest, *keys(6, destination, "new"))
    assert arrived == []


def test_a_message_for_an_exchange_that_is_gone_becomes_an_orphan() -> None:
    model = model_with_queues()
    destination = Destination("orders")
    model.queues[CASCADE.outbox_name(destination)] = CASCADE.outbox(destination)
    model.bind(b for b in CASCADE.destination_bindings(destination) if b.source == CASCADE.done)
    arrived, _ = model.publish(CASCADE.ingest, *keys(6, destination, "new"))
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
        bind(model, destination)
    for destination in (one, other):
        key = "new" if destination.exchange else "shop"
        arrived, _ = model.publish(CASCADE.ingest, *keys(6, destination, key))
        assert arrived == [(60, "shop")]


def test_short_lived_queues_share_an_outbox_and_leave_nothing_behind() -> None:
    model = model_with_queues("amq.gen-1")
    destination = Destination("", ("amq.gen-1",), short_lived=True)
    before = {source: list(bindings) for source, bindings in model.bindings.items()}
    model.bind(CASCADE.destination_bindings(destination))
    arrived, _ = model.publish(CASCADE.ingest, *keys(6, destination, "amq.gen-1"))
    assert arrived == [(60, "amq.gen-1")]
    model.delete_queue("amq.gen-1")
    assert {source: bindings for source, bindings in model.bindings.items() if bindings} == before


def test_what_somebody_sends_an_exchange_by_way_of_short_lived_queues_becomes_an_orphan() -> None:
    model = model_with_queues()
    named_exchange(model)
    orders = Destination("orders")
    bind(model, orders)
    forged = ("@.^3", "no such key", SHORT_LIVED, orders.address)
    arrived, _ = model.publish(CASCADE.ingest, *forged)
    assert arrived == [(80, CASCADE.orphans)]


@pytest.mark.parametrize(
    "forged",
    [
        ["@.>^3"],
        ["@.>^3", "@.^3>^9"],
        ["@.>^9", "@.^9>^3", "@.^3>^2", "@.^2>^77"],
        ["@.>^2", "@.^2>x"],
        ["@.>^10", "@.^10>^10", "@.^10>^9"],
        ["@.>~3", "@.~3>^1"],
        ["@.>~3", "@.~3>-"],
        ["@.>~3", "@.~3>-", "@.->~5"],
        ["@.>~5", "@.~5>~6"],
    ],
    ids=" ".join,
)
def test_steps_that_somebody_made_up_end_among_the_orphans(forged: list[str]) -> None:
    model = model_with_queues("shop", cascade=WITH_LANES)
    bind(model, SHOP, WITH_LANES)
    arrived, _ = model.publish(WITH_LANES.ingest, *forged, "shop", SHOP.address)
    assert [queue for _, queue in arrived] == [WITH_LANES.orphans]
    assert model.route(WITH_LANES.ingest, (*forged[1:], "shop", SHOP.address)) == set()  # returned to its publisher


def test_high_priorities_have_levels_of_their_own_and_share_the_rest() -> None:
    high = replace(CASCADE, high=True)
    model = model_with_queues("shop")
    model.add(high)
    bind(model, SHOP)
    for cascade in (CASCADE, high):
        arrived, visited = model.publish(cascade.ingest, *keys(11, SHOP, "shop"))
        assert arrived == [(110, "shop")]
        assert visited == [*(cascade.levels[level].queue for level in (3, 1, 0)), CASCADE.outbox_name(SHOP)]
    assert list(high.destination_bindings(SHOP)) == list(CASCADE.destination_bindings(SHOP))
    assert not {q.name for q in high.queues() if ".delay." in q.name} & {q.name for q in CASCADE.queues()}


def test_what_exceeds_the_levels_is_routed_nowhere_and_so_returned() -> None:
    model = model_with_queues("shop")
    assert model.route(CASCADE.ingest, keys(CASCADE.max_ticks + 1, SHOP, "shop")) == set()


def test_names_all_carry_the_prefix_and_fit_into_amqp() -> None:
    cascade = Cascade("p" * 150, timedelta(milliseconds=1), powers=49, high=True, lanes=(3, 999_999), shard=32)
    names = [e.name for e in cascade.exchanges()] + [q.name for q in cascade.queues()]
    assert len(names) == len(set(names))
    assert all(name.startswith("p" * 150 + ".") and len(name) <= 255 for name in names)


def test_quorum_levels_keep_messages_until_the_next_queue_has_them_and_have_no_limit() -> None:
    for queue in CASCADE.queues():
        assert queue.arguments["x-queue-type"] == "quorum"
        assert "x-max-length" not in queue.arguments
        assert "x-dead-letter-routing-key" not in queue.arguments  # it would strip the CC header
        if "x-dead-letter-exchange" in queue.arguments:
            assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
            assert queue.arguments["x-overflow"] == "reject-publish"
            assert queue.arguments["x-queue-leader-locator"] == "balanced"


def test_a_level_keeps_a_message_for_its_ticks() -> None:
    seconds = {queue.name: queue.seconds for queue in CASCADE.queues() if ".delay." in queue.name}
    assert seconds == {level.queue: level.ticks * 0.01 for level in CASCADE.levels}


def test_a_topology_has_each_part_of_several_cascades_and_destinations_once() -> None:
    high = replace(CASCADE, high=True)
    destinations = [SHOP, Destination("orders", key="new")]
    topology = Topology.of([CASCADE, high], iter(destinations))
    assert topology.exchanges.keys() == {e.name for c in (CASCADE, high) for e in c.exchanges()}
    outboxes = {CASCADE.outbox_name(destination) for destination in destinations}
    assert topology.queues.keys() == {q.name for c in (CASCADE, high) for q in c.queues()} | outboxes
    assert topology.bindings.keys() == {
        binding
        for cascade in (CASCADE, high)
        for part in (cascade.bindings(), *map(cascade.destination_bindings, destinations))
        for binding in part
    }


def test_an_outbox_whose_name_would_be_too_long_for_amqp_is_named_by_a_hash() -> None:
    cascade = replace(CASCADE, prefix="p" * 150)
    one, other = (cascade.outbox_name(Destination("", (name * 100,))) for name in "xy")
    assert one != other
    assert all(name.startswith(f"{cascade.root}.out.!") and len(name) <= 255 for name in (one, other))


def test_cascades_that_are_declared_differently_share_no_name() -> None:
    others = [
        CASCADE,
        Cascade("t", timedelta(milliseconds=20), 11),
        Cascade("t", timedelta(milliseconds=10), 11, "classic"),
        Cascade("u", timedelta(milliseconds=10), 11),
    ]
    names = [name for c in others for t in [Topology.of([c])] for name in {*t.exchanges, *t.queues}]
    assert len(names) == len(set(names))


def test_a_cascade_with_a_longer_maximum_adds_levels_and_changes_none() -> None:
    short, long = Topology.of([CASCADE]), Topology.of([replace(CASCADE, powers=12)])
    assert all(long.exchanges[name] == exchange for name, exchange in short.exchanges.items() if name != CASCADE.marker)
    assert all(long.queues[name] == queue for name, queue in short.queues.items())
    assert short.bindings.keys() < long.bindings.keys()


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [("a.*", "a.b", True), ("a.*", "a", False), ("#", "", True), ("a.#.c", "a.c", True), ("a.#", "b", False)],
)
def test_the_model_matches_topics_as_rabbitmq_does(pattern: str, key: str, matches: bool) -> None:
    assert is_match("topic", pattern, key) is matches

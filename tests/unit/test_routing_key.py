from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay.core import routing_key
from celery_rabbit_delay.core.levels import powers_of_two
from celery_rabbit_delay.core.routing_key import MAX_LENGTH, Destination
from celery_rabbit_delay.core.topology import Cascade
from testkit.broker_model import topic_matches

names = st.text(min_size=1, max_size=255).filter(lambda s: len(s.encode("utf-8", "surrogatepass")) <= 255)
destinations = st.builds(Destination, st.one_of(st.just(""), names), st.lists(names, max_size=3).map(tuple))
ticks = st.integers(1, (1 << 49) - 1)
LEVELS = Cascade("t", timedelta(milliseconds=1), powers=49).levels


def encode(ticks: int) -> str:
    return routing_key.encode([LEVELS[power.bit_length() - 1] for power in powers_of_two(ticks)])


def test_keys_name_the_set_bits_highest_first() -> None:
    assert encode(1) == "@.^0"
    assert encode(6) == "@.^2.^1"
    assert encode(1 << 30) == "@.^30"


def test_addresses_can_be_read() -> None:
    assert routing_key.encode_destination(Destination("", ("celery",))) == "@.+celery"
    assert routing_key.encode_destination(Destination("orders", ())) == "@.orders+"
    assert routing_key.encode_destination(Destination("orders", ("new",))) == "@.orders+new"
    assert routing_key.encode_destination(Destination("", ("a.b",))) == "@.+a%2Eb"


def test_patterns_read_one_bit_and_the_next() -> None:
    assert routing_key.entry_pattern(LEVELS[2]) == "@.^2.#"
    assert routing_key.next_pattern(LEVELS[13], LEVELS[0]) == "@.#.^13.^0.#"
    assert routing_key.exit_pattern(LEVELS[3]) == "@.#.^3"


def test_patterns_of_any_level_are_short_for_a_restarted_broker_brings_them_back_word_by_word() -> None:
    patterns = [
        routing_key.entry_pattern(LEVELS[39]),
        routing_key.next_pattern(LEVELS[39], LEVELS[38]),
        routing_key.exit_pattern(LEVELS[39]),
    ]
    assert max(pattern.count(".") for pattern in patterns) < 5


@given(ticks, ticks)
@example((1 << 49) - 1, 1)
def test_each_number_of_ticks_has_a_key_of_its_own_that_fits_into_amqp(one: int, other: int) -> None:
    assert len(encode(one).encode()) <= MAX_LENGTH
    assert (encode(one) == encode(other)) == (one == other)


@given(destinations, destinations)
def test_each_destination_has_an_address_of_its_own(one: Destination, other: Destination) -> None:
    address = routing_key.encode_destination(one)
    assert not set(address) & set("*#")
    assert address.startswith("@.")
    assert address.count(".") == 1
    assert len(address.encode()) <= MAX_LENGTH
    assert (address == routing_key.encode_destination(other)) == (one == other)


@given(destinations)
@example(Destination("", ("x" * 253,)))
def test_an_address_is_the_destination_or_a_hash(destination: Destination) -> None:
    address = routing_key.encode_destination(destination)
    assert routing_key.decode_destination(address) == (None if address.startswith("@.!") else destination)


@given(destinations, st.integers(0, 48), st.integers(0, 48))
def test_no_level_takes_an_address_for_a_delay(destination: Destination, level: int, lower: int) -> None:
    address = routing_key.encode_destination(destination)
    for pattern in (
        routing_key.entry_pattern(LEVELS[level]),
        routing_key.next_pattern(LEVELS[level], LEVELS[lower]),
        routing_key.exit_pattern(LEVELS[level]),
    ):
        assert not topic_matches(pattern, address)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Destination("a", ("b",)), Destination("", ("a", "b"))),
        (Destination("a+b", ()), Destination("a", ("b",))),
        (Destination("", ("a.b",)), Destination("", ("a%2Eb",))),
        (Destination("!" + "0" * 64, ()), Destination("%21" + "0" * 64, ())),
    ],
)
def test_names_that_use_our_separators_do_not_collide(one: Destination, other: Destination) -> None:
    assert routing_key.encode_destination(one) != routing_key.encode_destination(other)


@pytest.mark.parametrize(
    "key", ["", "celery", "@", "@.x", "@.^1", "@.^1.+q", "+q", "y.+q", "@.+a.b", "@.+q+", "@.a++b"]
)
def test_what_is_not_an_address_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="not the address of a delayed message"):
        routing_key.decode_destination(key)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved

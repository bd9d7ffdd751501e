from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay import routing_key
from celery_rabbit_delay.routing_key import MAX_LENGTH, Destination

names = st.text(min_size=1, max_size=255).filter(lambda s: len(s.encode("utf-8", "surrogatepass")) <= 255)
destinations = st.builds(Destination, st.one_of(st.just(""), names), st.lists(names, max_size=3).map(tuple))


def test_keys_name_the_set_bits_highest_first() -> None:
    assert routing_key.encode(1, Destination("", ("celery",))) == "@.^0.+celery"
    assert routing_key.encode(6, Destination("", ("celery",))) == "@.^2.^1.+celery"
    assert routing_key.encode(1 << 30, Destination("orders", ())) == "@.^30.orders+"
    assert routing_key.encode(2, Destination("orders", ("new",))) == "@.^1.orders+new"


def test_patterns_read_one_bit_and_the_next() -> None:
    assert routing_key.entry_pattern(2) == "@.^2.#"
    assert routing_key.next_pattern(13, 0) == "@.#.^13.^0.#"
    assert routing_key.last_pattern(3) == "@.#.^3.*"
    assert routing_key.destination_pattern(Destination("", ("a.b",))) == "@.#.+a%2Eb"


def test_patterns_of_any_level_are_short_for_a_restarted_broker_brings_them_back_word_by_word() -> None:
    patterns = [routing_key.entry_pattern(39), routing_key.next_pattern(39, 38), routing_key.last_pattern(39)]
    assert max(pattern.count(".") for pattern in patterns) < 5


@given(st.integers(1, (1 << 40) - 1), destinations)
@example((1 << 40) - 1, Destination("", ("x" * 200,)))
def test_encode_and_decode_are_inverse_and_fit_into_amqp(ticks: int, destination: Destination) -> None:
    key = routing_key.encode(ticks, destination)
    assert len(key.encode()) <= MAX_LENGTH
    assert routing_key.decode(key) == (ticks, routing_key.word(destination))


@given(destinations, destinations)
def test_each_destination_has_a_word_of_its_own(one: Destination, other: Destination) -> None:
    word = routing_key.word(one)
    assert not set(word) & set(".*#")
    assert (word == routing_key.word(other)) == (one == other)


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
    assert routing_key.word(one) != routing_key.word(other)


@pytest.mark.parametrize(
    "key", ["", "celery", "@", "@.x", "@.0.x", "@.^x.x", "y.^1.x", "@.^1.^2.x", "@.^1.^1.x", "@.^01.x", "@.^1"]
)
def test_decode_refuses_what_is_not_a_cascade_key(key: str) -> None:
    with pytest.raises(ValueError, match="not the routing key of a delayed message"):
        routing_key.decode(key)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import routing_key
from celery_rabbit_delay.routing_key import MAX_LENGTH, Destination

names = st.text(min_size=1, max_size=255).filter(lambda s: len(s.encode("utf-8", "surrogatepass")) <= 255)
destinations = st.builds(Destination, st.one_of(st.just(""), names), st.lists(names, max_size=3).map(tuple))


def test_keys_are_short_least_significant_bit_first_and_readable() -> None:
    assert routing_key.encode(1, Destination("", ("celery",))) == "@.1.+celery"
    assert routing_key.encode(6, Destination("", ("celery",))) == "@.0.1.1.+celery"
    assert routing_key.encode(8, Destination("orders", ())) == "@.0.0.0.1.orders+"
    assert routing_key.encode(2, Destination("orders", ("new",))) == "@.0.1.orders+new"


def test_patterns_read_one_bit_at_a_time() -> None:
    assert routing_key.entry_pattern(0) == "@.1.*"
    assert routing_key.entry_pattern(2) == "@.*.*.1.*"
    assert routing_key.next_pattern(3, 0) == "@.1.0.0.#"
    assert routing_key.next_pattern(3, 2) == "@.*.*.1.#"
    assert routing_key.last_pattern(3) == "@.0.0.0.#"
    assert routing_key.last_pattern(0) == "@.#"
    assert routing_key.destination_pattern(Destination("", ("a.b",))) == "@.#.+a%2Eb"


@given(st.integers(1, 1 << 62), destinations)
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


@pytest.mark.parametrize("key", ["", "celery", "@", "@.celery", "@.0.celery", "@.1.2.celery", "x.1.celery", "@.1.0.x"])
def test_decode_refuses_what_is_not_a_cascade_key(key: str) -> None:
    with pytest.raises(ValueError, match="not the routing key of a delayed message"):
        routing_key.decode(key)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay.core import routing_key
from celery_rabbit_delay.core.levels import powers_of_two
from celery_rabbit_delay.core.routing_key import MAX_LENGTH
from celery_rabbit_delay.core.topology import Cascade

ticks = st.integers(1, (1 << 49) - 1)
LEVELS = Cascade("t", timedelta(milliseconds=1), powers=49).levels


def encode(ticks: int) -> str:
    return routing_key.encode(tuple(LEVELS[power.bit_length() - 1] for power in powers_of_two(ticks)))


def test_keys_name_the_set_bits_highest_first() -> None:
    assert encode(1) == "@.^0"
    assert encode(6) == "@.^2.^1"
    assert encode(1 << 30) == "@.^30"


def test_lanes_come_first_and_a_separator_stands_before_powers_that_follow() -> None:
    cascade = Cascade("t", timedelta(milliseconds=1), powers=12, lanes=(120, 960))
    level = {level.ticks: level for level in cascade.levels}
    assert routing_key.encode((level[960],)) == "@.~960"
    assert routing_key.encode((level[960], level[120])) == "@.~960.~120"
    assert routing_key.encode((level[960], level[120], level[64], level[8])) == "@.~960.~120.-.^6.^3"
    assert routing_key.entry_keys(level[960]) == ("@.~960", "@.>~960")
    assert routing_key.entry_key((level[960],)) == "@.~960"
    assert routing_key.entry_key((level[960], level[8])) == "@.>~960"
    assert routing_key.next_pattern(level[960], level[120]) == "@.#.~960.~120.#"
    assert routing_key.powers_pattern(level[120]) == "@.#.~120.-.#"
    assert routing_key.first_power_pattern(level[8]) == "@.#.-.^3.#"
    assert routing_key.exit_pattern(level[120]) == "@.#.~120"


def test_the_longest_key_fits_into_amqp() -> None:
    cascade = Cascade("t", timedelta(milliseconds=1), powers=39, lanes=(10**11 + 1, 10**11 + 3, 10**11 + 5))
    assert len(routing_key.encode(tuple(reversed(cascade.levels)))) <= MAX_LENGTH


def test_patterns_read_one_bit_and_the_next() -> None:
    assert routing_key.entry_keys(LEVELS[2]) == ("@.^2", "@.>^2")
    assert routing_key.next_pattern(LEVELS[13], LEVELS[0]) == "@.#.^13.^0.#"
    assert routing_key.exit_pattern(LEVELS[3]) == "@.#.^3"


def test_patterns_of_any_level_are_short_for_a_restarted_broker_brings_them_back_word_by_word() -> None:
    patterns = [
        *routing_key.entry_keys(LEVELS[39]),
        routing_key.next_pattern(LEVELS[39], LEVELS[38]),
        routing_key.exit_pattern(LEVELS[39]),
    ]
    assert max(pattern.count(".") for pattern in patterns) < 5


@given(ticks, ticks)
@example((1 << 49) - 1, 1)
def test_each_number_of_ticks_has_a_key_of_its_own_that_fits_into_amqp(one: int, other: int) -> None:
    assert len(encode(one).encode()) <= MAX_LENGTH
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved


def test_a_probe_may_begin_after_the_lanes() -> None:
    assert routing_key.after_lanes(LEVELS[3]) == "@.-.^3"

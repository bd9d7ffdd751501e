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


def steps(ticks: int) -> tuple[str, ...]:
    return routing_key.steps(tuple(LEVELS[power.bit_length() - 1] for power in powers_of_two(ticks)))


def test_keys_name_the_steps_between_the_set_bits_highest_first() -> None:
    assert steps(1) == ("@.^0",)
    assert steps(6) == ("@.>^2", "@.^2>^1", "@.^1>")
    assert steps(1 << 30) == ("@.^30",)


def test_lanes_come_first_and_a_step_of_its_own_leads_to_powers_that_follow() -> None:
    cascade = Cascade("t", timedelta(milliseconds=1), powers=12, lanes=(120, 960))
    level = {level.ticks: level for level in cascade.levels}
    assert routing_key.steps((level[960],)) == ("@.~960",)
    assert routing_key.steps((level[960], level[120])) == ("@.>~960", "@.~960>~120", "@.~120>")
    assert routing_key.steps((level[960], level[120], level[64], level[8])) == (
        *("@.>~960", "@.~960>~120", "@.~120>-", "@.->^6", "@.^6>^3", "@.^3>"),
    )


def test_the_longest_keys_fit_into_amqp() -> None:
    cascade = Cascade("t", timedelta(milliseconds=1), powers=39, lanes=(10**11 + 1, 10**11 + 3, 10**11 + 5))
    assert max(map(len, routing_key.steps(tuple(reversed(cascade.levels))))) <= MAX_LENGTH


def test_each_level_has_bindings_for_all_steps_into_it_and_out_of_it() -> None:
    assert routing_key.entry_keys(LEVELS[2]) == ("@.^2", "@.>^2")
    assert routing_key.next_key(LEVELS[13], LEVELS[0]) == "@.^13>^0"
    assert routing_key.exit_keys(LEVELS[3]) == ("@.^3", "@.^3>")
    assert routing_key.first_power_key(LEVELS[3]) == "@.->^3"


@given(ticks, ticks)
@example((1 << 49) - 1, 1)
def test_each_number_of_ticks_has_keys_of_its_own_that_fit_into_amqp(one: int, other: int) -> None:
    assert all(len(key.encode()) <= MAX_LENGTH for key in steps(one))
    assert len(set(steps(one))) == len(steps(one))
    assert (steps(one) == steps(other)) == (one == other)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved


def test_a_probe_may_begin_after_the_lanes() -> None:
    assert routing_key.after_lanes(LEVELS[3]) == ("@.->^3", "@.^3>")

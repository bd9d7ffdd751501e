from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_rabbit_delay.delay.core import routing_key
from celery_rabbit_delay.delay.core.levels import powers_of_two
from celery_rabbit_delay.delay.core.routing_key import MAX_LENGTH
from celery_rabbit_delay.delay.core.topology import Cascade
from celery_rabbit_delay.operate.addresses import is_match

POWERS = 49
ticks = st.integers(1, (1 << POWERS) - 1)
LEVELS = Cascade("t", timedelta(milliseconds=1), powers=POWERS).levels


def key(ticks: int) -> str:
    return routing_key.key(LEVELS[power.bit_length() - 1] for power in powers_of_two(ticks))


def test_a_key_has_a_word_for_each_set_bit_highest_first() -> None:
    assert key(1) == "@.^0"
    assert key(6) == "@.^2.^1"
    assert key(2**9 + 2**4 + 1) == "@.^9.^4.^0"


def test_the_patterns_lead_into_a_level_from_one_to_another_and_out() -> None:
    assert routing_key.entry_pattern(LEVELS[9]) == "@.^9.#"
    assert routing_key.next_pattern(LEVELS[9], LEVELS[8]) == "@.#.^8.#"
    assert routing_key.next_pattern(LEVELS[9], LEVELS[4]) == "@.#.^9.^4.#"
    assert routing_key.exit_pattern(LEVELS[0]) == "@.#.^0"


@given(ticks)
@example(1)
@example((1 << POWERS) - 1)
def test_of_all_patterns_of_an_exchange_exactly_one_matches_a_key(ticks: int) -> None:
    route = [LEVELS[power.bit_length() - 1] for power in powers_of_two(ticks)]
    sent = key(ticks)

    def matching(patterns: list[str]) -> list[str]:
        return [pattern for pattern in patterns if is_match("topic", pattern, sent)]

    entries = [routing_key.entry_pattern(level) for level in LEVELS]
    assert matching(entries) == [routing_key.entry_pattern(route[0])]
    for level, lower in zip(route, [*route[1:], None], strict=True):
        onward = [routing_key.next_pattern(level, one) for one in LEVELS[: LEVELS.index(level)]]
        patterns = [*onward, routing_key.exit_pattern(level)]
        right = routing_key.next_pattern(level, lower) if lower else routing_key.exit_pattern(level)
        assert matching(patterns) == [right]


@given(ticks, ticks)
@example((1 << POWERS) - 1, 1)
def test_each_number_of_ticks_has_a_key_of_its_own_that_fits_into_amqp(one: int, other: int) -> None:
    assert len(key(one).encode()) <= MAX_LENGTH
    assert (key(one) == key(other)) == (one == other)


@pytest.mark.parametrize(("key", "reserved"), [("@", True), ("@.a", True), ("@a", False), ("a.@", False), ("", False)])
def test_reserved_keys_are_those_whose_first_word_is_the_sentinel(key: str, reserved: bool) -> None:
    assert routing_key.is_reserved(key) is reserved

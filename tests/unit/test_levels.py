"""The split of a delay: the fewest levels that add up to it, with an outbox that takes the rest."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core.levels import DEFAULT_OUTBOXES, Level, fewest_set_bits, powers_of_two, split
from celery_rabbit_delay.delay.core.routing_key import word

SECOND = 1_000_000

#: By hour, day and so on, as people do.
EVERYDAY = [1, 2, 3, 5, 10, 15, 20, 30, 45]
EVERYDAY += [60 * minutes for minutes in EVERYDAY] + [3600 * hours for hours in (1, 2, 3, 4, 6, 8, 12)]
EVERYDAY += [86400 * days for days in (1, 2, 3, 7, 14, 30)]

MOST = (1 << 9) - 1
outboxes = st.lists(st.integers(1, MOST), max_size=8, unique=True)


@given(st.integers(0, 5000), st.integers(0, 3000))
def test_the_fewest_set_bits_are_those_of_the_smallest_best_number(start: int, slack: int) -> None:
    tried = range(start, start + slack + 1)
    assert fewest_set_bits(start, slack) == min(tried, key=lambda number: (number.bit_count(), number))


@given(st.integers(1, 1 << 48), st.integers(0, 1 << 48))
def test_no_slack_is_exceeded_and_none_adds_a_set_bit(start: int, slack: int) -> None:
    found = fewest_set_bits(start, slack)
    assert start <= found <= start + slack
    assert found.bit_count() <= start.bit_count()


def best(ticks: int, slack: int, combined: list[int]) -> tuple[int, int]:
    """Return the shortest of the best outboxes, and the smallest of the best numbers beside it, by trying all."""
    candidates = [
        (total - outbox, outbox)
        for outbox in (0, *combined)
        for total in range(max(ticks, outbox), ticks + slack + 1)
        if total - outbox <= MOST
    ]
    rest, outbox = min(candidates, key=lambda one: (one[0].bit_count(), one[1], one[0]))
    return outbox, rest


@given(st.integers(1, MOST), st.integers(0, 60) | st.integers(0, MOST), outboxes, st.data())
def test_a_delay_is_split_as_well_as_any_other_way(
    ticks: int, slack: int, whole: list[int], data: st.DataObject
) -> None:
    combined = data.draw(st.lists(st.sampled_from(whole), unique=True)) if whole else []
    outbox, rest = split(ticks, slack, MOST, whole, combined)
    assert (outbox, rest) == ((ticks, 0) if ticks in whole else best(ticks, slack, combined))


@given(st.data())
def test_an_outbox_never_adds_a_level_and_a_delay_is_never_shortened(data: st.DataObject) -> None:
    powers = data.draw(st.integers(1, 45))
    most = (1 << powers) - 1
    whole = data.draw(st.lists(st.integers(1, most), max_size=40, unique=True))
    combined = whole[: data.draw(st.integers(0, 40))]
    ticks, slack = data.draw(st.integers(1, most)), data.draw(st.integers(0, 20) | st.integers(0, most))
    outbox, rest = split(ticks, slack, most, whole, combined)
    assert outbox in (0, *combined) or (rest == 0 and outbox in whole)
    assert ticks <= outbox + rest <= ticks + slack
    assert rest <= most
    assert rest.bit_count() <= fewest_set_bits(ticks, min(slack, most - ticks)).bit_count()


@given(st.integers(1, 1 << 48))
def test_the_powers_of_a_number_add_up_to_it_the_longest_first(ticks: int) -> None:
    powers = powers_of_two(ticks)
    assert sum(powers) == ticks
    assert powers == sorted(set(powers), reverse=True)
    assert len(powers) == ticks.bit_count()
    assert powers_of_two(0) == []


def test_the_word_of_a_level_names_its_power() -> None:
    assert [word(Level(1 << power, 0, "", "")) for power in (0, 9, 27)] == ["^0", "^9", "^27"]


def test_each_everyday_delay_is_that_of_an_outbox_and_takes_no_level() -> None:
    options = Options()
    assert set(EVERYDAY) == set(DEFAULT_OUTBOXES)
    assert len(DEFAULT_OUTBOXES) == len(set(DEFAULT_OUTBOXES))
    for seconds in EVERYDAY:
        assert options.route(options.cascade, seconds * 8) == ((), seconds * 8)


@pytest.mark.parametrize(
    ("span", "most"), [(15, 2.41), (60, 3.1), (600, 3.7), (3600, 4.0), (86_400, 6.0), (30 * 86_400, 8.5)]
)
def test_evenly_spread_delays_take_as_few_levels_as_documented(span: int, most: float) -> None:
    options = Options()
    chosen = random.Random(span)
    delays = [chosen.randrange(125_000, span * SECOND) for _ in range(3000)]
    assert (
        sum(len(options.route(options.cascade, options.ticks(delay)).levels) for delay in delays) / len(delays) <= most
    )

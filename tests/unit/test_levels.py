"""The encoder: the fewest levels that add up to a delay."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.core.levels import DEFAULT_LANES, MAX_LANES, Encoder, fewest_set_bits

#: By hour, day and so on, as people do.
EVERYDAY = [1, 2, 3, 5, 10, 15, 20, 30, 45]
EVERYDAY += [60 * minutes for minutes in EVERYDAY] + [3600 * hours for hours in (1, 2, 3, 4, 6, 8, 12)]
EVERYDAY += [86400 * days for days in (1, 2, 3, 7, 14, 30)]

DEFAULT = Encoder(31, [8 * int(lane) for lane in DEFAULT_LANES if 8 * int(lane) & (8 * int(lane) - 1)])


def hops(encoder: Encoder, ticks: int, slack: int) -> int:
    """Return how many levels a delay takes, after a check that they add up to it."""
    lanes, rest = encoder.split(ticks, slack)
    assert ticks <= sum(lanes) + rest <= min(ticks + slack, encoder.max_ticks)
    assert list(lanes) == sorted(set(lanes), reverse=True)
    assert len(lanes) <= MAX_LANES
    return len(lanes) + rest.bit_count()


def fewest(powers: int, lanes: Sequence[int]) -> list[int]:
    """Return the fewest possible levels for each number of ticks, with each level at most once."""
    most = (1 << powers) - 1
    best = [0] + [99] * most
    for level in [1 << power for power in range(powers)] + list(lanes):
        for ticks in range(most, level - 1, -1):
            best[ticks] = min(best[ticks], best[ticks - level] + 1)
    return best


@given(st.data())
def test_any_levels_add_up_to_a_delay_and_are_never_more_than_without_lanes(data: st.DataObject) -> None:
    powers = data.draw(st.integers(1, 45))
    most = (1 << powers) - 1
    lanes = data.draw(st.sets(st.integers(1, most).filter(lambda n: n & (n - 1)), max_size=40)) if powers > 1 else []
    ticks = data.draw(st.integers(1, most))
    slack = data.draw(st.integers(0, 20) | st.integers(0, most))
    without = fewest_set_bits(ticks, min(slack, most - ticks)).bit_count()
    assert hops(Encoder(powers, lanes), ticks, slack) <= without


@given(st.data())
def test_a_lane_is_one_hop_and_two_of_them_are_two_at_most(data: st.DataObject) -> None:
    numbers = st.integers(3, 1 << 25).filter(lambda n: n & (n - 1))
    lanes = sorted(data.draw(st.sets(numbers, min_size=2, max_size=20)))
    encoder = Encoder(26, lanes)
    one, other = data.draw(st.sampled_from(lanes)), data.draw(st.sampled_from(lanes))
    assert hops(encoder, one, 0) == 1
    assert hops(encoder, one + other, 0) <= 2 or one == other


def test_hops_are_the_fewest_possible_almost_always() -> None:
    chosen = random.Random(3)
    worse, tried = 0, 0
    for _ in range(10):
        powers = chosen.randint(5, 9)
        most = (1 << powers) - 1
        lanes = {n for n in (chosen.randint(3, most) for _ in range(8)) if n & (n - 1)}
        encoder, best = Encoder(powers, lanes), fewest(powers, sorted(lanes))
        for ticks in range(1, most + 1):
            for slack in (0, 1, 5):
                found = hops(encoder, ticks, slack)
                optimum = min(best[ticks : min(ticks + slack, most) + 1])
                assert found >= optimum
                worse += found > optimum
                tried += 1
    assert worse < tried / 20


def test_default_levels_take_the_fewest_hops_or_sometimes_one_more() -> None:
    best = fewest(15, [int(seconds * 8) for seconds in DEFAULT_LANES if seconds * 8 < 1 << 15])
    delays = range(1, 3600 * 8, 7)
    more = []
    for ticks in delays:
        slack = min(ticks // 1000, 8)
        more.append(hops(DEFAULT, ticks, slack) - min(best[ticks : ticks + slack + 1]))
    assert max(more) <= 3
    assert sum(one > 0 for one in more) / len(delays) <= 0.02  # docs/how-it-works.md: the fewest for 98 of 100 delays


def test_everyday_delays_take_one_and_a_half_hops_on_average() -> None:
    taken = [hops(DEFAULT, seconds * 8, min(seconds * 8 // 1000, 8)) for seconds in EVERYDAY]
    assert sum(taken) / len(taken) <= 1.5


def test_evenly_spread_delays_take_as_many_hops_as_documented() -> None:
    chosen = random.Random(1)
    for span, most in ((3600, 4.3), (86_400, 5.7), (30 * 86_400, 7.8)):
        delays = [chosen.randrange(1, span * 8) for _ in range(3000)]
        assert sum(hops(DEFAULT, ticks, min(ticks // 1000, 8)) for ticks in delays) / len(delays) <= most


def test_many_lanes_are_taken_by_twos() -> None:
    lanes = [lane | 1 for lane in random.Random(1).sample(range(1000, 1 << 28), 64)]
    encoder = Encoder(31, lanes)
    assert hops(encoder, lanes[0] + lanes[1], 0) <= 2

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_rabbit_delay.web import plot

BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
NOW = int(datetime(2026, 3, 28, 22, 7, 31, 500_000, timezone.utc).timestamp() * 1000)


@pytest.mark.parametrize("name", plot.RANGES)
@pytest.mark.parametrize("zone", [timezone.utc, BERLIN, KOLKATA])
def test_the_first_bar_is_that_of_now_and_the_last_ends_a_range_later(name: str, zone: tzinfo) -> None:
    range_ = plot.RANGES[name]
    edges = plot.edges(range_, NOW, zone)
    assert edges[0] <= NOW < edges[1]
    assert {b - a for a, b in pairwise(edges)} == {range_.step * 1000}
    lengths = {"minute": 60, "hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}
    assert edges[-1] - edges[0] == lengths[name] * 1000


def test_bars_and_labels_are_at_round_times_of_the_viewers_zone() -> None:
    edges = plot.edges(plot.RANGES["week"], NOW, KOLKATA)
    assert plot.text(edges[0], KOLKATA, "%H:%M") == "02:00"
    drawn = plot.plot(plot.RANGES["day"], plot.edges(plot.RANGES["day"], NOW, BERLIN), {"q": [0] * 96}, BERLIN)
    assert [label.label for label in drawn.labels][:2] == ["00:00", "04:00"]  # the clock goes forward in between


@pytest.mark.parametrize("month", [3, 10])
def test_each_day_has_its_label_also_behind_a_change_of_the_clock(month: int) -> None:
    range_, now = plot.RANGES["week"], int(datetime(2026, month, 24, 9, tzinfo=timezone.utc).timestamp() * 1000)
    drawn = plot.plot(range_, plot.edges(range_, now, BERLIN), {"q": [0] * range_.bars}, BERLIN)
    assert [label.label[4:6] for label in drawn.labels] == ["25", "26", "27", "28", "29", "30", "31"]


def test_the_hour_that_comes_twice_has_its_labels_twice() -> None:
    range_, now = plot.RANGES["hour"], int(datetime(2026, 10, 25, 0, 35, tzinfo=timezone.utc).timestamp() * 1000)
    drawn = plot.plot(range_, plot.edges(range_, now, BERLIN), {"q": [0] * range_.bars}, BERLIN)
    assert [label.label for label in drawn.labels] == ["02:40", "02:50", "02:00", "02:10", "02:20", "02:30"]


COUNTS = st.lists(st.integers(0, 10**7), min_size=60, max_size=60)


@given(COUNTS, COUNTS)
def test_bars_are_as_high_as_they_count_and_within_the_plot(mail: list[int], others: list[int]) -> None:
    range_ = plot.RANGES["hour"]
    drawn = plot.plot(range_, plot.edges(range_, NOW, BERLIN), {"mail": mail, "": others}, BERLIN)
    assert drawn.total == sum(mail) + sum(others)
    heights = []
    for bar, *counts in zip(drawn.bars, mail, others, strict=True):
        assert bar.due == sum(counts)
        assert 0 <= bar.x <= bar.x + bar.width <= 100
        assert [part.queue for part in bar.parts] == [
            name for name, one in zip(["mail", ""], counts, strict=True) if one
        ]
        bottom = float(plot.HEIGHT)  # the parts stand on each other
        for part in bar.parts:
            assert part.y + part.height == pytest.approx(bottom, abs=1e-6)
            bottom = part.y
        assert round(bottom, 6) >= 0
        heights.append(plot.HEIGHT - bottom)
        assert (heights[-1] > 1.99) == (bar.due > 0)
    by_count = sorted(zip((bar.due for bar in drawn.bars), heights, strict=True))
    assert all(round(one, 6) <= round(other, 6) for (_, one), (_, other) in pairwise(by_count))


def test_the_title_of_a_bar_names_what_each_queue_contributes() -> None:
    range_ = plot.RANGES["minute"]
    counts = {"mail": [1200] + [0] * 59, "celery": [0] * 60, "": [3] * 60}
    drawn = plot.plot(range_, plot.edges(range_, NOW, timezone.utc), counts, timezone.utc)
    assert drawn.bars[0].title == "1,203 due Sat 28 Mar 22:07:31 – 22:07:32: 1,200 mail, 3 others"
    alone = plot.plot(range_, plot.edges(range_, NOW, timezone.utc), {"": [3] * 60}, timezone.utc)
    assert alone.bars[0].title == "3 due Sat 28 Mar 22:07:31 – 22:07:32"


@given(st.integers(0, 10**12))
def test_the_scale_ends_at_a_round_number_not_far_above(most: int) -> None:
    top = plot.nice(most)
    assert most <= top <= max(4, 2.5 * most)
    assert top % 2 == 0  # for the line in the middle


def test_a_time_to_wait_is_ahead_or_over() -> None:
    assert [plot.until(one) for one in (999, 61_000, -5000)] == ["in 0 s", "in 1 min 1 s", "5 s ago"]


def test_a_moment_that_no_calendar_has_is_shown_as_a_number() -> None:
    assert plot.text(253_402_300_799_999, BERLIN) == "253402300799999 ms"
    assert plot.text(0, timezone.utc) == "1970-01-01 00:00:00"
    assert plot.edges(plot.RANGES["hour"], 253_402_300_799_999, BERLIN)

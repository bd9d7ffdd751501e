"""Texts for people."""

from __future__ import annotations

import pytest

from celery_rabbit_delay.text import counted, duration, span


@pytest.mark.parametrize(
    ("amount", "what", "text"),
    [
        (1, "tasks cancelled", "1 task cancelled"),
        (2000, "tasks cancelled", "2,000 tasks cancelled"),
        (1, "outboxes deleted", "1 outbox deleted"),
        (1, "queues", "1 queue"),
        (0, "tasks", "0 tasks"),
        (1, "cancelled", "1 cancelled"),
        (1, "revoke_by_stamped_headers", "1 revoke_by_stamped_headers"),
        (1, "moved to 2030-01-31 12:00:00Z", "1 moved to 2030-01-31 12:00:00Z"),
    ],
)
def test_one_of_something_is_not_many(amount: int, what: str, text: str) -> None:
    assert counted(amount, what) == text


def test_a_duration_is_in_days_if_it_is_long() -> None:
    for seconds, text in (
        (0.125, "0.125 s"),
        (3600, "3600 s"),
        (86_401.5, "86401.5 s"),
        (172_800, "2 days"),
        (999_999_999.999, "11,574.08 days"),
        (365 * 86_400 + 0.001, "365.01 days"),  # never what it is compared with
    ):
        assert duration(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 s"),
        (125, "125 ms"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_659_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (86_400_000 * 400, "400 d"),
    ],
)
def test_a_span_has_two_units_at_most(milliseconds: int, text: str) -> None:
    assert span(milliseconds) == text

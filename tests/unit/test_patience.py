"""What is tried again is tried for as long as it says, with pauses that double."""

from __future__ import annotations

import time

import pytest

from celery_rabbit_delay.amqp.patience import Patience


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass only in pauses; return these."""
    found: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: sum(found))
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_pauses_double_up_to_the_longest_until_the_seconds_are_over(pauses: list[float]) -> None:
    tries = Patience(10, 1, 3)
    while tries.pause():
        pass
    assert pauses == [1, 2, 3, 3, 3]


def test_what_has_worked_meanwhile_has_all_its_seconds_again(pauses: list[float]) -> None:
    tries = Patience(3, 1, 9)
    assert tries.pause()
    assert tries.pause()
    assert not tries.pause()
    tries.renew()
    assert tries.pause()
    assert pauses == [1, 2, 1]


def test_without_seconds_nothing_is_tried_again(pauses: list[float]) -> None:
    assert not Patience(0).pause()
    assert not pauses

"""What is tried again is tried for as long as it says, with pauses that double; changes are among it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import Options, StreamUnavailable
from celery_rabbit_delay.delay.amqp.connecting import Patience
from celery_rabbit_delay.schedule.amqp.stream_consumer import PATIENCE
from celery_rabbit_delay.schedule.amqp.waiting_tasks import write_changes


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


class Leaderless:
    """A connection to a broker where the stream of changes has a leader only after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.connection, self.interceptor = self, self
        self.transport = SimpleNamespace(delay_options=Options(schedule=True))
        self.since, self.written = seconds, list[bytes]()

    def write(self, stream: Any, bodies: list[bytes], limit: float | None) -> None:
        if time.monotonic() < self.since:
            raise StreamUnavailable("it has no leader")
        self.written += bodies


@pytest.mark.parametrize("seconds", [0, 1, PATIENCE - 1])
def test_a_change_waits_until_its_stream_has_a_leader(pauses: list[float], seconds: float) -> None:
    connection: Any = Leaderless(seconds)
    write_changes(connection, iter([b"one", b"two"]))
    assert connection.written == [b"one", b"two"]


def test_a_change_does_not_wait_for_ever(pauses: list[float]) -> None:
    connection: Any = Leaderless(PATIENCE + 2)
    with pytest.raises(StreamUnavailable):
        write_changes(connection, [b"one"])
    assert PATIENCE <= sum(pauses) <= PATIENCE + 1

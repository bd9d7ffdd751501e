"""Streams that are read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import Options, StreamUnavailable
from celery_rabbit_delay.amqp.confirms import ConfirmedChannel
from celery_rabbit_delay.amqp.stream_reader import Extent, StreamMessage, StreamReader
from celery_rabbit_delay.amqp.stream_writer import StreamWriter, paused_of
from celery_rabbit_delay.core import streams


class Client:
    """In place of a `kombu.Connection`."""


def test_a_read_that_breaks_off_is_resumed_for_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    attempts: list[int] = []

    class Flaky(StreamReader):
        """Reads two messages in a minute, and breaks off; in the end it reads none."""

        def _read(self, stream: Any, first: int, is_last: Any) -> Iterator[StreamMessage]:
            nonlocal now
            attempts.append(first)
            for offset in range(first, min(first + 2, 6)):
                now += 30
                yield StreamMessage(offset, b"")
            raise StreamUnavailable("it broke off")

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    options = Options()
    reader = Flaky(object(), patience=15, options=options)
    found: list[int] = []
    with pytest.raises(StreamUnavailable, match="it broke off"):
        found.extend(entry.offset for entry in reader.read(streams.changes(options.cascade), Extent(9, 8)))
    assert attempts[:4] == [0, 2, 4, 6]
    assert set(attempts[4:]) == {6}
    assert 180 + 15 <= now <= 180 + 16


def test_a_stream_that_is_only_just_coming_up_is_tried_again_soon_and_a_broken_one_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    options = Options()
    client = Client()
    connection: Any = SimpleNamespace(client=client)
    journal = StreamWriter(connection, ConfirmedChannel(connection), options.cascade, options)
    stream = streams.journal_for(options.cascade, 60)
    attempts = []
    for _ in range(3):
        journal.pause(stream, StreamUnavailable("it has no leader"))
        attempts.append(paused_of[client][stream.name])
    assert attempts == [1, 60, 60]
    assert len(caplog.records) == 1

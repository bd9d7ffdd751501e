"""The indexer without a broker."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import NotPermitted
from celery_rabbit_delay.delay.core.topology import Cascade, Stream
from celery_rabbit_delay.operate import broker_connection
from celery_rabbit_delay.operate.queue_names import QueueNames
from celery_rabbit_delay.schedule.amqp.follower import Extent
from celery_rabbit_delay.schedule.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.web import indexer as indexer_
from celery_rabbit_delay.web.indexer import Indexer


class Waits:
    """An event that is set after some waits, whose lengths it keeps."""

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.seconds: list[float] = []

    def is_set(self) -> bool:
        return len(self.seconds) == self.amount

    def wait(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_attempts_that_fail_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    def follower(connection: Any) -> Any:
        raise NotPermitted("read access to the journal")

    monkeypatch.setattr(indexer_, "Follower", follower)
    monkeypatch.setattr(broker_connection, "connected", nullcontext)
    indexer: Any = Indexer(lambda: SimpleNamespace(), QueueNames())
    indexer.stopping = Waits(8)
    indexer.run()
    assert indexer.stopping.seconds == [2, 4, 8, 16, 32, 60, 60, 60]
    assert "read access" in indexer.progress.error


@pytest.mark.parametrize("oldest", [0, 1, 41, 57, 61, 99])
def test_a_stream_is_read_backwards_down_to_what_is_left_of_it(monkeypatch: pytest.MonkeyPatch, oldest: int) -> None:
    monkeypatch.setattr(indexer_, "_BLOCK", 20)
    stream, asked, applied = Stream("s", "@.s", 1, 1), list[int](), list[int]()
    offsets = [offset for offset in range(oldest, 100) if offset not in (39, 60)]  # RabbitMQ takes some for itself

    def between(stream: Stream, first: int, last: int) -> list[StreamMessage]:
        asked.append(first)
        return [StreamMessage("s", offset, b"") for offset in offsets if first <= offset <= last]

    indexer: Any = Indexer(lambda: SimpleNamespace(), QueueNames())
    monkeypatch.setattr(indexer.index, "apply", lambda message, now: applied.append(message.offset))
    extents = {stream: Extent(len(offsets), 99), Stream("empty", "@.e", 1, 1): Extent(0, -1)}
    reader = SimpleNamespace(between=between, close=lambda: None, extents=lambda wanted: extents)
    indexer._look_back(reader, Cascade("root", timedelta(seconds=1), 11))
    assert indexer.progress.left == indexer.progress.total == len(offsets)
    while indexer._back:
        indexer._read_back(reader)
    assert sorted(applied) == offsets
    assert applied[0] == max(80, oldest)
    assert asked == [80, 60, 40, 20, 0][: len(asked)]
    assert asked[-1] >= oldest - 40
    assert indexer.progress.left == 0

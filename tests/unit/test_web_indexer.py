"""The indexer without a broker."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import NotPermitted
from celery_rabbit_delay.amqp import connecting as connecting_
from celery_rabbit_delay.amqp.destinations import QueueNames
from celery_rabbit_delay.web import indexer as indexer_
from celery_rabbit_delay.web.index import Index
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


def test_attempts_that_fail_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def follower(connection: Any) -> Any:
        raise NotPermitted("read access to the journal")

    monkeypatch.setattr(indexer_, "Follower", follower)
    monkeypatch.setattr(connecting_, "connected", nullcontext)
    index = Index(tmp_path / "index.sqlite", "here")
    indexer: Any = Indexer(index, lambda: SimpleNamespace(), QueueNames())
    indexer.stopping = Waits(8)
    indexer.run()
    index.close()
    assert indexer.stopping.seconds == [2, 4, 8, 16, 32, 60, 60, 60]
    assert "read access" in indexer.progress.error

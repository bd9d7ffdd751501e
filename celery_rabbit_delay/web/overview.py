"""Totals for the page and the metrics, cached so that their cost does not depend on the number of viewers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from ..operate import Status
from ..periodic.beat_status import BeatStatus
from ..schedule.amqp.waiting_tasks import utc_ms
from . import search
from .index import Row
from .operations import Operations, or_reason
from .search import Filter, Share

T = TypeVar("T")

#: The maximum number of cached answers, and their maximum lifetime in seconds.
_REMEMBERED, _LONGEST = 20, 20


class _Answer:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.is_known = False
        self.until = 0.0  # the end of its lifetime, by `time.monotonic`


class Summary(NamedTuple):
    """Totals of the waiting messages, also of those that the index does not keep. Times are milliseconds since 1970."""

    waiting: int
    soonest: int | None
    latest: int | None  # of those that it keeps
    cancelled: int
    queues: Mapping[str, int]


class Overview:
    """Cached answers. An answer lives ten times as long as it took, and at least some seconds."""

    def __init__(self, operations: Operations) -> None:
        self.indexer = operations.indexer
        self._operations = operations
        self._lock = threading.Lock()
        self._answers: dict[Hashable, _Answer] = {}

    def summary(self) -> Summary:
        return self._remembered("summary", 1, self._summary)

    def shares(self, is_cancelled: bool) -> tuple[list[Share], list[Share]]:
        """Return the messages that wait, or are cancelled, by their tasks and by their queues."""

        def ask() -> tuple[list[Share], list[Share]]:
            rows = self.found(Filter(is_cancelled=is_cancelled))
            return search.shares(rows, "task"), search.shares(rows, "queue")

        return self._remembered(("shares", is_cancelled), 1, ask)

    def found(self, wanted: Filter) -> list[Row]:
        """Return the matches of a filter; see `search.found`."""
        return self._remembered(wanted, 0, lambda: search.found(self.indexer.view, wanted, utc_ms()))

    def status(self) -> Status | str:
        """Return the message counts of the cascade, or the reason why they are unknown."""
        return self._remembered("status", 4, lambda: or_reason(self._operations.status))

    def beat(self) -> BeatStatus | str | None:
        """Return the state of the app's beat, None if there is none, or the reason why it is unknown."""
        return self._remembered("beat", 10, lambda: or_reason(self._operations.beat))

    def forget(self) -> None:
        """Expire all cached answers after a change."""
        with self._lock:
            for answer in self._answers.values():
                answer.until = 0

    def _summary(self) -> Summary:
        waiting, cancelled = self.found(Filter()), self.found(Filter(is_cancelled=True))
        soonest, latest = (waiting[0].due, waiting[-1].due) if waiting else (None, None)
        counts = Counter(self.indexer.view.later) + Counter(row.queue for row in waiting)
        return Summary(counts.total(), soonest, latest, len(cancelled), counts)

    def _remembered(self, name: Hashable, seconds: float, ask: Callable[[], T]) -> T:
        with self._lock:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            answer = self._answers.setdefault(name, _Answer())
        if time.monotonic() >= answer.until and answer.lock.acquire(blocking=not answer.is_known):
            try:  # many viewers ask only once, and do not wait if there is an older answer
                began = time.monotonic()
                if began >= answer.until:
                    answer.value = ask()
                    ended = time.monotonic()
                    answer.until = ended + min(max(seconds, 10 * (ended - began)), _LONGEST)
                    answer.is_known = True
            finally:
                answer.lock.release()
        value: T = answer.value
        return value

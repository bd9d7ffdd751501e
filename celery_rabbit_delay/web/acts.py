"""What was done on the page lately, and by whom."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: The number of acts that are remembered, in memory alone.
KEPT = 100


class Act(NamedTuple):
    """A change that was asked for on the page."""

    at: int  # milliseconds since 1970
    who: str
    what: str


class Acts:
    """The last acts, the newest first."""

    def __init__(self) -> None:
        self._acts: deque[Act] = deque(maxlen=KEPT)

    def add(self, act: Act) -> None:
        self._acts.appendleft(act)

    def all(self) -> list[Act]:
        return list(self._acts)

"""Notices a damaged index. Nothing is lost with it: it is built again from the journal."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import DelayError


class IndexDamaged(DelayError):
    """The file of the index is damaged. `since` is when the attempt to use it began, by `time.monotonic`."""

    def __init__(self, path: Path, reason: Exception, since: float) -> None:
        super().__init__(f"the index {path} is damaged ({reason})")
        self.since = since


@contextmanager
def noticing_damage(path: Path) -> Iterator[None]:
    """Raise `IndexDamaged` instead of the errors with which SQLite and its driver notice damage."""
    since = time.monotonic()
    try:
        yield
    except sqlite3.DatabaseError as exc:
        # The codes SQLITE_CORRUPT and SQLITE_NOTADB have no class of their own. All text in the index is valid.
        if type(exc) is not sqlite3.DatabaseError and "Could not decode to UTF-8" not in str(exc):
            raise
        raise IndexDamaged(path, exc, since) from exc


class Gate:
    """Lets any number of threads read files, or one thread replace them."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Keep the files as they are until the block ends."""
        with self._condition:
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody reads, and let nobody begin until the block ends."""
        with self._condition:
            self._condition.wait_for(lambda: not self._readers)
            yield

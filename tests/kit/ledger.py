"""A file that processes append to while others read it: one JSON value a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def append(path: str | Path, *entries: Any) -> None:
    """Append entries in one write, so that lines of several processes do not mix."""
    with open(path, "ab", buffering=0) as ledger:
        ledger.write(b"".join(json.dumps(entry, default=str).encode() + b"\n" for entry in entries))


def read(path: str | Path) -> list[Any]:
    """Return all entries so far, without one that is just being written."""
    return Follower(path).read()


class Follower:
    """Reads a ledger again and again: each time what is new."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._read = 0  # bytes

    def read(self) -> list[Any]:
        """Return the entries since the last time, without one that is just being written."""
        with open(self._path, "rb") as ledger:
            ledger.seek(self._read)
            complete, end, _ = ledger.read().rpartition(b"\n")
        self._read += len(complete + end)
        return [json.loads(line) for line in complete.splitlines()]


def count(path: str | Path) -> int:
    """Return how many entries there are so far, without parsing them."""
    return Path(path).read_bytes().count(b"\n")

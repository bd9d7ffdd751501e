"""A file that processes append to while others read it: one JSON value a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def append(path: str | Path, entry: Any) -> None:
    """Append an entry in one write, so that lines of several processes do not mix."""
    with open(path, "ab", buffering=0) as ledger:
        ledger.write(json.dumps(entry, default=str).encode() + b"\n")


def read(path: str | Path) -> list[Any]:
    """Return all entries so far, without one that is just being written."""
    complete, _, _ = Path(path).read_text().rpartition("\n")
    return [json.loads(line) for line in complete.splitlines()]


def count(path: str | Path) -> int:
    """Return how many entries there are so far, without parsing them."""
    return Path(path).read_bytes().count(b"\n")

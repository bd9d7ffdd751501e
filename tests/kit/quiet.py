"""Quiet for a test that says how late something may be: no other process of the run then runs another one."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def taking_turns(directory: Path, quiet: bool) -> Iterator[None]:
    """Wait until no test that needs quiet runs, or if this one does no test at all, in the processes of a directory."""
    with (directory / "quiet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if quiet else fcntl.LOCK_SH)
        yield

"""Programs that run beside: nodes, workers, publishers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class Process(Protocol):
    """The part of `subprocess.Popen` that a `tests.kit.forks.Fork` has as well."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class OfAnother:
    """A program that another process has started, and waits for."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        return 0


def start(
    command: Sequence[str], log: Path, directory: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that `kill` reaches its children.

    What it prints goes to the end of `log`. What it leaves of temporary files when it is killed is beside that.
    """
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            cwd=directory,
            env={**environment, "TMPDIR": str(log.parent)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def kill(process: Process) -> None:
    """Send SIGKILL to a process and its children, if there are any left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:  # one that is just starting has no group of its own yet
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # what it has left open is found by who looks for connections
        process.wait(10)

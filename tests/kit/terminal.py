"""Commands whose output goes to a terminal of 80 columns, as people see it, or to a pipe."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kit import background, forks

#: Seconds after which a command has hung.
LIMIT = 120


def run(
    command: str | Sequence[str], directory: Path, environment: Mapping[str, str], shell: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command whose output, but not its messages, goes to a terminal."""
    reading, writing = pty.openpty()
    narrow = {**environment, "COLUMNS": "80", "TERM": "dumb"}
    with os.fdopen(reading, "rb", buffering=0) as terminal, os.fdopen(writing, "wb"), _files() as (_, err):
        process = _start(command, Path(os.ttyname(writing)), err, directory, narrow, shell)
        shown, deadline = b"", time.monotonic() + LIMIT
        while True:
            ended = process.poll() is not None or time.monotonic() > deadline
            if select.select([terminal], [], [], 0 if ended else 0.02)[0]:
                shown += terminal.read(65536)
            elif ended:
                break
        return _done(command, process, shown.decode().replace("\r\n", "\n"), err)


def pipe(
    command: str | Sequence[str], directory: Path, environment: Mapping[str, str], shell: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command whose output is read by a program."""
    with _files() as (out, err):
        process = _start(command, out, err, directory, environment, shell)
        process.wait(LIMIT)
        return _done(command, process, out.read_text(), err)


@contextmanager
def _files() -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory, "out"), Path(directory, "err")


def _start(
    command: str | Sequence[str], out: Path, err: Path, directory: Path, environment: Mapping[str, str], shell: bool
) -> background.Process:
    if not shell and command[0] in forks.PROGRAMS:
        return forks.start(command, out, err, directory, environment)
    with out.open("ab", buffering=0) as output, err.open("ab") as errors:
        return subprocess.Popen(
            command, shell=shell, cwd=directory, env=environment, stdout=output, stderr=errors, start_new_session=True
        )


def _done(
    command: str | Sequence[str], process: background.Process, out: str, err: Path
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.CompletedProcess(command, process.wait(1), out, err.read_text())
    finally:
        background.kill(process)

"""Commands whose output goes to a terminal of 80 columns, as people see it, or to a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run(
    command: str | Sequence[str], directory: Path, environment: Mapping[str, str], shell: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command whose output, but not its messages, goes to a terminal."""
    reading, writing = pty.openpty()
    with os.fdopen(reading, "rb", buffering=0) as terminal:
        try:
            process = subprocess.Popen(
                command,
                shell=shell,
                cwd=directory,
                env={**environment, "COLUMNS": "80", "TERM": "dumb"},
                stdout=writing,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            os.close(writing)
        shown = b""
        with suppress(OSError):  # EIO: nobody writes to it any more
            while part := terminal.read(65536):
                shown += part
        _, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(command, process.returncode, shown.decode().replace("\r\n", "\n"), err)


def pipe(
    command: str | Sequence[str], directory: Path, environment: Mapping[str, str], shell: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command whose output is read by a program."""
    return subprocess.run(
        command, shell=shell, cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )

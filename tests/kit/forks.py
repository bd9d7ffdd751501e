"""Commands of Celery and of this package in processes of their own, which need not import Celery first.

They are forked from a process that has: imports take most of the CPU time of a worker's start, and nearly all of that
of a command. Apart from that such a process is one of its own: it has its own environment, directory, output, signals
and exit code. What must be a new interpreter (a pool of gevent or eventlet, which patches before anything is imported)
is started by `background.start`.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "celery.app.amqp",
        "celery.app.control",
        "celery.app.events",
        "celery.app.log",
        "celery.app.routes",
        "celery.apps.beat",
        "celery.apps.worker",
        "celery.backends.asynchronous",
        "celery.backends.rpc",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "celery.fixups.django",
        "celery.worker.autoscale",
        "celery.worker.consumer",
        "celery.worker.consumer.delayed_delivery",
        "celery.worker.heartbeat",
        "celery.worker.loops",
        "celery.worker.pidbox",
        "celery.worker.strategy",
        "celery_rabbit_delay.delay.app.consumers",
        "celery_rabbit_delay.schedule.app.revoking",
        "celery_rabbit_delay.delay.app.handing_on",
        "celery_rabbit_delay.installation",
        "celery_rabbit_delay.periodic.beat",
        "celery_rabbit_delay.cli.groups",
        "celery_rabbit_delay.cli.plugin",
        "celery_rabbit_delay.operate",
        "celery_rabbit_delay.web.site",
        "kombu.transport.pyamqp",
        "waitress",
    ]
)


#: The programs that `start` can start.
PROGRAMS = ("celery", "celery-rabbit-delay")


class Fork:
    """A process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, process: multiprocessing.process.BaseProcess, err: Path) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process
        self._err = err

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises `subprocess.TimeoutExpired`, which says what it and its children are doing."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            os.killpg(self.pid, signal.SIGUSR2)
            time.sleep(0.5)  # until it has written that down
            raise subprocess.TimeoutExpired(f"process {self.pid}: {self._err.read_text()[-20_000:]}", timeout or 0)
        return code


def start(command: Sequence[str], out: Path, err: Path, directory: Path | None, environment: Mapping[str, str]) -> Fork:
    """Start `celery …` or `celery-rabbit-delay …` in a session of its own; what it prints goes to the ends of files."""
    for file in (out, err):
        file.touch()
    arguments = (list(command), str(out), str(err), str(directory or os.getcwd()), dict(environment))
    process = _context.Process(target=_run, args=arguments, daemon=True)
    process.start()
    return Fork(process, err)


def _run(command: list[str], out: str, err: str, directory: str, environment: dict[str, str]) -> None:
    os.setsid()
    gc.freeze()  # or each collection looks through what was imported, and thereby copies it
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
        os.dup2(file, number)
        os.close(file)
    # As an interpreter would have opened them for a file.
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), "utf-8")  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", closefd=False), "utf-8", "backslashreplace", line_buffering=True)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    faulthandler.register(signal.SIGUSR2)  # what a process does that does not end; Celery resets SIGUSR1 in children
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        if command[0] == "celery":
            from celery.__main__ import main
        else:
            from celery_rabbit_delay.cli import main
        main()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()

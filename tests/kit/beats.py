"""`celery beat -S rabbit-delay` in processes of its own, and the tasks that they have sent."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit import background, forks
from tests.kit.wait import wait_until

#: The option `expires` of an entry, in seconds, by which a task tells when it was sent.
EXPIRES = 3600


class Sent(NamedTuple):
    """A task as it is in its queue."""

    name: str  # its first argument
    id: str
    process: int  # that has sent it
    at: datetime  # by the clock of that process

    @classmethod
    def of(cls, message: Any) -> Sent:
        """Read an `amqp.Message`, or Kombu's."""
        headers = message.headers
        process = int(headers["origin"].removeprefix("gen").partition("@")[0])
        at = datetime.fromisoformat(headers["expires"]) - timedelta(seconds=EXPIRES)
        return cls(message.decode()[0][0], headers["id"], process, at)


def entry(task: str, schedule: Any, name: str = "run", **options: Any) -> dict[str, Any]:
    """Return an entry of `beat_schedule` whose tasks `Sent.of` can read."""
    return {"task": task, "schedule": schedule, "args": [name], "options": {"expires": EXPIRES, **options}}


class Beat:
    """A process of `celery beat`."""

    def __init__(self, app: str, directory: Path, environment: Mapping[str, str], *arguments: str) -> None:
        """Start it. It does not wait until the process is ready."""
        number = len(list(directory.glob("beat-*.log")))
        self.log = directory / f"beat-{number}.log"
        command = ["celery", "-A", app, "beat", "-S", "rabbit-delay", "-l", "INFO", "--pidfile", "", *arguments]
        self.process = forks.start(
            command, self.log, self.log, directory, {**os.environ, **environment, "TMPDIR": str(directory)}
        )
        self.pid = self.process.pid

    def output(self) -> str:
        return self.log.read_text()

    @property
    def activations(self) -> int:
        """How often this has become the active process."""
        return self.output().count("is the active one")

    def wait_until_active(self) -> Beat:
        wait_until(lambda: self.activations or self.process.poll() is not None, "a beat is active")
        assert self.process.poll() is None, self.output()
        return self

    def kill(self) -> None:
        background.kill(self.process)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

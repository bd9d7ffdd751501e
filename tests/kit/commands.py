"""The command line as operators use it, in processes of its own, and what waits or is an orphan for it to show."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery_rabbit_delay import Options
from tests.kit import background, forks
from tests.kit.broker import QUICK, Vhost, lead
from tests.kit.wait import wait_until

CASCADE = Options(**QUICK).cascade
QUICKLY: tuple[str, ...] = ("--tick", str(QUICK["tick"]), "--max-delay", str(QUICK["max_delay"]))
if "schedule" in QUICK:
    QUICKLY += ("--schedule",)

PROGRAM = Path(sys.executable).with_name("celery-rabbit-delay")

PERMISSIONS = Path(__file__).parents[2] / "docs" / "for-operators.md"


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        self.text = self.out + self.err
        assert "Traceback" not in self.err


@dataclass
class Running:
    """A command that has been started."""

    process: forks.Fork
    _out: Path
    _err: Path

    @property
    def out(self) -> str:
        return self._out.read_text()

    def wait(self) -> Result:
        return Result(self.process.wait(120), self.out, self._err.read_text())


@contextmanager
def running(url: str, *arguments: str, options: tuple[str, ...] = QUICKLY) -> Iterator[Running]:
    """Start a command, and kill it in the end."""
    with _started(["celery-rabbit-delay", "--broker", url, *options, *arguments]) as command:
        yield command


def run(url: str, *arguments: str, options: tuple[str, ...] = QUICKLY) -> Result:
    with running(url, *arguments, options=options) as command:
        return command.wait()


def celery(*arguments: str, directory: Path | None = None, **environment: str) -> Result:
    with _started(["celery", *arguments], directory, environment) as command:
        return command.wait()


@contextmanager
def _started(
    command: Sequence[str], directory: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as outputs:
        out, err = Path(outputs, "out"), Path(outputs, "err")
        process = forks.start(command, out, err, directory, {**os.environ, **(environment or {})})
        try:
            yield Running(process, out, err)
        finally:
            background.kill(process)


def management(vhost: Vhost) -> tuple[str, str]:
    return "--management-url", f"http://guest:guest@127.0.0.1:{vhost.broker.node.management_port}"


@contextmanager
def closed_pipe() -> Iterator[int]:
    """Yield the end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def make_orphans(vhost: Vhost, amount: int) -> None:
    """Delete an outbox to which messages are on the way, and then the queue that it leads to."""
    vhost.declare("gone")
    assert run(vhost.url("amqp"), "setup").code == 0  # it takes seconds on a busy machine
    with vhost.connection(outboxes=()) as connection:
        lead(connection, "gone")
        vhost.delete_queue(f"{CASCADE.root}.out.+gone")  # this process does not look again
        vhost.delete_queue("gone")
        for n in range(amount):
            headers = {"x-delay": 100, "task": "shop.review", "id": f"id-{n}"}
            connection.Producer().publish({"n": n}, routing_key="gone", headers=headers)
    wait_until(lambda: vhost.count(CASCADE.orphans) == amount, "all are orphans")


def documented_permissions(who: str, queues: str = "(q|gone)") -> dict[str, str]:
    """Return a role's row of the table of permissions in docs/for-operators.md, for some queues."""
    rows = [re.split(r"(?<!\\)\|", line)[1:5] for line in PERMISSIONS.read_text().splitlines() if line.startswith("|")]
    [cells] = [cells for cells in rows if cells[0].strip() == who]
    patterns = [cell.strip().strip("`").replace("\\|", "|").replace("QUEUES", queues) for cell in cells[1:]]
    return dict(zip(("configure", "write", "read"), patterns, strict=True))


def granted_by(page: str) -> dict[str, dict[str, str]]:
    """Return what the lines of a page with `rabbitmqctl set_permissions` grant, by user."""
    lines = re.findall(r"^\$ rabbitmqctl set_permissions (\w+) '(.*)' '(.*)' '(.*)'$", page, re.MULTILINE)
    return {who: dict(zip(("configure", "write", "read"), patterns, strict=True)) for who, *patterns in lines}

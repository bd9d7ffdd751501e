"""A reader of the guides, who types what a page says, in a copy of `examples/` and with a broker of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.kit import background, forks, terminal
from tests.kit.broker import Vhost
from tests.kit.pages import commands
from tests.kit.wait import wait_until

ROOT = Path(__file__).parents[2]
#: As every page and every example names the broker.
DOCUMENTED = "guest:guest@localhost//"

#: What a page tells to do once on a machine, and a test has done already.
SKIPPED = ("pip install ", "docker run ", "cd ")
#: What shows more to people than to programs.
TO_PEOPLE = re.compile(r"celery-rabbit-delay | delay ")
#: Those that only look may be typed again until they show what the page shows.
LOOKS = re.compile(r" (status|list|plan)\b| inspect | show$|rabbitmqctl (--quiet )?list_")

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: [A-Z]{3,5}\b *)?"
#: How many queues are deleted depends on the outboxes that were used.
VARYING = re.compile(
    rf"(?:{UUID}|{TIME}|celery@\w+|ForkPoolWorker-\d+|\d+\.\d s\b|\d+(?= exchanges and queues deleted))"
)
TITLES = re.compile(r" *(?:LEVEL|OUTBOX) +READY +UNSETTLED +(?:QUEUE|FOR)")
PLACE = re.compile(r" *\d+ \w+(?: \d+ \w+)? +(\d+) .*(?:\.delay\.\d+|queue '\w+')")


def pattern(line: str) -> str:
    """Return what a line of documented output matches: ids, times, hosts, levels and outboxes are others each time."""
    if TITLES.fullmatch(line):
        return TITLES.pattern
    if place := PLACE.fullmatch(line):  # a delay that began a little earlier takes other levels, and another outbox
        return rf" *\d+ \w+(?: \d+ \w+)? +{place[1]} .*"
    made, position = "", 0
    for match in VARYING.finditer(line):
        made += re.escape(line[position : match.start()]) + match.re.pattern
        position = match.end()
    return made + re.escape(line[position:].rstrip())


def shows(documented: list[str], output: str) -> bool:
    """Return whether the output is that of a page, but for empty lines. `…` is any lines; a page may also show none."""
    wanted = "".join(r"(?:.*\n)*" if line == "…" else rf"{pattern(line)} *\n" for line in documented)
    seen = "".join(f"{line.rstrip()}\n" for line in output.splitlines() if line.strip())
    return not documented or bool(re.fullmatch(wanted, seen))


Running = subprocess.Popen[bytes] | forks.Fork


class Reader:
    def __init__(self, vhost: Vhost, directory: Path) -> None:
        self.vhost = vhost
        self.examples = directory / "examples"
        shutil.copytree(ROOT / "examples", self.examples, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
        for path in self.examples.rglob("*.py"):
            path.write_text(self.with_broker(path.read_text()))
        self.directory = self.examples
        self.running: dict[str, tuple[Running, Path]] = {}
        self.ids: dict[str, str] = {}  # documented -> real

    def with_broker(self, text: str) -> str:
        return text.replace(DOCUMENTED, self.vhost.url("").removeprefix("://"))

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}

    def words(self, command: str) -> list[str]:
        for documented, real in self.ids.items():
            command = command.replace(documented, real)
        return shlex.split(self.with_broker(command))

    def run(self, command: str, code: int = 0) -> str:
        """Run a command, and return what it prints."""
        if command.startswith("rabbitmqctl import_definitions "):  # it may see another file system
            definitions = json.loads((self.directory / self.words(command)[-1]).read_text())
            self.vhost.broker.api("POST", "/definitions", definitions)
            return ""
        if command.startswith("rabbitmqctl "):
            return self.vhost.broker.node.ctl(*self.words(command)[1:], "--vhost", self.vhost.name)
        shell = any(sign in command for sign in "<>|")
        words = self.with_broker(command) if shell else self.words(command)
        run = terminal.run if TO_PEOPLE.search(command) else terminal.pipe
        done = run(words, self.directory, self.environment, shell)
        assert "Traceback" not in done.stderr or code, done.stderr
        assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def start(self, command: str) -> None:
        """Start a command in a terminal of its own. If it runs already, it is ended first, as by Ctrl-C."""
        self.stop(command)
        log = self.examples.parent / f"terminal-{len(list(self.examples.parent.glob('terminal-*')))}.log"
        log.touch()
        words = self.words(command)
        if words[0] in forks.PROGRAMS and "-P" not in words:
            process: Running = forks.start(words, log, log, self.directory, self.environment)
        else:
            process = background.start(words, log, self.directory, self.environment)
        self.running[command] = process, log
        if " worker" in command:
            wait_until(lambda: self.consumes() or process.poll() is not None, "the worker is up")
            assert process.poll() is None, log.read_text()

    def controlled(self) -> bool:
        """Return whether there is a worker: its queue for remote control goes with it."""
        return any(name.endswith(".pidbox") for name in self.vhost.names("queues"))

    def consumes(self) -> bool:
        """Return whether a worker is up: it consumes tasks once all its steps have started."""
        rows = self.vhost.broker.api("GET", f"/consumers/{self.vhost.name}")
        return any(not re.search(r"pidbox|celeryev|reply", row["queue"]["name"]) for row in rows)

    def prefetch_counts(self) -> dict[str, int]:
        """Return the prefetch counts of consumers of queues for tasks, by queue."""
        rows = self.vhost.broker.api("GET", f"/consumers/{self.vhost.name}")
        ours = ("celery", "amq.")  # celery@….pidbox, celeryev.…, celery-rabbit-delay.…
        return {r["queue"]["name"]: r["prefetch_count"] for r in rows if not r["queue"]["name"].startswith(ours)}

    def stop(self, command: str) -> None:
        if command in self.running:
            process, _ = self.running.pop(command)
            process.terminate()
            process.wait(60)
            wait_until(lambda: not self.controlled(), "the broker knows that the worker has gone")

    def close(self) -> None:
        for process, _ in self.running.values():
            background.kill(process)

    def terminals(self) -> str:
        """Return what all that runs has printed."""
        return "".join(path.read_text() for path in sorted(self.examples.parent.glob("terminal-*.log")))

    def sees(self, *texts: str, timeout: float = 60) -> None:
        for text in texts:
            wait_until(lambda text=text: text in self.terminals(), f"{text!r} is printed: {self.terminals()}", timeout)  # type: ignore[misc]

    def follow(
        self,
        page: str,
        beside: tuple[str, ...] = (),
        skip: tuple[str, ...] = (),
        before: Mapping[str, Callable[[], object]] | None = None,
        then: Mapping[str, Callable[[], object]] | None = None,
    ) -> None:
        """Type the commands of a page, one after the other, and look for the output that it shows.

        Workers, and commands in `beside`, go on beside the others. What begins as in `skip` is not typed. `before` and
        `then` have what is done before and after a command.
        """
        for command, documented in commands(page):
            if command.startswith((*SKIPPED, *skip)):
                continue
            if before and command in before:
                before[command]()
            if " worker" in command or command in beside:
                self.start(command)
            else:
                self.check(command, documented)
            if then and command in then:
                then[command]()

    def check(self, command: str, documented: list[str]) -> None:
        """Type a command; fail unless it shows what the page shows."""
        deadline = time.monotonic() + 60
        while True:
            try:
                output = self.run(command)
                assert shows(documented, output), f"{command!r} shows\n{output}\nand not\n" + "\n".join(documented)
                break
            except AssertionError:
                if not LOOKS.search(command) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        real = [one for one in re.findall(UUID, output) if one not in self.ids.values()]
        for one in re.findall(UUID, "\n".join(documented)):
            if one not in self.ids and real:
                self.ids[one] = real.pop(0)

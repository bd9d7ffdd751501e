"""Celery's and Kombu's integration suites and Celery's tests of beat, plain and with this package: `make upstream`.

    python -m tools.upstream                  both suites, of the installed Celery and Kombu
    python -m tools.upstream celery -k retry  one of them, with arguments for pytest

They come from the source distributions on the package index. Each side has a private RabbitMQ node and a private Redis
for its results. A test that ends differently is run again alone, on both sides; what still differs and is not in
`differences.json`, with a reason, is a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from tests.kit import background
from tests.kit.node import Node, free_port
from tests.kit.wait import wait_until

ROOT = Path(__file__).parents[2]
DIFFERENCES = Path(__file__).with_name("differences.json")
#: What pytest is given. Azure's storage is not to be had on one's own machine.
SUITES = {
    "celery": [
        "t/integration",
        "t/unit/app/test_beat.py",
        "--ignore=t/integration/test_backend.py",
        "-p",
        "celery.contrib.pytest",
    ],
    "kombu": ["t/integration/test_py_amqp.py"],
}
SIDES = {"plain": [], "with us": ["-p", "tools.upstream.with_us"]}


def main(arguments: Sequence[str]) -> None:
    names = [name for name in arguments[:1] if name in SUITES]
    redis_server()  # before both sides run at the same time, for it may install it
    with tempfile.TemporaryDirectory(prefix="celery-rabbit-delay-upstream-") as directory:
        suites = [Suite(name, fetch(name, Path(directory))) for name in names or SUITES]
        same = [suite.is_the_same(arguments[len(names) :]) for suite in suites]
    if not all(same):
        sys.exit(1)


@dataclass
class Suite:
    """The integration tests of one source distribution."""

    name: str
    directory: Path

    def is_the_same(self, arguments: Sequence[str]) -> bool:
        """Run it on both sides and print what differs. Returns whether that is nothing that lacks a reason."""
        outcomes = self.on_both_sides(arguments)
        for side, found in outcomes.items():
            counts = ", ".join(f"{amount} {outcome}" for outcome, amount in sorted(Counter(found.values()).items()))
            print(f"{self.name} {version(self.name)}, {side}: {counts}", flush=True)
        known = json.loads(DIFFERENCES.read_text())[self.name]
        reasons = {test: group["reason"] for group in known for test in group["tests"]}
        differing = different(outcomes)
        unexplained = differing - set(reasons)
        if unexplained:  # a busy machine is no difference, nor is what another test left behind
            functions = {test.partition("[")[0].rpartition(".")[2] for test in unexplained}
            again = self.on_both_sides([*arguments, "-k", " or ".join(functions)])
            unexplained &= different(again)
        for test in sorted(differing & set(reasons) | unexplained):
            told = reasons.get(test, "NO REASON IS KNOWN")
            print(f"  {test}: {' / '.join(found.get(test, 'missing') for found in outcomes.values())}: {told}")
        return not unexplained

    def on_both_sides(self, arguments: Sequence[str]) -> dict[str, dict[str, str]]:
        with ThreadPoolExecutor() as pool:
            return dict(zip(SIDES, pool.map(lambda side: self.run(side, arguments), SIDES), strict=True))

    def run(self, side: str, arguments: Sequence[str]) -> dict[str, str]:
        """Return how each test ended on one side."""
        report = self.directory / f"{side}.xml"
        log = self.directory / f"{side}.log"
        report.unlink(missing_ok=True)
        # Other tracebacks than native ones can end pytest 9 on Python 3.11 with an internal error.
        command = [sys.executable, "-m", "pytest", "-q", "--tb=native", "-p", "no:cacheprovider", *SIDES[side]]
        command += [*SUITES[self.name], f"--junitxml={report}", "-o", "junit_family=xunit1", *arguments]
        with Node() as node, redis() as backend, log.open("a") as output:
            environment = {
                **os.environ,
                "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
                "PYTHONPATH": str(ROOT),
                "TEST_BROKER": node.url("").replace("amqp://", "pyamqp://") + "/",
                "TEST_BACKEND": f"redis://127.0.0.1:{backend}",
                "REDIS_HOST": "127.0.0.1",
                "REDIS_PORT": str(backend),
                "RABBITMQ_HOST": "127.0.0.1",
                "RABBITMQ_5672_TCP": str(node.port),
            }
            done = subprocess.run(command, cwd=self.directory, env=environment, stdout=output, stderr=output)
        if done.returncode not in (0, 1):  # neither that all passed nor that some failed
            sys.exit(f"The tests of {self.name} did not run, {side}:\n{log.read_text()[-3000:]}")
        cases = ElementTree.parse(report).iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": outcome(case) for case in cases}


def fetch(name: str, directory: Path) -> Path:
    """Return a directory with the integration tests of a package, in the version that is installed."""
    release = f"{name}-{version(name)}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*command, "--dest", str(directory), f"{name}=={version(name)}"], check=True)
    with tarfile.open(directory / f"{release}.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    shutil.rmtree(directory / release / name)  # lest it be imported instead of the installed one
    if not (directory / release / SUITES[name][0]).exists():
        sys.exit(f"The source distribution of {name} {version(name)} has no {SUITES[name][0]}")
    return directory / release


@contextlib.contextmanager
def redis() -> Iterator[int]:
    """A private Redis that keeps nothing on the disk. Returns its port."""
    program = redis_server()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="celery-rabbit-delay-redis-") as directory:
        log = Path(directory) / "redis.log"
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        process = background.start(command, log, Path(directory), os.environ)
        try:
            wait_until(lambda: "eady to accept connections" in log.read_text(), "Redis is ready")
            yield port
        finally:
            background.kill(process)


def redis_server() -> str:
    """Return the path of a Redis server; root on Debian gets it installed."""
    if not shutil.which("redis-server") and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-yq", "--no-install-recommends", "redis-server"], check=True)
    found = shutil.which("redis-server")
    return found or sys.exit("Redis is missing. Install it with: sudo apt-get install redis-server")


def different(outcomes: dict[str, dict[str, str]]) -> set[str]:
    """Return the tests that did not end the same on both sides."""
    plain, ours = outcomes.values()
    return {test for test in plain.keys() | ours.keys() if plain.get(test) != ours.get(test)}


def outcome(case: ElementTree.Element) -> str:
    return next((tag for tag in ("error", "failure", "skipped") if case.find(tag) is not None), "passed")


if __name__ == "__main__":
    main(sys.argv[1:])

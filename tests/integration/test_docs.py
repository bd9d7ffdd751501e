"""Every documented snippet runs, and every picture is current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from testkit.broker import Vhost
from tools import diagrams

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
URL = "guest:guest@localhost//"
#: What is shown of a program in examples/ is run with it, by tests/acceptance/test_guides.py.
SNIPPET = re.compile(r"```python\n(?!# examples/)(.*?)```", re.DOTALL)


def snippets() -> list[tuple[str, str]]:
    return [
        (f"{path.name} {number}", code)
        for path in DOCUMENTS
        for number, code in enumerate(SNIPPET.findall(path.read_text()), start=1)
    ]


@pytest.mark.parametrize(("name", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_a_documented_snippet_runs_as_it_stands_but_for_the_broker(vhost: Vhost, name: str, code: str) -> None:
    assert URL in code
    # In a process of its own: Celery gives the tasks of one app to all others.
    program = code.replace(URL, vhost.url("").removeprefix("://"))
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "countdown" in code or "x-delay" in code:
        waiting = [queue for queue in vhost.names("queues") if ".delay." in queue and vhost.count(queue)]
        assert waiting  # the tasks of a batch may take more than one way


def commands() -> list[str]:
    """Lines after a prompt in the page on operations, in the order in which somebody may type them."""
    return re.findall(r"^\$ (.*)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)


def test_the_commands_of_the_page_on_operations_work_one_after_the_other(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    environment = {**os.environ, "CELERY_BROKER_URL": url}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    codes = []
    for command in commands():
        if command.startswith("rabbitmqctl "):
            vhost.broker.node.ctl(*shlex.split(command)[1:], "--vhost", vhost.name)
            continue
        done = subprocess.run(
            shlex.split(command.replace(f"amqp://{URL}", url)),
            cwd=ROOT / "examples" / "quickstart",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, command
        codes.append((command.split(" delay ")[-1].split(" --")[0], done.returncode))
    # Before it is created, something is missing.
    assert [code for code in codes if code[1]] == [("status", 3), ("celery-rabbit-delay", 3), ("plan", 3)]
    assert len(codes) > 10
    assert not [name for name in vhost.names("exchanges") if name.startswith("celery-rabbit-delay.")]


def test_the_readme_has_a_snippet() -> None:
    assert snippets()[0][0] == "README.md 1"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_pictures_are_drawn_from_the_topology_as_it_is(path: Path) -> None:
    assert diagrams.drawn(path.read_text()) == path.read_text(), "run `make diagrams`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_within_the_project_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target

"""`RABBITMQ=docker:3.13` runs that image, with an engine that only notes how it is called: no test needs a real one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit import background
from tests.kit.node import GET_RABBITMQ, Node

ROOT = Path(__file__).parents[2]

#: The releases with an image that hosted CI or docs/deployment.md names.
RELEASES = ("3.10", "3.13", "4.0", "4.1", "4.2", "4.3", "4.4")

ENGINE = """#!/bin/sh
[ "$1" != info ] || exit 0
[ "$HOME" = "{home}" ] || echo "not the home of whoever asked: $HOME" >>"{log}"
echo "$*" >>"{log}"
[ "$1" != exec ] || echo answered
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a docker on the PATH, and return the file with its calls."""
    log, program = tmp_path / "calls", tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(ENGINE.format(home=tmp_path, log=log))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CELERY_RABBIT_DELAY_CACHE", str(tmp_path / "cache"))
    return log


def server(name: str) -> Path:
    """Return the program that tools/get-rabbitmq gives for a name."""
    return Path(subprocess.run([GET_RABBITMQ, name], capture_output=True, text=True, check=True).stdout.strip())


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_runs_from_its_image_as_the_node_wants_it(release: str, engine: Path, tmp_path: Path) -> None:
    node = Node(server(f"docker:{release}"))
    try:
        subprocess.run([node.server], env=node.environment(), check=True)
        [run] = [call for call in engine.read_text().splitlines() if call.startswith("run ")]
        assert run.endswith(f"--entrypoint rabbitmq-server rabbitmq:{release}")
        assert f"--name {node.data.name} --network host" in run
        assert f"--volume {node.data}:{node.data} --workdir {node.data} --env HOME={node.data}" in run
        for variable in ("ERL_EPMD_PORT", "RABBITMQ_NODENAME", "RABBITMQ_NODE_PORT", "RABBITMQ_MNESIA_BASE"):
            assert f"--env {variable} " in run
    finally:
        node.remove()


def test_what_a_test_does_to_a_node_reaches_the_broker_in_its_container(engine: Path) -> None:
    node = Node(server("docker:3.13"))
    name = node.data.name
    try:
        node.process = background.start([str(node.server)], node.log, node.data, node.environment())
        assert node.process.wait(30) == 0
        engine.write_text("")
        assert node.ctl("eval", "a b.") == "answered\n"
        node.suspend(True)
        node.suspend(False)
        assert engine.read_text().splitlines() == [
            f"exec {name} rabbitmqctl --node {node.name} eval a b.",
            f"pause {name}",
            f"unpause {name}",
        ]
        engine.write_text("")
        subprocess.run([node.data / "kill"], check=True)
        assert engine.read_text().splitlines() == [f"unpause {name}", f"kill {name}", f"rm --force --volumes {name}"]
    finally:
        node.process = None
        node.remove()


def test_a_name_without_a_release_is_refused_with_those_that_there_are() -> None:
    refused = subprocess.run([GET_RABBITMQ, "4.1"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "choose 3.10, 4.0, 4.3, docker:TAG" in refused.stderr


def test_hosted_ci_runs_all_tests_on_each_of_them() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert sorted(set(re.findall(r"docker:([\d.]+)", workflow)), key=RELEASES.index) == list(RELEASES)

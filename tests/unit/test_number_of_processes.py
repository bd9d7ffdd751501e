"""As many processes of tests run as CPUs and memory are good for, whoever starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def processes(each: int, cpus: int, directory: Path) -> int:
    """Return how many run where there are so many CPUs."""
    getconf = directory / "getconf"
    getconf.write_text(f"#!/bin/sh\necho {cpus}\n")
    getconf.chmod(0o755)
    environment = {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}
    asked = subprocess.run([ROOT / "tools" / "processes", str(each)], env=environment, capture_output=True, check=True)
    return int(asked.stdout)


@pytest.mark.parametrize("cpus", [1, 2, 3])
def test_so_many_run_for_each_cpu(tmp_path: Path, cpus: int) -> None:
    assert processes(1, cpus, tmp_path) == cpus


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the available memory is not known")
def test_no_more_run_than_fit_into_the_memory(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 1 <= processes(1_000_000, 2, tmp_path) <= total / 300e6


def test_nobody_else_chooses_a_number() -> None:
    assert not re.search(r"pytest.* -n [^$]", (ROOT / "Makefile").read_text())
    assert not re.search(r'ARGS="[^"]*-n ', (ROOT / ".ci" / "run").read_text())

"""tox tests all documented versions, and every pair of them together."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: The columns of the table on the page on deployment, as tox's factors and tools/get-rabbitmq write them.
ROW = re.compile(r"^\| Python \| Celery \| Kombu \| RabbitMQ \|.*\n\|[-|]+\n\| (.*?) \| (.*?) \| .*? \| (.*?) \|", re.M)


def combinations() -> set[tuple[str, str, str, str]]:
    """Return (Python, Celery, oldest or newest Kombu, RabbitMQ) of each of tox's environments."""
    command = [sys.executable, "-m", "tox", "list", "--no-desc", "--conf", str(ROOT / "tox.ini")]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(3\.\d+)-celery(\d)(\d)-kombu(\w+)-rabbitmq(\d)(\d+)$", listed, re.MULTILINE)
    return {(python, f"{c}.{d}", kombu, f"{r}.{s}") for python, c, d, kombu, r, s in found}


def test_the_page_on_deployment_and_pyproject_name_what_tox_tests() -> None:
    tested = combinations()
    pythons, celeries, _, rabbitmqs = (sorted(set(column), key=version) for column in zip(*tested, strict=True))
    [columns] = ROW.findall((ROOT / "docs" / "deployment.md").read_text())
    assert [cell.split(", ") for cell in columns] == [pythons, celeries, rabbitmqs]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (3\.\d+)", project) == pythons
    major, minor = map(int, celeries[-1].split("."))
    assert f'"celery>={celeries[0]},<{major}.{minor + 1}"' in project
    named = re.findall(r"^ {4}(\d\.\d+)\) of_debian", (ROOT / "tools" / "get-rabbitmq").read_text(), re.MULTILINE)
    assert named == rabbitmqs
    installable = re.findall(r"^ {4}(3\.\d+)\)", (ROOT / "tools" / "get-python").read_text(), re.MULTILINE)
    assert installable
    assert set(installable) <= set(pythons)


def test_tox_combines_every_two_versions() -> None:
    tested = combinations()
    for one, other in itertools.combinations(range(4), 2):
        pairs = {(found[one], found[other]) for found in tested}
        assert pairs == set(itertools.product(*({found[column] for found in tested} for column in (one, other))))


def version(name: str) -> list[int]:
    return [int(number) if number.isdigit() else 0 for number in name.split(".")]


def test_the_main_job_of_the_matrix_is_there() -> None:
    [named] = re.findall(r"^\[main-job\]\ntests =\n((?: +\S+\n)+)", (ROOT / "tox.ini").read_text(), re.MULTILINE)
    assert [path for path in named.split() if not (ROOT / path).exists()] == []


def test_tox_has_all_that_tests_read_but_the_package_which_is_installed() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("tox has the tests, and not the checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    copied = re.findall(r"\{tox_root\}/(\S+)", (ROOT / "tox.ini").read_text())
    left = {name.split("/")[0] for name in tracked} - set(copied)
    assert left == {"celery_rabbit_delay", ".gitignore", ".pre-commit-config.yaml", ".readthedocs.yaml", "findings"}

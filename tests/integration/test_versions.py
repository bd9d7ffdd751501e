"""tox tests all documented versions, and every pair of them together."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def version(name: str) -> list[int]:
    return [int(number) if number.isdigit() else 0 for number in name.split(".")]

"""What we say we support is what tox tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_readme_pyproject_and_tox_name_the_same_versions() -> None:
    readme, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    tox = (ROOT / "tox.ini").read_text()
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    [(oldest, newest)] = re.findall(r'"celery>=(5\.\d),<(5\.\d)"', project)
    celeries = [f"5.{minor}" for minor in range(int(oldest[2:]), int(newest[2:]))]
    assert f"Python {pythons[0]} to {pythons[-1]}, Celery {celeries[0]} to {celeries[-1]}" in readme
    envlist = f"3.{{{','.join(p[2:] for p in pythons)}}}-celery{{{','.join(c.replace('.', '') for c in celeries)}}}"
    assert envlist in tox

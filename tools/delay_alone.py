"""Shows that the delay stands alone: `make delay-alone`.

In a copy without the schedule, periodic tasks, the page and their commands, and without the tests that import any of
these, the other tests pass.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What is deleted: rooms, and the modules of their commands.
COMMANDS = ("page", "periodic", "tasks", "web")
GONE = ("schedule", "periodic", "web", "unreadable.py", *(f"cli/{name}.py" for name in COMMANDS))

#: Tests of the whole, though they import nothing of what is gone.
OF_THE_WHOLE = (
    "tests/acceptance/test_beat.py",
    "tests/acceptance/test_embedded_worker.py",
    "tests/acceptance/test_mounted.py",
    "tests/integration/test_limits.py::test_verify_names_a_policy",
    "tests/unit/test_guides.py",
    "tests/unit/test_packaging.py",
    "tests/unit/test_upstream_suites.py",
)

#: Public names of the package that are in what is deleted.
NAMES = re.compile(
    r"\b(cancel|find|page|pause|paused|reschedule|restore|resume|scheduled|Scheduled|EntryConflict|InvalidEntry|"
    r"DifferentMessages|NotWaiting|StreamUnavailable|TooLate)\b"
)


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines():
            if (ROOT / name).is_file() and not name.startswith(("docs/", "findings/", "evidence/")):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        (copy / "docs").symlink_to(ROOT / "docs")
        delete(copy)
        command = [
            sys.executable,
            "-m",
            "pytest",
            *(f"--deselect={name}" for name in OF_THE_WHOLE),
            *arguments,
            "tests",
        ]
        return subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)}).returncode


def delete(copy: Path) -> None:
    """Delete the rooms, their commands, and each test that imports something that is gone."""
    package = copy / "celery_rabbit_delay"
    for name in GONE:
        shutil.rmtree(package / name) if (package / name).is_dir() else (package / name).unlink()
    groups = package / "cli" / "groups.py"
    text = re.sub(rf"^ +({'|'.join(COMMANDS)})\.\w+,\n", "", groups.read_text(), flags=re.MULTILINE)
    groups.write_text(re.sub(rf", ({'|'.join(COMMANDS)})(?=[,\n])", "", text))
    others = [*(copy / "tests").rglob("*.py"), *(copy / "tools").rglob("*.py")]
    while gone := [one for one in others if one.is_file() and any(lacks(copy, name) for name in imported(one))]:
        for path in gone:
            path.unlink()


def imported(path: Path) -> Iterator[str]:
    """Yield the names of all modules and what is imported from them, and the public functions that are used."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            module = f"tests.{path.parent.name}.{node.module}" if node.level else node.module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def lacks(copy: Path, name: str) -> bool:
    """Return whether a module of the copy, or something in it, is gone."""
    top, *rest = name.split(".")
    if top not in ("celery_rabbit_delay", "tests", "tools", "evidence") or not rest:
        return False
    if top == "celery_rabbit_delay" and (rest[0] in GONE or (len(rest) == 1 and NAMES.fullmatch(rest[0]))):
        return True
    path, package = copy.joinpath(top, *rest), copy.joinpath(top, *rest[:-1])
    if path.is_dir() or path.with_suffix(".py").is_file() or package.with_suffix(".py").is_file():
        return False
    return top != "celery_rabbit_delay" or not package.is_dir() or rest[-1] not in (package / "__init__.py").read_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

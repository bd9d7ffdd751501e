"""Pages quote examples exactly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs" / "how-to").glob("*.md")), ROOT / "docs" / "workers.md"]
SHOWN = [
    (page.stem, name, code)
    for page in PAGES
    for name, code in re.findall(r"```python\n# examples/(\S+)\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "name", "code"), SHOWN, ids=[f"{page} {name}" for page, name, _ in SHOWN])
def test_a_page_shows_an_example_as_it_is(page: str, name: str, code: str) -> None:
    assert code.rstrip() in (ROOT / "examples" / name).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_all_python_on_a_page_is_from_an_example(page: Path) -> None:
    assert not re.findall(r"```python\n(?!# examples/)", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_somebody_follows_every_page_with_commands(page: Path) -> None:
    if page.stem == "index" or "\n$ " not in page.read_text():
        return
    name = str(page.relative_to(ROOT / "docs"))
    assert any(f'"{name}"' in path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_how_to_that_a_reader_follows_is_in_the_list() -> None:
    listed = re.findall(r"\]\(([a-z-]+)\.md\)", (ROOT / "docs" / "how-to" / "index.md").read_text())
    followed = re.findall(r'"how-to/([a-z-]+)\.md"', (ROOT / "tests" / "acceptance" / "test_guides.py").read_text())
    assert set(listed) >= set(followed)
    assert len(set(followed)) > 10

"""What a page shows of an example is what stands in it."""

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


def test_every_how_to_is_in_the_list_and_in_the_contents_of_the_site() -> None:
    text = (ROOT / "docs" / "how-to" / "index.md").read_text()
    there = {path.stem for path in (ROOT / "docs" / "how-to").glob("*.md")} - {"index"}
    listed = re.findall(r"\]\(([a-z-]+)\.md\)", text)
    [contents] = re.findall(r"```{toctree}\n:hidden:\n\n(.*?)\n```", text, re.DOTALL)
    assert sorted(listed) == sorted(there)
    assert contents.split() == listed

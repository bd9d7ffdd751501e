"""The commands that the pages in docs/ show."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str, section: str | None = None) -> list[tuple[str, list[str]]]:
    """Return what stands after the prompts of a page or of one of its sections, each with the lines of output below."""
    text = (DOCS / page).read_text()
    if section is not None:
        [text] = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            if line.lstrip().startswith("$ "):
                found.append((line.lstrip()[2:], []))
            elif line.strip() and found:
                found[-1][1].append(line)
    return found

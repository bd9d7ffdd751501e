"""Pages of the docs whose tables are drawn from results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def markdown(head: list[str], lines: Iterable[list[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def machine(done: str, about: list[dict[str, Any]]) -> str:
    """Return a sentence, when and with what something was `done`, from what `evidence.meter.about` said each time."""

    def each(name: str) -> str:
        return listed(dict.fromkeys(one[name] for one in about))

    first, last = min(one["date"] for one in about), max(one["date"] for one in about)
    when = f"on {last}" if first == last else f"from {first} to {last}"
    cpus = " or ".join(map(str, sorted({one["cpus"] for one in about})))
    commits = dict.fromkeys(one["commit"] for one in about if "commit" in one)
    at = f", at commit {listed(commits)}" if commits else ""
    return (
        f"{done} {when} on RabbitMQ {each('rabbitmq')}, Celery {each('celery')}, Kombu {each('kombu')}, py-amqp "
        f"{each('amqp')} and Python {each('python')}, on a machine with {cpus} CPUs{at}."
    )


def listed(items: Iterable[object]) -> str:
    """Return items as an enumeration: `a, b and c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def fill(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return the text with what is between each `<!-- results: NAME -->` and the next `<!-- end -->` drawn anew."""

    def section(match: re.Match[str]) -> str:
        return f"<!-- results: {match[1]} -->\n{sections[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- results: (\w+) -->.*?<!-- end -->", section, text, flags=re.DOTALL)


def said(path: Path) -> str:
    """Return what a page says, in one line and without emphasis."""
    return " ".join(path.read_text().replace("*", "").split())


def drawn(text: str) -> set[str]:
    """Return the names that are to be filled in."""
    return set(re.findall(r"<!-- results: (\w+) -->", text))

"""Pages of the docs whose tables are drawn from results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def markdown(head: list[str], lines: Iterable[list[str]]) -> str:
    """Return a table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def machine(done: str, about: list[dict[str, Any]]) -> str:
    """Return a sentence, when and with what something was `done`, for results by RabbitMQ (`testkit.meter.about`)."""
    brokers = " and ".join(one["rabbitmq"] for one in about)
    last = about[-1]
    return (
        f"{done} on {last['date']} on RabbitMQ {brokers}, Celery {last['celery']}, Kombu {last['kombu']}, py-amqp "
        f"{last['amqp']} and Python {last['python']}, on one virtual machine of {last['cpus']} shared CPUs."
    )


def fill(text: str, sections: Mapping[str, Callable[[], str]]) -> str:
    """Return the text with what is between each `<!-- results: NAME -->` and the next `<!-- end -->` drawn anew."""

    def section(match: re.Match[str]) -> str:
        return f"<!-- results: {match[1]} -->\n{sections[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- results: (\w+) -->.*?<!-- end -->", section, text, flags=re.DOTALL)


def drawn(text: str) -> set[str]:
    """Return the names that are to be filled in."""
    return set(re.findall(r"<!-- results: (\w+) -->", text))

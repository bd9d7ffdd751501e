"""The page for those who run RabbitMQ has the numbers and the permissions of the rest."""

from __future__ import annotations

import re
from pathlib import Path

from celery_rabbit_delay import Options
from celery_rabbit_delay.core import streams
from tests.kit.commands import documented_permissions

PAGE = (Path(__file__).parents[2] / "docs" / "for-operators.md").read_text()
CASCADE = Options().cascade


def number(text: str) -> int:
    """Return the whole number in the line that has a text, before the next column."""
    [line] = [line for line in PAGE.splitlines() if text in line]
    found = re.search(r"\| (?:up to )?([\d,]+) \|", line)
    assert found, line
    return int(found[1].replace(",", ""))


def test_the_parts_of_a_cascade_are_as_many_as_the_page_says() -> None:
    queues = list(CASCADE.queues())
    assert number("levels: queues that each") == len(CASCADE.levels)
    assert number("for tasks whose queue was deleted") == len(queues) - len(CASCADE.levels)
    assert number("exchanges: one for each level") == len(list(CASCADE.exchanges()))
    assert number("….journal.…") == len(streams.all_streams(CASCADE))
    assert number("one queue, and delays of a minute") == len(queues) + 3
    assert number("ten queues, each with six delays") == len(queues) + 10 * 7
    assert number("a thousand queues") == len(queues) + 1000
    assert len(Options().outboxes) + 1 == 32
    assert "at most 32" in PAGE


def test_the_permissions_are_those_of_the_table() -> None:
    granted = re.findall(r"rabbitmqctl set_permissions (\w+) '(.*)' '(.*)' '(.*)'", PAGE)
    roles = {"web": 'publisher, `declare="passive"`', "worker": 'worker, `declare="passive"`'}
    assert {who: tuple(documented_permissions(role).values()) for who, role in roles.items()} == {
        who: tuple(patterns) for who, *patterns in granted
    }

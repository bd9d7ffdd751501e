"""The page for those who run RabbitMQ has the numbers and the permissions of the rest."""

from __future__ import annotations

import re
from pathlib import Path

from celery_rabbit_delay import Options
from celery_rabbit_delay.core import streams
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.topology import Topology
from tests.kit.commands import documented_permissions, granted_by

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
    said = " ".join(PAGE.split())
    assert f"of five minutes has {len(queues) + 3} queues" in said
    assert f"ten queues and six delays each {len(queues) + 10 * 7}," in said
    assert f"`outboxes=()` {len(queues) + 1000:,}." in said
    assert len(Options().outboxes) + 1 == 32
    assert "at most 32" in PAGE


def test_the_whole_lines_grant_what_the_table_says_of_the_cascade_and_no_more() -> None:
    """A worker publishes as well: its tasks retry. tests/acceptance/test_permissions.py pastes the lines."""
    granted = granted_by(PAGE)
    assert granted.keys() == {"web", "worker"}
    publisher, worker = (documented_permissions(f'{who}, `declare="passive"`') for who in ("publisher", "worker"))
    destination = Destination("", ("celery",))
    topology = Topology.of([CASCADE], [destination], streams.all_streams(CASCADE), Options().outbox_ticks)
    for name in (*topology.exchanges, *topology.queues):
        for what in ("configure", "write", "read"):
            by_table = {
                "web": bool(re.search(publisher[what], name)),
                "worker": any(re.search(role[what], name) for role in (publisher, worker)),
            }
            assert {who: bool(re.search(granted[who][what], name)) for who in granted} == by_table, (what, name)

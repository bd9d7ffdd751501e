"""The page for those who run RabbitMQ has the numbers and the permissions of the rest."""

from __future__ import annotations

import re
from pathlib import Path

from celery import Celery

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.amqp.queue_destinations import destinations_of
from celery_rabbit_delay.delay.app.apps import queues_of
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.levels import MOST_COMBINED
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.core import streams
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
    assert number("for tasks whose outbox was deleted") == len(queues) - len(CASCADE.levels)
    exchanges = len(list(CASCADE.exchanges()))
    assert number("exchanges: one for each level") == exchanges
    bindings = len(Topology.of([CASCADE], (), ()).bindings)
    assert f"with {bindings} bindings | {exchanges} | {exchanges + 1} |" in PAGE, "that of the streams"
    assert number("….journal.…") == len(streams.all_streams(CASCADE))
    said = " ".join(PAGE.split())
    [queue] = queues_of(Celery("shop", set_as_current=False))
    assert list(destinations_of(queue, with_namesake=False)) == [Destination("", "celery")], "one destination for each"
    each = 1 + MOST_COMBINED  # of which five minutes is one
    assert f"of five minutes has up to {len(queues) + each + 1} queues" in said
    assert f"ten queues and six more delays each {len(queues) + 10 * (each + 6)}," in said
    assert f"`outboxes=()` {len(queues) + 1000:,}." in said
    assert f"at most {len(Options().outboxes) + 1}" in PAGE


def test_the_whole_lines_grant_what_the_table_says_of_the_cascade_and_no_more() -> None:
    """A worker and a beat publish as well. tests/acceptance/test_permissions.py pastes the lines."""
    granted = granted_by(PAGE)
    publisher = 'publisher, `declare="passive"`'
    roles = {
        "web": (publisher,),
        "sender": (publisher,),
        "worker": ('worker, `declare="passive"`', publisher),
        "beat": ("beat", publisher),
        "operator": ("operator",),
        "web_auto": ("publisher",),
        "worker_auto": ("worker", "publisher"),
    }
    assert granted.keys() == {*roles, "watcher"}
    destination = Destination("", "celery")
    topology = Topology.of([CASCADE], [destination], streams.all_streams(CASCADE), Options().outbox_ticks)
    beat = "celery-rabbit-delay.beat.shop"
    for name in (*topology.exchanges, *topology.queues, beat):
        for what in ("configure", "write", "read"):
            for user, rows in roles.items():
                by_table = any(re.search(documented_permissions(row)[what], name) for row in rows)
                assert bool(re.search(granted[user][what], name)) == by_table, (user, what, name)


def test_who_only_watches_can_neither_publish_nor_take_nor_delete_what_waits() -> None:
    watcher = granted_by(PAGE)["watcher"]
    topology = Topology.of([CASCADE], [Destination("", "celery")], streams.all_streams(CASCADE), Options().outbox_ticks)
    recorded = {stream.name for stream in streams.all_streams(CASCADE)}
    assert not [name for name in (*topology.exchanges, *topology.queues) if re.search(watcher["configure"], name)]
    assert not [name for name in (*topology.exchanges, "", "amq.default") if re.search(watcher["write"], name)]
    assert {name for name in topology.queues if re.search(watcher["read"], name)} == recorded
    counted = {name for name in topology.queues if ".delay." in name or ".out." in name or name == CASCADE.orphans}
    assert counted == {name for name in topology.queues if re.search(watcher["write"], name)}

"""The diagrams show the topology as it is, and what was measured; they need nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Queue
from celery_rabbit_delay.operate.addresses import outbox_of
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.core.streams import all_streams
from tests.kit.broker_model import BrokerModel
from tools import diagrams

DOCS = Path(__file__).parents[2] / "docs"
DIAGRAMS = sorted((DOCS / "diagrams").iterdir())
OPTIONS = Options()
CASCADE = OPTIONS.cascade
QUEUE = Destination("", "celery")


def texts(name: str) -> list[str]:
    """Return what a diagram says, from its first line to its last, below the title."""
    return re.findall(r"<text [^>]*>(.*?)</text>", (DOCS / "diagrams" / name).read_text())[1:]


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.name)
def test_a_diagram_is_on_a_page_and_can_be_read_on_dark_ones_without_a_font_from_elsewhere(path: Path) -> None:
    assert any(f"diagrams/{path.name}" in page.read_text() for page in DOCS.rglob("*.md"))
    drawn = path.read_text()
    assert "prefers-color-scheme: dark" in drawn
    assert '<rect class="page"' in drawn
    assert '<text class="title"' in drawn
    assert not re.findall(r"url\((?!#)|@import|href", drawn)


def hops(seconds: int) -> list[str]:
    """Return what is to be said of the queues that a task for `celery` passes, as the bindings lead it."""
    route = OPTIONS.route(CASCADE, OPTIONS.ticks(seconds * 1_000_000))
    topology = Topology.of([CASCADE], [QUEUE], outboxes=[route.outbox])
    model = BrokerModel(CASCADE)
    model.queues |= {**topology.queues, "celery": Queue("celery", {})}
    model.bind(topology.bindings)
    exchange, keys = CASCADE.entry(route, QUEUE)
    [(_, queue)], passed = model.publish(exchange, *keys)
    said = [f"due in {seconds} s: {len(passed)} hop{'s'[: len(passed) - 1]}", "app"]
    for name in passed:
        said += ["outbox" if outbox_of(CASCADE, name) else "level", f"waits {topology.queues[name].seconds:g} s"]
    return [*said, queue, "your queue"]


def test_the_queues_that_a_task_passes_are_those_to_which_the_bindings_lead_it() -> None:
    assert texts("path.svg") == hops(60) + hops(70)


def test_what_appears_on_the_broker_is_as_much_as_the_topology_has() -> None:
    said = texts("broker.svg")
    longest = max(level.ttl for level in CASCADE.levels) / 86_400_000
    exchanges = len(Topology.of([CASCADE], []).exchanges)
    assert f"{len(CASCADE.levels)} levels" in said
    assert f"1/8 s, 1/4 s … {longest:.0f} days" in said
    assert f"1 to {1 + len(OPTIONS.outboxes)} outboxes" in said
    assert f"up to {len(all_streams(CASCADE))} streams" in said
    assert f"All names begin with {CASCADE.root}. · There are {exchanges} exchanges; two are shown" in said


def test_the_bars_of_the_brokers_cpu_are_drawn_from_the_results() -> None:
    picture = diagrams.PICTURE.read_text()
    assert picture == diagrams.drawn(picture), "run `make diagrams`"
    assert diagrams.bars() in picture

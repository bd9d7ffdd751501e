"""The bindings that `verify` takes for those of somebody else, and those that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.topology import Binding
from celery_rabbit_delay.operate.addresses import Outbox, outbox_of
from celery_rabbit_delay.operate.verify import unexpected

CASCADE = Options().cascade
DESTINATIONS = [Destination("", "q"), Destination("", "p.q"), Destination("orders"), Destination("orders", "new")]
MINUTE = 480  # ticks


def ours(destination: Destination) -> Iterator[Binding]:
    for ticks in (0, 1, MINUTE):
        yield from CASCADE.outbox_bindings(destination, ticks)


@pytest.mark.parametrize("destination", DESTINATIONS, ids=str)
def test_the_bindings_of_any_outbox_are_expected(destination: Destination) -> None:
    assert unexpected(ours(destination), [CASCADE]) == []


@pytest.mark.parametrize(
    ("source", "queue", "key"),
    [
        (CASCADE.done, f"{CASCADE.root}.out.60s.+p", "@.60s.+q"),  # that of another destination
        (CASCADE.done, f"{CASCADE.root}.out.60s.+q", "@.30s.+q"),  # late
        (CASCADE.outbox_ingest, f"{CASCADE.root}.out.+q", "@.60s.+q"),  # early
        (CASCADE.outbox_ingest, "q", "@.+q"),
        (CASCADE.outbox_ingest, f"{CASCADE.root}.out.7ms.+q", "@.7ms.+q"),  # no whole number of ticks
        (CASCADE.outbox_ingest, "mine", "my key"),
        (CASCADE.behind_ingest, "mine", "#"),
    ],
)
def test_any_other_binding_is_unexpected(source: str, queue: str, key: str) -> None:
    binding = Binding(source, queue, "queue", key)
    assert unexpected([binding], [CASCADE]) == [binding]


@pytest.mark.parametrize("ticks", [0, 1, MINUTE, 12345])
def test_an_outbox_is_known_by_its_name(ticks: int) -> None:
    for destination in DESTINATIONS:
        name = CASCADE.outbox_name(destination, ticks)
        assert outbox_of(CASCADE, name) == Outbox(name, ticks, destination)


@pytest.mark.parametrize("name", ["out.7ms.+q", "out.short-lived", "out.mine", "orphans"])
def test_other_queues_are_no_outboxes(name: str) -> None:
    assert outbox_of(CASCADE, f"{CASCADE.root}.{name}") is None
    assert outbox_of(replace(CASCADE, prefix="other"), CASCADE.outbox_name(DESTINATIONS[0])) is None

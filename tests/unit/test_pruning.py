"""The outboxes that `setup --prune` takes for idle, from rows of the management API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.operate import pruning

CASCADE = Options().cascade
QUEUE, EXCHANGE = Destination("", ("q",)), Destination("orders")
EMPTY: dict[str, Any] = {"messages": 0, "messages_details": {"avg": 0.0}}
HOUR, MINUTE = 28_800, 480  # ticks


def idle(destination: Destination, ticks: int, rows: dict[str, Any], known: bool = True, **row: Any) -> bool:
    name = CASCADE.outbox_name(destination, ticks)
    found = {name: {**EMPTY, **row}, **rows}
    management: Any = SimpleNamespace(histories=lambda: found, has_history=lambda: known)
    return pruning.idle_outboxes(CASCADE, management) == {name}


def rate(what: str, value: float) -> dict[str, Any]:
    return {"message_stats": {f"{what}_details": {"avg_rate": value}}}


@pytest.mark.parametrize("destination", [QUEUE, EXCHANGE])
def test_an_outbox_that_has_held_nothing_in_the_last_hour_is_idle(destination: Destination) -> None:
    assert idle(destination, HOUR, {})
    assert idle(destination, HOUR, {}, **rate("publish", 0.0))
    assert not idle(destination, HOUR, {}, messages=1)
    assert not idle(destination, HOUR, {}, messages_details={"avg": 0.016})  # a message that came from a level
    assert not idle(destination, HOUR, {}, messages_details={})  # the node keeps no history
    assert not idle(destination, HOUR, {}, **rate("publish", 0.0003))
    assert not idle(destination, HOUR, {}, known=False)  # the node has just started


def test_what_passes_too_fast_to_be_counted_shows_in_the_queue_that_it_leads_to() -> None:
    assert idle(QUEUE, MINUTE, {"q": EMPTY})
    assert not idle(QUEUE, MINUTE, {"q": {**EMPTY, **rate("deliver_get", 0.0003)}})
    assert not idle(QUEUE, MINUTE, {"q": {**EMPTY, "messages": 1}})
    assert not idle(QUEUE, MINUTE, {"q": {**EMPTY, "messages_details": {"avg": 0.5}}})
    assert not idle(QUEUE, MINUTE, {})
    assert not idle(EXCHANGE, MINUTE, {"q": EMPTY})


def test_the_outbox_without_a_delay_is_never_idle() -> None:
    assert not idle(QUEUE, 0, {"q": EMPTY})

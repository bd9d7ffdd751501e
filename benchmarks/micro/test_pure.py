"""The pure code that every delayed message passes through. `make bench` runs this; `make test` does not."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_rabbit_delay import Options, eta, message, routing_key
from celery_rabbit_delay.message import Delivery
from celery_rabbit_delay.routing_key import Destination

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
QUEUE = Destination("", ("celery",))
HEADERS: dict[str, Any] = {
    "task": "shop.ask_for_review",
    "id": "5a4d6f0c-6c0e-4a0e-9f0a-7a8b9c0d1e2f",
    "eta": (NOW + timedelta(seconds=90)).isoformat(),
    "expires": None,
    "retries": 0,
    "argsrepr": "(42,)",
    "kwargsrepr": "{}",
    "origin": "gen1@localhost",
}


@pytest.mark.parametrize("ticks", [1, 8 * 90, (1 << 31) - 1])
def test_encode(benchmark: Any, ticks: int) -> None:
    assert benchmark(routing_key.encode, ticks).startswith("@.^")


@pytest.mark.parametrize("seconds", [1, 90, 86_400 * 30])
def test_ticks(benchmark: Any, seconds: int) -> None:
    assert benchmark(Options().ticks, seconds * 1_000_000) >= seconds * 8


def test_parse_eta(benchmark: Any) -> None:
    assert benchmark(eta.parse_eta, HEADERS["eta"]) == NOW + timedelta(seconds=90)


def test_delay_of(benchmark: Any) -> None:
    assert benchmark(message.delay_of, HEADERS, NOW, timezone.utc)[0] == 90_000_000


def test_divert(benchmark: Any) -> None:
    diverted = benchmark(message.divert, HEADERS, "celery-rabbit-delay", "", "celery", NOW)
    assert diverted["CC"] == ["celery"]


def test_restore(benchmark: Any) -> None:
    prefix = "celery-rabbit-delay"
    headers = message.addressed(message.divert(HEADERS, prefix, "", "celery", NOW), QUEUE)
    death = {"queue": f"{prefix}.delay.1000", "exchange": f"{prefix}.ingest", "reason": "expired", "count": 1}
    headers |= {"x-death": [death], "x-first-death-queue": death["queue"], "x-last-death-queue": death["queue"]}
    delivery = Delivery(f"{prefix}.delay.1000.done", "@.^3", headers)
    assert benchmark(message.restore, delivery) == Delivery("", "celery", HEADERS)

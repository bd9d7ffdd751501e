"""The pure code that every delayed message passes through. `make bench` runs this; `make test` does not."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.core import due, routing_key
from celery_rabbit_delay.core import headers as headers_
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.headers import Delivery
from celery_rabbit_delay.core.unwrap import unwrap

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


@pytest.mark.parametrize("ticks", [1, 8 * 90, (1 << 28) - 1])
def test_key(benchmark: Any, ticks: int) -> None:
    route = Options().cascade.route(ticks, 0)
    assert benchmark(routing_key.key, route.levels).startswith("@.")


def test_entry(benchmark: Any) -> None:
    cascade = Options().cascade
    assert benchmark(cascade.entry, cascade.route(8 * 90, 0), QUEUE)[0] == cascade.ingest


@pytest.mark.parametrize("seconds", [1, 90, 86_400 * 30])
def test_route(benchmark: Any, seconds: int) -> None:
    options = Options()
    route = benchmark(options.route, options.cascade, seconds * 8)
    assert sum(level.ticks for level in route.levels) + route.outbox >= seconds * 8


def test_parse_eta(benchmark: Any) -> None:
    assert benchmark(due.parse_eta, HEADERS["eta"]) == NOW + timedelta(seconds=90)


def test_delay_of(benchmark: Any) -> None:
    assert benchmark(headers_.delay_of, HEADERS, NOW, timezone.utc)[0] == 90_000_000


def test_wrap(benchmark: Any) -> None:
    wrapped = benchmark(headers_.wrap, HEADERS, "celery-rabbit-delay", "", "celery", NOW)
    assert wrapped["CC"] == ["celery"]


def test_unwrap(benchmark: Any) -> None:
    prefix = "celery-rabbit-delay"
    addresses = (QUEUE.outbox_address(), QUEUE.address)
    headers = headers_.addressed(headers_.wrap(HEADERS, prefix, "", "celery", NOW), addresses)
    death = {"queue": f"{prefix}.delay.1000", "exchange": f"{prefix}.ingest", "reason": "expired", "count": 1}
    headers |= {"x-death": [death], "x-first-death-queue": death["queue"], "x-last-death-queue": death["queue"]}
    delivery = Delivery(f"{prefix}.delay.1000.done", "@.^3", headers)
    assert benchmark(unwrap, delivery) == Delivery("", "celery", HEADERS)

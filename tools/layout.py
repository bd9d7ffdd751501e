"""Writes tests/unit/layout.json: a small cascade as it stands on a broker, to see each change of the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from amqp import Message

from celery_rabbit_delay import upstream
from celery_rabbit_delay.delay.core import headers
from celery_rabbit_delay.delay.core.destination import Destination
from celery_rabbit_delay.delay.core.names import LAYOUT
from celery_rabbit_delay.delay.core.topology import Cascade
from celery_rabbit_delay.operate.all_parts import Topology
from celery_rabbit_delay.schedule.core import changes, journal, streams
from celery_rabbit_delay.schedule.core.changes import Pause

PATH = Path(__file__).parents[1] / "tests" / "unit" / "layout.json"

QUORUM = Cascade("shop", timedelta(milliseconds=125), powers=3)
BY_TIME = replace(QUORUM, by_time=True)
CASCADES = {
    "quorum": QUORUM,
    "delivery times": BY_TIME,
}
MINUTE = 480  # ticks: the delay of an outbox
DESTINATIONS = [
    Destination("", "mail"),
    Destination("", "amq.gen-reply"),
    Destination("orders"),
    Destination("orders", "new"),
]


def parts(topology: Topology) -> dict[str, Any]:
    """Return all that is declared, one line for each part."""
    return {
        "exchanges": [" ".join([e.type, e.name, *arguments(e.arguments)]) for e in topology.exchanges.values()],
        "queues": [" ".join([q.name, *arguments(q.arguments)]) for q in topology.queues.values()],
        "bindings": [
            f"{b.source} -> {b.destination_type} {b.destination} ({b.routing_key})" for b in topology.bindings
        ],
    }


def message() -> dict[str, Any]:
    """Return what messages carry that are sent to "orders" with the key "new".

    One with a delay of five ticks, one of five ticks and an outbox of 60 s, one of this outbox alone, and one that
    RabbitMQ holds.
    """
    due = datetime(2030, 1, 1, tzinfo=timezone.utc)
    wrapped = headers.wrap({"task": "shop.review"}, QUORUM.root, "orders", "new", due)
    found = {}
    for name, ticks, outbox in (("five ticks", 5, 0), ("five ticks and 60 s", 5, MINUTE), ("60 s", 0, MINUTE)):
        exchange, (key, *others) = QUORUM.entry(QUORUM.route(ticks, outbox), Destination("orders"))
        found[name] = {"exchange": exchange, "routing key": key, "headers": {**wrapped, "CC": [*others, "new"]}}
    exchange, (key,) = BY_TIME.entry(BY_TIME.route(0, 0), Destination("orders", "new"))
    held = {**wrapped, headers.X_DELIVERY_TIME: headers.milliseconds(due)}
    return found | {"delivery time": {"exchange": exchange, "routing key": key, "headers": held}}


def stored() -> dict[str, str]:
    """Return what is in the streams, a message of each kind, in hexadecimal digits."""
    properties, _ = upstream.serialize(
        Message(b"", content_type="text/plain", application_headers={"id": "7", "n": [1]})
    )
    record = journal.Record(due=1, number=2, id="7", properties=properties, body=b"body")
    by_id, by_text = changes.cancelled(["00000000-0000-4000-8000-000000000007", "seven"])
    messages = {
        "record": journal.pack_records([record, record]),
        "cancelled ids": by_id,
        "cancelled ids that are no UUIDs": by_text,
        "cancelled stamps": changes.cancelled_stamps({"shop": ["1", "2"]}),
        "void": changes.void(2, due=1),
        "pause": changes.pause(Pause("mail", 5)),
        "restored": next(changes.restored(["seven"])),
    }
    return {kind: message.hex(" ", 4) for kind, message in messages.items()}


def arguments(table: Any) -> Iterator[str]:
    return (f"{name}={value}" for name, value in table.items())


def dump() -> dict[str, Any]:
    """Return the layout of this code."""
    return {"layout": LAYOUT, "message": message(), "stored": stored()} | {
        name: {"ingest": cascade.ingest, "marker": cascade.marker}
        | parts(Topology.of([cascade], DESTINATIONS, streams.all_streams(cascade), () if cascade.by_time else [MINUTE]))
        for name, cascade in CASCADES.items()
    }


def text() -> str:
    return json.dumps(dump(), indent=2) + "\n"


if __name__ == "__main__":
    PATH.write_text(text())

"""The topology of Celery's native delayed delivery (kombu.transport.native_delayed_delivery). Pure."""

from __future__ import annotations

from collections.abc import Iterator

from .topology import Exchange, Queue, QueueType

_LEVELS = 28

#: The exchange through which messages leave the levels.
DELIVERY = Exchange("celery_delayed_delivery", "topic")


def level_name(level: int) -> str:
    return f"celery_delayed_{level}"


def levels(queue_type: QueueType) -> Iterator[tuple[Exchange, Queue]]:
    """Yield each level's exchange and queue, the longest first, as messages go."""
    for level in range(_LEVELS - 1, -1, -1):
        arguments: dict[str, str | int] = {
            "x-queue-type": queue_type,
            "x-overflow": "reject-publish",
            "x-message-ttl": 2**level * 1000,
            "x-dead-letter-exchange": level_name(level - 1) if level else DELIVERY.name,
        }
        if queue_type == "quorum":
            arguments["x-dead-letter-strategy"] = "at-least-once"
        yield Exchange(level_name(level), "topic"), Queue(level_name(level), arguments)

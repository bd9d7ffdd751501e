"""Common kinds of task queues: Celery settings by name, for workers and publishers."""

from __future__ import annotations

from typing import Any

from kombu import Exchange, Queue
from kombu.common import Broadcast

NAMES = ("celery", "mail")


def queues(exchange: Exchange | None = None, **options: Any) -> dict[str, Any]:
    bound = {} if exchange is None else {"exchange": exchange}
    return {"task_queues": [Queue(name, routing_key=name, **bound, **options) for name in NAMES]}


QUORUM = {"x-queue-type": "quorum"}

ONE_OF_EACH = {
    "classic": [
        Queue("celery", routing_key="celery", queue_arguments={"x-queue-type": "classic"}),
        Queue("direct", Exchange("directly", "direct"), routing_key="direct"),
        Queue("topic", Exchange("shop", "topic"), routing_key="topic"),
        Queue("priority", routing_key="priority", max_priority=9),
        Queue("auto-delete", routing_key="auto-delete", auto_delete=True),
    ],
    "quorum": [
        Queue("celery", routing_key="celery", queue_arguments=QUORUM),
        Queue("few deliveries", routing_key="few deliveries", queue_arguments={**QUORUM, "x-delivery-limit": 2}),
        Queue("topic", Exchange("shop", "topic"), routing_key="topic", queue_arguments=QUORUM),
    ],
}

KINDS: dict[str, dict[str, Any]] = {
    "made when missing": {},
    "classic": queues(queue_arguments={"x-queue-type": "classic"}),
    "classic, topic exchange": queues(Exchange("shop", "topic")),
    "quorum": queues(queue_arguments=QUORUM),
    "quorum, topic exchange": queues(Exchange("shop", "topic"), queue_arguments=QUORUM),
    "priority": queues(max_priority=9),
    "auto-delete": queues(auto_delete=True),
    # Celery 5.4 knows no task_default_queue_type, and makes classic ones.
    "quorum by default, topic exchange": {"task_default_queue_type": "quorum", "task_default_exchange_type": "topic"},
    "broadcast": {"task_queues": [Queue("celery"), Broadcast("news")]},
    **{f"each {name}": {"task_queues": of} for name, of in ONE_OF_EACH.items()},
    "exclusive": {"task_queues": [Queue("celery"), Queue("own", Exchange("own"), "own", exclusive=True)]},
}


def to_mail(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
    """Return a route for `task_routes` with an exchange and a routing key, but without a queue."""
    return {"exchange": "shop", "routing_key": "mail"} if name.endswith(".note") else None

"""What a Celery worker needs to be told of the transport."""

from __future__ import annotations

from typing import Any

from .transport import DRIVER_TYPE


def join_neighbours(**signal: Any) -> None:
    """Lets mingle and gossip, which ask for a transport's driver type, run on ours as on AMQP. For `worker_init`."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    for step in (Gossip, Mingle):
        step.compatible_transports.add(DRIVER_TYPE)

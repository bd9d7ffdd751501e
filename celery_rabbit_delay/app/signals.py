"""What a Celery worker needs to be told of the transport."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from celery.signals import task_received, worker_init

from .. import upstream


def connect() -> None:
    """Connect the functions below to Celery's signals. Connecting them again changes nothing."""
    worker_init.connect(enable_mingle_and_gossip, weak=False)
    task_received.connect(clear_elapsed_eta, weak=False)


def enable_mingle_and_gossip(**signal: Any) -> None:
    """Let mingle and gossip, which ask for a transport's driver type, run on ours as on AMQP. For `worker_init`."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    from ..core.options import DRIVER_TYPE

    for step in (Gossip, Mingle):
        step.compatible_transports.add(DRIVER_TYPE)


def clear_elapsed_eta(sender: Any, request: Any, **signal: Any) -> None:
    """Keep the worker from scheduling a task that is due already. For `task_received`.

    Its timer would raise the prefetch count for a moment, twice for each task, and run what it holds in the order of
    the etas instead of the queue's. The task itself still finds the eta in its request.
    """
    ours = hasattr(sender.connection.transport, "delay_options")
    if ours and request.eta is not None and request.eta <= datetime.now(timezone.utc):
        upstream.clear_eta(request)

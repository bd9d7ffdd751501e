"""Handlers of Celery's signals, which adapt a worker to the transport."""

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
    """Add our driver type to those that mingle and gossip accept, so that both work as with AMQP. For `worker_init`."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    from ..core.options import DRIVER_TYPE

    for step in (Gossip, Mingle):
        step.compatible_transports.add(DRIVER_TYPE)


def clear_elapsed_eta(sender: Any, request: Any, **signal: Any) -> None:
    """Keep the worker from scheduling a task that is already due. For `task_received`.

    The worker's timer would change the prefetch count twice for each task, and run the tasks in the order of their etas
    instead of the queue's order. The task itself still finds the eta in its request.
    """
    ours = hasattr(sender.connection.transport, "delay_options")
    if ours and request.eta is not None and request.eta <= datetime.now(timezone.utc):
        upstream.clear_eta(request)

"""Handlers of Celery's signals, for workers: `-S rabbit-delay` is refused, mingle and gossip work, due tasks run."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

from celery.signals import celeryd_init, task_received, worker_init

from ... import upstream

logger = logging.getLogger(__name__)

#: The name of our scheduler, and what it stands for.
_SCHEDULERS = (
    "rabbit-delay",
    "celery_rabbit_delay.periodic.beat:Scheduler",
    "celery_rabbit_delay.periodic.beat.Scheduler",
)


def connect() -> None:
    """Connect the functions below to Celery's signals. Connecting them again changes nothing."""
    celeryd_init.connect(refuse_scheduler_as_file, weak=False)
    worker_init.connect(enable_mingle_and_gossip, weak=False)
    task_received.connect(clear_elapsed_eta, weak=False)


def refuse_scheduler_as_file(conf: Any, options: Any, **signal: Any) -> None:
    """Stop `celery worker -B -S rabbit-delay`, whose beat is Celery's own: all would be sent twice. For `celeryd_init`.

    `-S` names the scheduler of `celery beat`, but the file `--statedb` of `celery worker`. Raises `SystemExit`, because
    Celery only logs other errors of a signal's handlers.
    """
    if options.get("statedb") not in _SCHEDULERS:
        return
    advice = (
        "-S rabbit-delay names a file for the state of a worker (--statedb), not the scheduler: use --scheduler "
        'rabbit-delay, or beat_scheduler = "rabbit-delay" in the configuration, and leave -S out'
    )
    if options.get("beat") and (options.get("scheduler") or conf.beat_scheduler) not in _SCHEDULERS:
        raise SystemExit(f"This worker's -B would run Celery's own scheduler beside other beats. {advice}")
    logger.warning("%s", advice)


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

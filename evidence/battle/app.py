"""The Celery app of a battle, set up by environment variables, for workers and publishers alike.

BATTLE_BROKER: URLs. BATTLE_CONTENDER: a name in `CONTENDERS`. BATTLE_OPTIONS: more options of ours, as JSON.
BATTLE_PUBLISHED: the ledger of what is published. BATTLE_RAN: that of runs. BATTLE_SEED: of what publishers choose.
BATTLE_WORK: seconds that a task takes. BATTLE_PREFETCH: the workers' `worker_prefetch_multiplier`. BATTLE_CLOCK:
seconds that this process's clock is ahead. The ledgers have the true time.
"""

from __future__ import annotations

import json
import os
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import freezegun.api
import kombu
from celery import Celery, Task
from freezegun import freeze_time

import celery_rabbit_delay
from tests.kit import ledger

QUEUE = "battle"

OURS = "celery-rabbit-delay"

RETRIES = 2  # with backoff

#: Options of `install`, None for Celery alone.
CONTENDERS: dict[str, dict[str, Any] | None] = {
    OURS: {"schedule": True},  # tasks are cancelled and moved
    "native delayed delivery": None,
    "plain eta": None,
}


def make_app(broker: str, contender: str) -> Celery:
    options = CONTENDERS[contender]
    # Native delayed delivery is on where a quorum queue is, and works with topic exchanges only.
    kind = "topic" if contender == "native delayed delivery" else "direct"
    queue_type = "classic" if contender == "plain eta" else "quorum"
    exchange = kombu.Exchange(QUEUE, type=kind)
    app = Celery("battle", broker=broker, set_as_current=False)
    app.conf.update(
        task_queues=[kombu.Queue(QUEUE, exchange, QUEUE, queue_arguments={"x-queue-type": queue_type})],
        task_default_queue=QUEUE,
        task_default_exchange=QUEUE,
        task_default_exchange_type=kind,
        task_default_routing_key=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_publish_retry_policy={"max_retries": 600, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 1},
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"confirm_publish": True},
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_prefetch_multiplier=int(os.environ.get("BATTLE_PREFETCH", "4")),
    )
    if options is not None:
        celery_rabbit_delay.install(app, **{**options, **json.loads(os.environ.get("BATTLE_OPTIONS", "{}"))})
    return app


CONTENDER = os.environ.get("BATTLE_CONTENDER", OURS)

if "BATTLE_BROKER" in os.environ:
    if ahead := float(os.environ["BATTLE_CLOCK"]):
        freeze_time(datetime.now(timezone.utc) + timedelta(seconds=ahead), tick=True).start()
    app = make_app(os.environ["BATTLE_BROKER"], CONTENDER)

    @app.task(name="evidence.battle.run")
    def run(name: str) -> None:
        ledger.append(os.environ["BATTLE_RAN"], {"id": name, "at": freezegun.api.real_time()})
        time.sleep(float(os.environ["BATTLE_WORK"]))

    @app.task(name="evidence.battle.retried", bind=True, max_retries=RETRIES)
    def retried(self: Task, name: str) -> None:
        """Run, and fail but for the last time. Each retry is a task of its own in the ledgers."""
        number = self.request.retries
        run(f"{name}.{number}" if number else name)
        if number < RETRIES:
            following, countdown, now = f"{name}.{number + 1}", 2**number, freezegun.api.real_time()
            published = os.environ["BATTLE_PUBLISHED"]
            ledger.append(published, {"id": following, "sent": now, "due": now + countdown, "retried": True})
            self.retry(countdown=countdown, throw=False)
            ledger.append(published, {"id": following, "confirmed": freezegun.api.real_time()})

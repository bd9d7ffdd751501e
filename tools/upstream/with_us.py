"""A pytest plug-in: whatever connects to RabbitMQ does so through this package. `pytest -p tools.upstream.with_us`.

The tests of Celery's scheduler test that of this package, as it is when it is active.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

from celery import Celery
from celery import beat as celery_beat
from kombu.transport import TRANSPORT_ALIASES

import celery_rabbit_delay
from celery_rabbit_delay import UnsupportedConfiguration
from celery_rabbit_delay.periodic import beat


def _install(app: Any) -> None:
    with suppress(UnsupportedConfiguration):  # another broker than RabbitMQ
        celery_rabbit_delay.install(app)


Celery.on_init = _install  # Celery's own hook: the suites make apps of their own
for scheme in ("amqp", "pyamqp"):
    TRANSPORT_ALIASES[scheme] = TRANSPORT_ALIASES["rabbit-delay"]


class Scheduler(beat.Scheduler):
    _lock: Any = Mock(is_held=True, left=[], questions=[], age=0)
    producer = celery_beat.Scheduler.producer  # ours needs the connection of a lock


vars(beat)["STEP"] = math.inf
celery_beat.Scheduler = Scheduler

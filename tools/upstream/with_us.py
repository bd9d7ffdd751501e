"""A pytest plug-in: whatever connects to RabbitMQ does so through this package. `pytest -p tools.upstream.with_us`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from celery import Celery
from kombu.transport import TRANSPORT_ALIASES

import celery_rabbit_delay
from celery_rabbit_delay import UnsupportedConfiguration


def _install(app: Any) -> None:
    with suppress(UnsupportedConfiguration):  # another broker than RabbitMQ
        celery_rabbit_delay.install(app)


Celery.on_init = _install  # Celery's own hook: the suites make apps of their own
for scheme in ("amqp", "pyamqp"):
    TRANSPORT_ALIASES[scheme] = TRANSPORT_ALIASES["rabbit-delay"]

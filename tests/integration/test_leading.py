"""Whether the cascade leads to a destination: one that is declared again, and for those who may declare nothing."""

from __future__ import annotations

from typing import Any

import kombu
import pytest

from celery_rabbit_delay.app.consumers import DelayedConsumer
from testkit.broker import Vhost

UUID = "550e8400-e29b-41d4-a716-446655440000"
SOON = {"x-delay": 200}
SLOW = {"x-delay": 4000}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(f"jobs-{UUID}", {}), ("reply", {"x-expires": 600_000})],
    ids=["lasting, with a UUID in its name", "short-lived, without"],
)
def test_a_worker_that_declares_a_queue_leads_to_it_also_those_who_know_but_its_name(
    vhost: Vhost, name: str, arguments: dict[str, Any]
) -> None:
    queue = kombu.Queue(name, queue_arguments=arguments)
    with vhost.plain() as connection:
        queue(connection.default_channel).declare()
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key=name, headers=SLOW)
    vhost.delete_queue(name)
    with vhost.connection() as connection, DelayedConsumer(connection.channel(), [queue], on_message=lambda m: m.ack()):
        pass
    assert len(vhost.take(name, 1, timeout=20)) == 1

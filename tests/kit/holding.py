"""Whether this RabbitMQ's quorum queues hold messages until a delivery time: no release says so, so it is tried."""

from __future__ import annotations

import time
import uuid

import kombu

from celery_rabbit_delay.core.headers import X_DELIVERY_TIME
from tests.kit.node import Node

#: Why a test is skipped elsewhere.
NOT_HELD = "the quorum queues of this RabbitMQ do not hold messages until a delivery time"


def holds_messages(node: Node) -> bool:
    with kombu.Connection(node.url(), transport_options={"confirm_publish": True}) as connection:
        name, channel = f"holding-{uuid.uuid4()}", connection.default_channel
        channel.queue_declare(name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
        try:
            headers = {X_DELIVERY_TIME: (int(time.time()) + 600) * 1000}
            connection.Producer().publish("", routing_key=name, headers=headers)
            return not channel.queue_declare(name, passive=True).message_count
        finally:
            channel.queue_delete(name)

"""Deletes what Celery's native delayed delivery has left on RabbitMQ, once no task waits there.

python from_native_delayed_delivery.py
"""

import kombu
from amqp.exceptions import NotFound

#: Of queues and of exchanges, down, as tasks go.
NAMES = [f"celery_delayed_{level}" for level in reversed(range(28))]


def waiting(connection: kombu.Connection, queue: str) -> int:
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue, passive=True).message_count)
    except NotFound:
        return 0


with kombu.Connection("amqp://guest:guest@localhost//") as connection:
    left = sum(waiting(connection, name) for name in NAMES)
    if left:
        raise SystemExit(f"{left:,} tasks wait: run this again when they have arrived")
    for name in NAMES:
        connection.default_channel.exchange_delete(name)  # so that nothing more comes into the queue
        if waiting(connection, name):
            raise SystemExit(f"somebody still sends tasks into {name}: install the package there, too")
        connection.default_channel.queue_delete(name)
    connection.default_channel.exchange_delete("celery_delayed_delivery")

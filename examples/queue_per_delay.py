"""A queue for each delay, as the classic articles on RabbitMQ have it, beside celery-rabbit-delay.

python queue_per_delay.py
"""

from __future__ import annotations

import kombu

import celery_rabbit_delay  # noqa: F401  registers the scheme rabbit-delay

work = kombu.Queue("work")


def publish_by_a_queue_of_its_own(producer: kombu.Producer, body: str, seconds: int) -> str:
    """Publish the classic way: into a queue whose messages expire and are dead-lettered into `work`."""
    waiting = kombu.Queue(
        f"work.wait.{seconds}",
        queue_arguments={
            "x-message-ttl": seconds * 1000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": work.name,
        },
    )
    producer.publish(body, routing_key=waiting.name, declare=[work, waiting])
    return str(waiting.name)


def publish(producer: kombu.Producer, body: str, seconds: float) -> None:
    """Publish with celery-rabbit-delay, with any delay."""
    producer.publish(body, routing_key=work.name, declare=[work], headers={"x-delay": seconds * 1000})


if __name__ == "__main__":
    delays = range(1, 101)
    with kombu.Connection("amqp://guest:guest@localhost//") as connection:
        queues = {publish_by_a_queue_of_its_own(connection.Producer(), "x", seconds) for seconds in delays}
    print(f"the classic way: {len(queues)} queues for {len(delays)} delays")
    with kombu.Connection("rabbit-delay://guest:guest@localhost//") as connection:
        for seconds in delays:
            publish(connection.Producer(), "x", seconds + 0.5)

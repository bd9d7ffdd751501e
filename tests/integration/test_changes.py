"""What consumers know of the messages that were cancelled, moved or replaced."""

from __future__ import annotations

import kombu

from celery_rabbit_delay import operate
from celery_rabbit_delay.amqp.schedule import write_changes
from celery_rabbit_delay.core import journal
from testkit.broker import Vhost, publish, take


def test_a_busy_consumer_gets_nothing_that_is_cancelled_after_many_others(vhost: Vhost) -> None:
    vhost.declare("q", "bell")
    found: list[str] = []

    def on_message(message: kombu.Message) -> None:
        found.append(message.properties["correlation_id"])
        message.ack()

    with vhost.connection(journal=0) as publisher, vhost.connection(journal=0) as consumer:
        publish(publisher, 0.1, correlation_id="begin")
        assert take(consumer, "q", 1)  # it follows what is cancelled from now on
        with kombu.Consumer(consumer, [kombu.Queue("q", no_declare=True)], on_message=on_message, auto_declare=False):
            publish(publisher, 5, correlation_id="victim")
            write_changes(publisher, [next(journal.cancelled([f"other {n}"])) for n in range(300)])
            operate.cancel(publisher, ["victim"])
            publish(publisher, 6, "bell")
            take(publisher, "bell", 1)  # meanwhile the consumer is busy, and the victim arrives
            publish(publisher, 0.1, correlation_id="end")
            while "end" not in found:
                consumer.drain_events(timeout=30)
    assert found == ["end"]

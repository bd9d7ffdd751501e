"""Delayed messages are never early, and rarely late."""

from __future__ import annotations

import random
import statistics
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import kombu
import pytest

from celery_rabbit_delay.delay.amqp import transport
from tests.kit.broker import Vhost, lead, take

pytestmark = pytest.mark.shared_vhost


def task(eta: object) -> dict[str, Any]:
    return {"task": "t", "id": "1", "eta": eta}


def test_nothing_is_early_and_nothing_is_lost(vhost: Vhost) -> None:
    vhost.declare("q")
    amount = 150
    seed = random.Random(7)
    lateness = []

    def on_message(message: kombu.Message) -> None:
        now = time.time()
        message.ack()
        lateness.append(now - message.payload)

    with vhost.connection(tick=0.001, max_delay=10) as connection:
        producer = connection.Producer()
        for _ in range(amount):
            due = datetime.now(timezone.utc) + timedelta(seconds=seed.uniform(0.001, 2))
            producer.publish(due.timestamp(), routing_key="q", headers=task(due.isoformat()))
        with kombu.Consumer(connection.channel(), [kombu.Queue("q", no_declare=True)], on_message=on_message):
            while len(lateness) < amount:
                connection.drain_events(timeout=60)
    # What came while we were still publishing waited for us in the queue; that is not lateness of the cascade.
    assert min(lateness) >= 0


@pytest.mark.long
@pytest.mark.parametrize("outboxes", [(), (0.01,)], ids=["of a level", "of an outbox"])
def test_one_hop_is_not_early_by_a_fraction_of_a_millisecond(vhost: Vhost, outboxes: tuple[float, ...]) -> None:
    """A quorum queue lets go of some messages, a few in a thousand of these, a little before their TTL has passed."""
    vhost.declare("q")
    amount = 2000
    seed = random.Random(7)
    held = []

    def on_message(message: kombu.Message) -> None:
        held.append(time.monotonic() - message.payload)

    queue = kombu.Queue("q", no_declare=True)
    with vhost.connection(tick=0.01, max_delay=0.01, outboxes=outboxes) as connection:
        producer = connection.Producer()
        with kombu.Consumer(connection.channel(), [queue], on_message=on_message, no_ack=True):
            for _ in range(amount):
                with suppress(TimeoutError):
                    connection.drain_events(timeout=seed.uniform(0.0001, 0.004))
                producer.publish(time.monotonic(), routing_key="q", headers={"x-delay": 10})
            while len(held) < amount:
                connection.drain_events(timeout=60)
    assert min(held) >= 0.01


@pytest.mark.long
@pytest.mark.parametrize("round_", [False, True], ids=["in levels", "in outboxes"])
def test_messages_of_any_priority_are_equally_late(vhost: Vhost, round_: bool) -> None:
    """RabbitMQ 4.0 looks for expired messages only at the head of a quorum queue, where the high ones are."""
    vhost.declare("q")
    amount = 600
    seed = random.Random(7)
    lateness: dict[int, list[float]] = {priority: [] for priority in range(10)}

    def publish() -> None:
        with vhost.connection(outboxes=[1, 2, 3, 5] if round_ else ()) as connection:
            producer = connection.Producer()
            lead(connection, "q", [1, 2, 3, 5])
            for _ in range(amount):
                priority = seed.choice([0, 4, 5, 9])
                seconds = seed.choice([1, 2, 3, 5]) if round_ else seed.uniform(1, 6)
                due = datetime.now(timezone.utc) + timedelta(seconds=seconds)
                producer.publish(due.timestamp(), routing_key="q", priority=priority, headers=task(due.isoformat()))
                time.sleep(0.01)  # a steady load: as high ones leave a level, others enter it

    def on_message(message: kombu.Message) -> None:
        lateness[message.properties["priority"]].append(time.time() - message.payload)
        message.ack()

    publisher = threading.Thread(target=publish)
    publisher.start()
    with vhost.connection() as connection:
        consumer = kombu.Consumer(connection.channel(), [kombu.Queue("q", no_declare=True)], on_message=on_message)
        with consumer:
            while sum(map(len, lateness.values())) < amount:
                connection.drain_events(timeout=60)
    publisher.join()
    normal, high = lateness[0] + lateness[4], lateness[5] + lateness[9]
    assert min(normal + high) >= 0
    # Seconds, where normal ones are held up: half of them by three, the last by six.
    assert abs(statistics.median(normal) - statistics.median(high)) < 0.5
    assert abs(max(normal) - max(high)) < 2


def test_the_highest_level_of_the_default_options_takes_messages(vhost: Vhost) -> None:
    vhost.declare("q")
    with kombu.Connection(vhost.url()) as connection:
        half_a_year = (125 << 27) + 120_000  # declaring the cascade may take a while
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": half_a_year})
    assert vhost.count(f"celery-rabbit-delay.v3.125ms.delay.{125 << 27}") == 1


@pytest.mark.parametrize("step", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_step_of_the_wall_clock_while_a_message_is_published_changes_no_delay(
    vhost: Vhost, step: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("q")
    sent = time.monotonic()

    class Clock(datetime):
        looks = 0

        @classmethod
        def now(cls, tz: Any = None) -> Any:  # the wall clock, as somebody sets it
            cls.looks += 1
            return datetime.now(tz) + (step if cls.looks > 1 else timedelta())

    monkeypatch.setattr(transport, "datetime", Clock)
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 3000})
        assert len(take(connection, "q", 1)) == 1
    assert time.monotonic() - sent >= 3


def test_a_pause_between_the_two_clocks_makes_no_task_early(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")
    eta = datetime.now(timezone.utc) + timedelta(seconds=3)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            read = datetime.now(tz)
            time.sleep(1)  # a process that is stopped for a while, or another thread's turn
            return read

    monkeypatch.setattr(transport, "datetime", Clock)
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers=task(eta.isoformat()))
        assert len(take(connection, "q", 1)) == 1
    assert datetime.now(timezone.utc) >= eta

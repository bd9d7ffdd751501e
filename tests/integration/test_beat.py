"""The lock of a beat in RabbitMQ: who holds it, what is left to the next, and what others can do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import kombu
import pytest
from amqp import Message
from amqp.exceptions import AMQPError

from celery_rabbit_delay import CascadeConflict, NotPermitted, UnsupportedConfiguration
from celery_rabbit_delay.amqp.lock import Lock
from celery_rabbit_delay.operate import BeatStatus, beat_status
from testkit.broker import Vhost
from testkit.commands import documented_permissions as documented
from testkit.wait import wait_until

QUEUE = "celery-rabbit-delay.beat.shop"

MakeLock = Callable[..., Lock]


@pytest.fixture
def make_lock(vhost: Vhost) -> Iterator[MakeLock]:
    connections: list[kombu.Connection] = []

    def make(user: str = "guest", **options: Any) -> Lock:
        connections.append(kombu.Connection(vhost.url("amqp", user), heartbeat=3))
        return Lock(connections[-1], QUEUE, "here:1", patience=10)

    yield make
    for connection in connections:
        with suppress(AMQPError):  # what the broker still had to say
            connection.release()


def hold(lock: Lock, body: bytes = b"mine") -> None:
    wait_until(lambda: lock.wait(0.1), "it is the active consumer")
    lock.write(body)


def publish(vhost: Vhost, body: bytes, **properties: Any) -> None:
    with vhost.plain() as connection:
        connection.default_channel.basic_publish(Message(body, **properties), "", QUEUE)


def test_one_holds_the_lock_and_the_next_gets_what_it_has_left(vhost: Vhost, make_lock: MakeLock) -> None:
    first, second = make_lock(), make_lock()
    hold(first, b"1")
    hold(first, b"2")
    assert not second.wait(0.2)
    first.abandon()
    assert second.wait(10)
    assert second.left == [b"2"]
    second.write(b"3")
    assert second.left == []
    second.abandon()
    third = make_lock()
    assert third.wait(10)
    assert third.left == [b"3"]


def test_who_has_lost_the_lock_notices_before_it_has_written(vhost: Vhost, make_lock: MakeLock) -> None:
    first, second = make_lock(), make_lock()
    hold(first)
    vhost.delete_queue(QUEUE)
    with pytest.raises(AMQPError):
        first.write(b"late")
    with pytest.raises(AMQPError):
        second.wait(5)


def test_only_the_last_message_stays_however_often_it_is_replaced(vhost: Vhost, make_lock: MakeLock) -> None:
    lock = make_lock()
    for number in range(100):
        hold(lock, b"%d" % number)
    lock.abandon()
    wait_until(lambda: vhost.count(QUEUE) == 1, "the message is back in the queue")


def test_messages_of_others_do_not_displace_what_the_holder_has_written(vhost: Vhost, make_lock: MakeLock) -> None:
    lock = make_lock()
    hold(lock)
    for _ in range(300):
        publish(vhost, b"forged")
    hold(lock, b"still mine")
    assert lock.left == []
    lock.abandon()
    after = make_lock()
    assert after.wait(10)
    assert after.left == [b"still mine"]


def test_what_was_forged_while_nobody_held_the_lock_comes_after_what_was_left(
    vhost: Vhost, make_lock: MakeLock
) -> None:
    lock = make_lock()
    hold(lock)
    lock.abandon()
    wait_until(lambda: vhost.count(QUEUE) == 1, "nobody holds it")
    publish(vhost, b"forged")
    after = make_lock()
    assert after.wait(10)
    assert sorted(after.left) == [b"forged", b"mine"]


@pytest.mark.parametrize("transport", ["amqp", "rabbit-delay"])
def test_a_delayed_task_cannot_be_sent_on_a_connection_that_has_lost_the_lock(vhost: Vhost, transport: str) -> None:
    vhost.declare("q")
    with kombu.Connection(vhost.url(transport), heartbeat=3, transport_options={"confirm_publish": True}) as connection:
        lock = Lock(connection, QUEUE, "here:1", patience=10)
        hold(lock)
        producer = connection.Producer(lock.channel())
        producer.publish("x", routing_key="q")
        lock.abandon()
        with pytest.raises((AMQPError, OSError)):
            producer.publish("x", routing_key="q", headers={"x-delay": 100}, retry=False)
    assert len(vhost.take("q", 1)) == 1
    assert vhost.count("q") == 0


def test_the_holder_answers_who_asks_and_nobody_else(vhost: Vhost, make_lock: MakeLock) -> None:
    with vhost.connection() as connection:
        assert beat_status(connection, QUEUE) is None
        lock = make_lock()
        hold(lock)
        assert beat_status(connection, QUEUE, patience=0.5) == BeatStatus(None, [])
        vhost.declare("victim")
        for reply_to in ("victim", "amq.rabbitmq.reply-to.forged"):
            publish(vhost, b"", reply_to=reply_to)
        wait_until(lambda: lock.wait(0.1) and lock.questions, "the questions are there")
        lock.answer(b"{}")
        hold(lock)
        assert vhost.count("victim") == 0


def test_other_brokers_and_other_queues_are_errors(vhost: Vhost, make_lock: MakeLock) -> None:
    with pytest.raises(UnsupportedConfiguration, match="is not RabbitMQ"):
        Lock(kombu.Connection("memory://"), QUEUE, "here:1", patience=10)
    vhost.declare(QUEUE)
    with pytest.raises(CascadeConflict, match="has other properties"):
        make_lock()


def test_a_beat_needs_no_more_than_its_row(vhost: Vhost, make_lock: MakeLock) -> None:
    permissions = documented("beat")
    hold(make_lock(vhost.user(**permissions)))
    for lacking in ("configure", "read"):
        with pytest.raises(NotPermitted, match="permission denied"):
            make_lock(vhost.user(**permissions | {lacking: "^$"}))
    unheard = make_lock(vhost.user(**permissions | {"write": "^$"}))
    with pytest.raises(AMQPError, match="access"):
        wait_until(lambda: unheard.wait(0.1), "it is refused", 10)

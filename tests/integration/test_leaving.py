"""`can-leave` lists what workers without this package would run again, until it is through."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from kombu import Queue

from celery_rabbit_delay.amqp import reschedule as reschedule_
from celery_rabbit_delay.amqp import schedule as schedule_
from celery_rabbit_delay.amqp.destinations import QueueNames
from tests.kit.broker import Vhost, take, waits_by_time
from tests.kit.commands import management, run
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost


def publish(connection: Any, id_: str, delay: float, **headers: Any) -> None:
    headers = {"x-delay": delay * 1000, "task": "t", "id": id_, **headers}
    connection.Producer().publish(id_, routing_key="q", headers=headers)


def test_what_waits_and_must_not_run_is_listed_with_the_reason(vhost: Vhost) -> None:
    vhost.declare("q")
    ask = ("--queue", "q", "can-leave")
    with vhost.connection(journal=0) as connection:
        for id_ in ("runs", "cancelled", "moved"):
            publish(connection, id_, 100)
        before = run(vhost.url("amqp"), *ask)
        assert (before.code, before.out) == (0, "nothing that was cancelled, moved or replaced waits\n")
        for id_ in ("replaced", "last"):
            publish(connection, id_, 100, **{"x-delay-key": "k"})
        schedule_.cancel(connection, ["cancelled"])
        reschedule_.reschedule(connection, "moved", datetime.now(timezone.utc) + timedelta(seconds=110))
        is_countable = not waits_by_time(connection)
    found = run(vhost.url("amqp"), *ask, *(() if is_countable else management(vhost)))
    assert found.code == 3
    *lines, end = found.out.splitlines()
    listed = [(words[0], words[3]) for words in map(str.split, lines)]
    assert sorted(listed) == [(word, word) for word in ("cancelled", "moved", "replaced")]
    assert end == "workers without this package would run them: keep it in all workers until they are through"


def test_what_is_listed_comes_to_a_consumer_without_this_package_and_then_nothing_is_listed(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as connection:
        publish(connection, "cancelled", 3)
        schedule_.cancel(connection, ["cancelled"])
    with vhost.plain() as plain:
        assert [message.payload for message in take(plain, "q", 1)] == ["cancelled"]
    with vhost.connection() as connection:
        is_countable = not waits_by_time(connection)
    for more in ((), management(vhost)) if is_countable else (management(vhost),):
        wait_until(lambda more=more: run(vhost.url("amqp"), "can-leave", *more).code == 0, "it is through", 60)  # type: ignore[misc]


@pytest.mark.parametrize("asks_management", [False, True])
def test_a_paused_queue_is_named_though_nothing_waits(vhost: Vhost, asks_management: bool) -> None:
    vhost.declare("q")
    ask = ("--queue", "q", "can-leave", *(management(vhost) if asks_management else ()))
    with vhost.connection() as connection:
        publish(connection, "creates the cascade", 0.01)
        names = QueueNames([Queue("q")], only=True)
        schedule_.pause(connection, "q", names)
        take(connection, "q", 1)
        found = run(vhost.url("amqp"), *ask)
        assert (found.code, found.out.splitlines()[0]) == (3, "paused     q: workers without this package consume it")
        schedule_.resume(connection, "q", names)
        assert run(vhost.url("amqp"), *ask).code == 0


def test_tasks_without_a_record_may_be_cancelled_once_any_task_was(vhost: Vhost) -> None:
    vhost.declare("q")
    ask = ("--queue", "q", "can-leave")
    with vhost.connection(journal=None) as connection:
        publish(connection, "unrecorded", 100)
        assert run(vhost.url("amqp"), *ask).code == 0
        schedule_.cancel(connection, ["another"])
        is_countable = not waits_by_time(connection)

    def asked(*more: str) -> tuple[int, str]:
        found = run(vhost.url("amqp"), *ask, *more)
        return found.code, found.out.splitlines()[0]

    counted = 3, "waiting without a record: 1, which may have been cancelled or replaced as well"
    held = "RabbitMQ may hold others without a record, which may be such as well: --management-url counts them"
    assert asked() == (counted if is_countable else (3, held))
    wait_until(lambda: asked(*management(vhost)) == counted, "the management API counts it")
    without = run(vhost.url("amqp"), "--no-streams", *ask)
    assert (without.code, without.out) == (0, "nothing that was cancelled, moved or replaced waits\n")

"""Publishing from many threads, and from processes that were forked."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from celery_rabbit_delay.delay.amqp import sender
from celery_rabbit_delay.delay.amqp.sender import Turn
from celery_rabbit_delay.schedule.amqp.create_streams import make_streams
from celery_rabbit_delay.schedule.core import streams
from tests.kit.broker import DECLARED_TWICE, Vhost, publish, take, waiting_for_queues
from tests.kit.recorded import records

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost


def in_children(amount: int, work: Callable[[int], None]) -> None:
    """Run `work(n)` in some forked processes and in this one."""
    children = []
    for n in range(amount):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(n)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(child)
    work(amount)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0


def in_threads(amount: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(amount) as threads:
        list(threads.map(work, range(amount)))


def payloads(vhost: Vhost, amount: int) -> list[int]:
    return sorted(message.payload[0][0] for message in vhost.take("celery", amount, DECLARED_TWICE))


def test_a_process_that_is_forked_from_an_event_loop_waits_as_long_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> None:
        assert sender._this_thread.patience == {0: None, 1: 3}[number]

    monkeypatch.setattr(sender._this_thread, "patience", 3)
    in_children(1, work)


def test_many_threads_publish_delayed_tasks(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()

    def work(thread: int) -> None:
        for n in range(8):
            app.send_task("t", (100 * thread + n,), countdown=0.3)

    with waiting_for_queues():
        in_threads(8, work)
    assert payloads(vhost, 64) == [100 * thread + n for thread in range(8) for n in range(8)]


def test_many_threads_share_a_connection(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        producers = [connection.Producer(connection.channel()) for _ in range(8)]  # py-amqp opens one at a time

        def work(thread: int) -> None:
            for n in range(12):
                producers[thread].publish(100 * thread + n, routing_key="q", headers={"x-delay": 300 + n})

        in_threads(8, work)
        arrived = sorted(message.payload for message in vhost.take("q", 96))
    assert arrived == [100 * thread + n for thread in range(8) for n in range(12)]


def test_who_waits_for_another_thread_waits_no_longer_than_the_limit(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(confirm_timeout=0.5) as connection:
        publish(connection, 1)
        with Turn(connection.connection.sender, 60), ThreadPoolExecutor(1) as pool:
            late = pool.submit(publish, connection, 1)
            with pytest.raises(TimeoutError, match="another thread"):
                late.result()
        publish(connection, 1)


@pytest.mark.parametrize(
    "before", [True, pytest.param(False, marks=pytest.mark.own_vhost)], ids=["connected before", "not connected before"]
)
def test_forked_children_publish_beside_their_parent(vhost: Vhost, make_app: MakeApp, before: bool) -> None:
    """As a pre-forking web server that has loaded the app does; they may all create the cascade, and an outbox."""
    app = make_app()
    if before:
        app.send_task("t", (-1,), countdown=0.3)
    connections = vhost.connections() if before else []

    def work(process: int) -> None:
        for n in range(10):
            app.send_task("t", (100 * process + n,), countdown=0.3 if n % 2 else 1)
            time.sleep(0.2)  # some before the outbox is in use, and some afterwards; all at the same time

    with waiting_for_queues():
        in_children(3, work)
    expected = [100 * process + n for process in range(4) for n in range(10)]
    assert payloads(vhost, 40 + before) == [-1] * before + expected
    assert set(connections) <= set(vhost.connections())
    assert f"{vhost.cascade.root}.out.1s.+celery" in vhost.names("queues")


@pytest.mark.own_vhost
def test_an_outbox_that_several_processes_create_at_once_holds_up_nothing(vhost: Vhost) -> None:
    """Before 4.1, RabbitMQ tells the others that it exists before it has its TTL."""
    names = [f"q{n}" for n in range(5)]
    vhost.declare("first", *names)
    tick = 0.001

    def work(process: int) -> None:
        with vhost.connection(tick=tick) as connection:
            publish(connection, tick, "first")
            for n, name in enumerate(names):
                time.sleep(max(0, start + 2 * n - time.time()))  # all at the same moment
                publish(connection, tick, name)

    with waiting_for_queues():
        with vhost.connection(tick=tick) as connection:
            publish(connection, tick, "first")  # creates the cascade
        start = time.time() + 1
        in_children(3, work)
    sent = 1 + 4 * (1 + len(names))
    with vhost.plain() as connection:
        assert len(take(connection, ["first", *names], sent, DECLARED_TWICE)) == sent


def test_the_first_records_of_several_processes_are_all_written(vhost: Vhost) -> None:
    """As a rule a worker or `setup` has made the streams.

    Before 4.0.6, RabbitMQ closes the connection of whoever writes to a stream that another is just creating.
    """
    vhost.declare("q")
    with vhost.connection(journal=10) as connection:
        make_streams(connection, streams.wanted(connection.transport.delay_options))
    together = threading.Barrier(8, timeout=60)

    def work(process: int) -> None:
        with vhost.connection(journal=10) as connection:
            publish(connection, 0.01)  # is not recorded, and connects
            together.wait()
            publish(connection, 60, headers={"id": str(process), "task": "t"})

    with waiting_for_queues():
        in_threads(8, work)
    assert sorted(record.id for record in records(vhost)) == [str(process) for process in range(8)]

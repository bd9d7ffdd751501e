"""Whatever interrupts a call, wherever it comes: the process goes on, and what was confirmed is stored."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from queue import LifoQueue
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry

import celery_rabbit_delay
from celery_rabbit_delay.amqp.limited import LimitedConnection
from tests.kit.broker import Vhost
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

#: How many places of each action are interrupted; `INTERRUPTS=100000` interrupts all of them.
PLACES = int(os.environ.get("INTERRUPTS", 20))

#: Seconds after which a call has hung. No interrupt justifies a wait for the broker, which is up.
HANGS = 8


class Interrupt(Exception):
    """What a signal handler raises, such as of a soft time limit: neither one of py-amqp's errors nor one of ours."""


class Timeout(BaseException):
    """The same that no `except Exception` catches, such as `KeyboardInterrupt` and a time-out of gevent."""


INTERRUPTS = (Interrupt, Timeout)


@contextmanager
def interrupted(place: int) -> Iterator[list[int]]:
    """Raise one of `INTERRUPTS` at call or return number `place` of Python's or C's functions; yield the count so far.

    A signal handler runs at such places, and at the end of loops. Garbage is not collected meanwhile: what is raised in
    a callback of the collector is lost.
    """
    count = [0]

    def on_event(*args: Any) -> None:
        count[0] += 1
        if count[0] == place:
            raise INTERRUPTS[place % 2]  # which also ends the profiling

    gc.disable()
    sys.setprofile(on_event)
    try:
        yield count
    finally:
        sys.setprofile(None)
        gc.enable()


@contextmanager
def no_hang(what: str) -> Iterator[None]:
    def on_alarm(*args: Any) -> None:
        raise AssertionError(f"hangs: {what}")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def was_interrupted(exc: BaseException | None) -> bool:
    while exc is not None and not isinstance(exc, INTERRUPTS):
        exc = exc.__context__
    return exc is not None


def send(app: Celery, queue: str = "q") -> str:
    sent: str = app.send_task("t", queue=queue, countdown=0.1).id
    return sent


def again(task: Any) -> None:
    pass


def retry(app: Celery) -> None:
    task = app.task(bind=True, name="r", shared=False, max_retries=None)(again)
    task.push_request(id=str(uuid.uuid4()), called_directly=False, delivery_info={}, args=[], kwargs={})
    try:
        with suppress(Retry):
            task.retry(countdown=0.1)
    finally:
        task.pop_request()


def batch(app: Celery) -> None:
    with celery_rabbit_delay.batch(app) as producer:
        for _ in range(3):
            app.send_task("t", queue="q", countdown=0.1, producer=producer)


def connect(app: Celery) -> None:
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        app.send_task("t", queue="q", countdown=0.1, producer=producer)


def declare(app: Celery) -> None:
    send(app, f"new-{uuid.uuid4().hex}")


def restore_losses(app: Celery) -> None:
    """Give Kombu's pools back what an interrupt has taken for good: their locks and entries.

    That is so without this package, too: Kombu takes an entry out of a queue, and then notes that it is in use.
    """
    for pool in (app.producer_pool, app.pool):
        kept = pool._resource.queue
        pool._resource, pool._dirty = LifoQueue(), set()
        pool._resource.queue = [*(pool.new() for _ in range(pool.limit - len(kept))), *kept]


ACTIONS: dict[str, Callable[[Celery], Any]] = {
    "publish": send,
    "publish without a delay": lambda app: app.send_task("t", queue="q"),
    "retry": retry,
    "batch": batch,
    "connect and close": connect,
    "declare": declare,
    "cancel": lambda app: celery_rabbit_delay.cancel(app, "no-such-task"),
    "list": lambda app: list(celery_rabbit_delay.scheduled(app)),
}


def arrived(vhost: Vhost, stored: set[str]) -> Counter[str]:
    """Return how often each task came to the queue, once all that were stored did."""
    came: Counter[str] = Counter()
    with vhost.plain() as connection:

        def all_came() -> bool:
            while message := connection.default_channel.basic_get("q", no_ack=True):
                came[message.headers["id"]] += 1
            return stored <= came.keys()

        wait_until(all_came, "all tasks that were stored are in the queue")
    return came


@pytest.fixture
def new_locks() -> Iterator[None]:
    """Replace the locks of cached properties, which an interrupt may have left taken for all other threads.

    They belong to classes of Kombu and Celery, and so to all tests of this process.
    """
    yield
    for one in gc.get_objects():
        if issubclass(type(one), cached_property) and "lock" in vars(one):
            one.lock = threading.RLock()


@pytest.mark.usefixtures("new_locks")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_call_that_is_interrupted_anywhere_hangs_neither_then_nor_later(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    # Generators that are interrupted while they are closed; pytest would keep them, with their connections.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    vhost.declare("q")
    app = make_app({"journal": 0}, broker_transport_options={"confirm_publish": True})
    act = ACTIONS[action]
    for _ in range(2):
        act(app)
    counts = []
    for _ in range(3):  # where one waits for the broker, it may take another turn
        with interrupted(0) as count:
            act(app)
        counts.append(count[0])
    most = min(counts)
    places = range(1, most + 1) if most <= PLACES else sorted(random.Random(action).sample(range(1, most + 1), PLACES))
    stored = set()
    reached = raised = 0
    for place in places:
        with no_hang(f"{action} at {place} of {most}"):
            try:
                with interrupted(place) as count:
                    act(app)
            except BaseException as exc:  # Celery and Kombu sometimes raise their own error in its place
                if not was_interrupted(exc):
                    raise
                raised += 1
            reached += count[0] >= place  # not if it waits in fewer turns than when they were counted
            restore_losses(app)
            stored.add(send(app))
    assert reached > 0.5 * len(places)
    assert raised >= 0.9 * reached  # one of a finalizer is lost
    gc.collect()  # connections that were interrupted while they were opened
    for one in gc.get_objects():  # and those that are in no pool any more
        if isinstance(one, LimitedConnection) and one.client and one.client.virtual_host == vhost.name:
            one.collect()
    assert {name: number for name, number in arrived(vhost, stored).items() if name in stored} == dict.fromkeys(
        stored, 1
    )

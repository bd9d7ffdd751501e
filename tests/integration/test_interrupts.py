"""Whatever interrupts a call, wherever it comes: the process goes on, and what was confirmed is stored."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import os
import random
import signal
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from queue import LifoQueue
from types import FrameType
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError
from celery import Celery
from celery.app import defaults
from celery.exceptions import Retry
from celery.utils import nodenames

import celery_rabbit_delay
from celery_rabbit_delay.delay.amqp import limited, transport
from celery_rabbit_delay.delay.amqp.confirms import Confirm, ConfirmedChannel
from celery_rabbit_delay.delay.amqp.limited import LimitedConnection
from tests.kit.broker import Vhost, publish
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

#: How many places of each action are interrupted; `INTERRUPTS=100000` interrupts all of them.
PLACES = int(os.environ.get("INTERRUPTS", 20))

#: Seconds after which a call has hung.
HANGS = 25

#: Where locks of others are, which an interrupt may leave taken: py-amqp's of a frame, and those of Kombu's pools and
#: of its functions that remember results.
LOCKS_OF_OTHERS = ("/amqp/method_framing.py", "/queue.py", "/threading.py", "/kombu/utils/functional.py")


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

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        # No handler runs as a generator yields, and one that runs as it goes on raises within its own `try`.
        if event in ("call", "return") and frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
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
def no_hang(what: str) -> Iterator[list[str]]:
    """Fail if the block waits too long, whatever it makes of the exception that ends this.

    Yields where it has waited for a lock that an interrupt has left taken without this package, too: of the user's own
    connection, or of Kombu's pools. Nobody gives such a lock back, so that is not waited for.
    """
    hung, locked, end = list[str](), list[str](), time.monotonic() + HANGS

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        stack = traceback.extract_stack(frame)
        is_ours = any(one.filename.endswith("/celery_rabbit_delay/delay/amqp/sender.py") for one in stack)
        is_theirs = stack[-1].filename.endswith(LOCKS_OF_OTHERS) and not is_ours
        signal.setitimer(signal.ITIMER_REAL, 1)  # again and again: a cleanup may take the same lock
        if is_theirs or time.monotonic() > end:
            (locked if is_theirs else hung).append("".join(stack.format()))
            raise TimeoutError

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        yield locked
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        assert not hung, f"hangs: {what}\n{hung[0]}"


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
    """Give Kombu's pools back what an interrupt has taken for good, their locks and entries, and `memoize` its lock.

    That is so without this package, too: Kombu takes an entry out of a queue, and then notes that it is in use.
    """
    remembers: Any
    for remembers in (defaults.find, nodenames.gethostname):  # a setting of Celery, the name of the host
        remembers.__closure__[remembers.__code__.co_freevars.index("mutex")].cell_contents = threading.Lock()
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


def test_a_turn_that_was_interrupted_before_its_end_keeps_nobody_waiting(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, 0.02)
        connection.connection.sender._lock.acquire()  # as if the interrupt came just before it was released
        publish(connection, 0.02)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(publish, connection, 0.02).result()
    assert len(vhost.take("q", 3)) == 3


def test_a_signal_handler_may_publish_in_the_middle_of_a_publish(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, 0.02)
        wait, handled = ConfirmedChannel.wait, list[int]()

        def interrupted(channel: ConfirmedChannel, confirm: Confirm) -> None:
            if not handled:
                handled.append(1)
                publish(connection, 0.02)
            wait(channel, confirm)

        monkeypatch.setattr(ConfirmedChannel, "wait", interrupted)
        with suppress(RecoverableConnectionError):  # it may be stored, so Celery sends it again
            publish(connection, 0.02)
        publish(connection, 0.02)
    assert len(vhost.take("q", 3)) >= 3


@pytest.mark.usefixtures("new_locks")
@pytest.mark.parametrize("action", ACTIONS)
def test_a_call_that_is_interrupted_anywhere_hangs_neither_then_nor_later(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    # Generators that are interrupted while they are closed; pytest would keep them, with their connections.
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    for module in (limited, transport):  # what waits for an answer that an interrupt has torn
        monkeypatch.setattr(module, "ANSWER_WITHIN", 1)
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
    if PLACES > 1000:  # that takes longer than pytest lets a test run
        faulthandler.cancel_dump_traceback_later()
    places = range(1, most + 1) if most <= PLACES else sorted(random.Random(action).sample(range(1, most + 1), PLACES))
    stored = set()
    reached = raised = stuck = 0
    for place in places:
        with no_hang(f"{action} at {place} of {most}") as locked:
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
        stuck += bool(locked)
    assert stuck <= 0.15 * len(places)
    assert reached > 0.5 * len(places)
    assert raised >= 0.9 * reached  # one of a finalizer is lost
    gc.collect()  # connections that were interrupted while they were opened
    for one in gc.get_objects():  # and those that are in no pool any more
        if isinstance(one, LimitedConnection) and one.client and one.client.virtual_host == vhost.name:
            one.collect()
    assert {name: number for name, number in arrived(vhost, stored).items() if name in stored} == dict.fromkeys(
        stored, 1
    )

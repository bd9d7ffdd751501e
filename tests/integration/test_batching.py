"""Delayed messages that share round trips: `celery_rabbit_delay.batch`."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
from celery import Celery, group
from celery.exceptions import SoftTimeLimitExceeded

import celery_rabbit_delay
from celery_rabbit_delay import BatchFailed, MessageRefused, NotPermitted, UnsupportedConfiguration
from celery_rabbit_delay.delay.amqp import batch
from celery_rabbit_delay.delay.amqp.confirms import ConfirmedChannel
from celery_rabbit_delay.delay.amqp.limited import LimitedConnection
from celery_rabbit_delay.delay.amqp.transport import UserConnection
from tests.kit.broker import Vhost
from tests.kit.frames import routing_keys
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

AMOUNT = 250  # more than two full batches of 100


class Oops(Exception):
    pass


def names(messages: list[Any]) -> list[int]:
    return [message.payload[0][0] for message in messages]


def test_tasks_of_a_batch_are_stored_when_the_block_ends_and_none_is_early(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    sent = time.time()
    with celery_rabbit_delay.batch(app, max_size=100):
        for n in range(AMOUNT):
            app.send_task("t", (n,), countdown=3)
    app.close()  # nothing is left to be sent
    messages = vhost.take("celery", AMOUNT)
    assert time.time() >= sent + 3
    assert sorted(names(messages)) == list(range(AMOUNT))


def test_a_batch_waits_for_no_answer_before_its_end(vhost: Vhost, make_app: MakeApp) -> None:
    with proxy(vhost.broker.node.port) as between:
        app = make_app(broker_url=between.url(vhost.url("amqp")))
        app.send_task("t", (-1,), countdown=2)  # connects and declares
        with celery_rabbit_delay.batch(app):
            between.flowing.clear()
            try:
                for n in range(100):
                    app.send_task("t", (n,), countdown=0.5)
            finally:
                between.flowing.set()
    assert len(vhost.take("celery", 101)) == 101


def test_a_batch_waits_when_so_many_messages_are_unanswered(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, most = make_app(), []
    send = ConfirmedChannel.send

    def counting(self: ConfirmedChannel, *args: Any) -> Any:
        sent = send(self, *args)
        most.append(self.unanswered)
        return sent

    monkeypatch.setattr(ConfirmedChannel, "send", counting)
    with celery_rabbit_delay.batch(app, max_size=10):
        for n in range(40):
            app.send_task("t", (n,), countdown=0.5)
    assert max(most) <= 10
    assert len(vhost.take("celery", 40)) == 40


def test_all_that_was_sent_before_an_error_in_the_block_is_sent(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()

    def send() -> None:
        with celery_rabbit_delay.batch(app):
            app.send_task("t", (0,), countdown=0.2)
            raise Oops

    with pytest.raises(Oops):
        send()
    assert names(vhost.take("celery", 1)) == [0]


def test_a_nested_batch_does_not_end_the_outer_one(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    with celery_rabbit_delay.batch(app):
        app.send_task("t", (0,), countdown=0.5)
        with celery_rabbit_delay.batch(app):
            app.send_task("t", (1,), countdown=0.5)
        app.send_task("t", (2,), countdown=0.5)
    assert sorted(names(vhost.take("celery", 3))) == [0, 1, 2]


def test_a_message_without_a_delay_is_sent_at_once(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    with celery_rabbit_delay.batch(app):
        app.send_task("t", (1,))
        assert names(vhost.take("celery", 1)) == [1]


@pytest.mark.quiet
def test_a_message_that_waited_in_the_batch_is_not_later_for_it(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    app.send_task("t", (-1,), countdown=2)  # declares
    with celery_rabbit_delay.batch(app):
        sent = time.time()
        app.send_task("t", (0,), countdown=4)
        time.sleep(2)
    vhost.take("celery", 2)
    assert 4 <= time.time() - sent < 5.5


@pytest.mark.parametrize("at", [2, 9])
def test_a_connection_lost_in_a_batch_fails_with_the_ids_of_what_may_not_be_stored(
    vhost: Vhost, make_app: MakeApp, at: int
) -> None:
    ids = []
    with proxy(vhost.broker.node.port) as between:
        app = make_app(broker_url=between.url(vhost.url("amqp")))
        app.send_task("t", (-1,), countdown=1)

        def send() -> None:
            with celery_rabbit_delay.batch(app):
                between.flowing.clear()
                for n in range(10):
                    ids.append(app.send_task("t", (n,), countdown=1).id)
                    if n == at:
                        between.cut()
                        between.flowing.set()

        with pytest.raises(BatchFailed) as failed:
            send()
        app.close()
    app = make_app()
    assert failed.value.ids == ids[: at + 1]
    with celery_rabbit_delay.batch(app):
        for n, id_ in enumerate(ids):
            if id_ in failed.value.ids:
                app.send_task("t", (n,), task_id=id_, countdown=1)
    arrived: set[int] = set()
    while len(arrived) < 11:  # some come twice: the broker had stored them, and its confirm was lost
        arrived |= set(names(vhost.take("celery", 1)))
    assert arrived == set(range(-1, 10))


@pytest.mark.parametrize("limit", [1, None], ids=["a pool of one connection", "no limit"])
def test_what_a_thread_publishes_through_the_pool_of_the_app_belongs_to_its_batch_and_nothing_else_does(
    vhost: Vhost, make_app: MakeApp, limit: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(broker_pool_limit=limit)
    app.send_task("t", (-1,), countdown=1)
    with celery_rabbit_delay.batch(app):
        app.signature("another", (0,)).apply_async(countdown=1)
        group(app.signature("another", (n,)) for n in (1, 2)).apply_async(countdown=1)
        assert collected() == 3
        other = threading.Thread(target=app.send_task, args=("t", (3,)), kwargs={"countdown": 1})
        other.start()
        other.join()
        assert collected() == 3
    assert not caplog.records
    with celery_rabbit_delay.batch(app):
        app.send_task("t", (4,))
    assert "has collected nothing" in caplog.text
    assert sorted(names(vhost.take("celery", 6))) == list(range(-1, 5))


def test_a_batch_without_a_pool_leaves_no_connection_after_it_has_sent_again_what_came_back(
    vhost: Vhost, make_app: MakeApp
) -> None:
    app = make_app({"tick": 1}, broker_pool_limit=None)
    app.send_task("t", countdown=1)
    gc.collect()
    for countdown in (30, 45, 60):  # each comes back from its outbox, which is missing
        with celery_rabbit_delay.batch(app):
            app.send_task("t", countdown=countdown)
    assert not [one for one in gc.get_objects() if isinstance(one, UserConnection) and one.connected]


def collected() -> int:
    found = batch.current()
    return found.amount if found else 0


def test_a_cascade_that_was_damaged_meanwhile_is_repaired(vhost: Vhost, make_app: MakeApp) -> None:
    def take_all() -> None:
        """Take each task, some twice: RabbitMQ may close the channel before it has confirmed what it has stored."""
        missing = set(range(15))
        while missing:
            missing -= set(names(vhost.take("celery", 1)))

    app = make_app()
    app.send_task("t", (-1,), countdown=2)
    vhost.take("celery", 1)
    for level in vhost.cascade.levels:
        vhost.delete_queue(level.queue)
    with celery_rabbit_delay.batch(app):
        for n in range(15):
            app.send_task("t", (n,), countdown=1 + n % 2 / 3)  # through levels, and past them
    take_all()
    for exchange in (vhost.cascade.ingest, vhost.cascade.outbox_ingest):
        vhost.delete_exchange(exchange)
        with celery_rabbit_delay.batch(app):
            for n in range(15):
                app.send_task("t", (n,), countdown=1 + n % 2 / 3)
        take_all()


refused = pytest.mark.parametrize(
    "wrong", [{"user_id": "somebody else"}, {"headers": {"trace": "x" * 140_000}}], ids=["refused", "a frame too large"]
)


@refused
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_message_that_the_broker_refuses_hinders_no_other_one(
    vhost: Vhost, make_app: MakeApp, wrong: dict[str, Any], place: int
) -> None:
    """Nor is it listed, and the others are, although there was no stream of records before."""
    app, ids = make_app({"journal": 0}), []

    def send() -> None:
        with celery_rabbit_delay.batch(app):
            for n in range(3):
                more = wrong if n == place else {}
                ids.append(app.send_task("t", (n,), countdown=60, **more).id)

    with pytest.raises(BatchFailed, match="RabbitMQ refuses this message") as failed:
        send()
    assert failed.value.ids == [ids.pop(place)]
    wait_until(lambda: sum(vhost.waiting().values()) >= 2, "the others wait")
    ids.append(app.send_task("t", countdown=70).id)
    assert sorted(one.id for one in celery_rabbit_delay.scheduled(app)) == sorted(ids)


@refused
def test_what_the_broker_refuses_is_sent_once_and_not_listed(
    vhost: Vhost, make_app: MakeApp, wrong: dict[str, Any]
) -> None:
    app = make_app({"journal": 0})
    app.send_task("t", task_id="first", countdown=60)
    with routing_keys() as keys, pytest.raises(MessageRefused):
        app.send_task("t", task_id="refused", countdown=60, **wrong)
    assert len([key for key in keys if "journal" not in key]) == 1
    assert [one.id for one in celery_rabbit_delay.scheduled(app)] == ["first"]


def test_a_refusal_of_the_broker_is_an_error_where_the_task_is_sent(vhost: Vhost, make_app: MakeApp) -> None:
    user = vhost.user("^celery$", "^celery$", "^celery$")
    app = make_app(broker_url=vhost.url("amqp", user))
    with pytest.raises(NotPermitted), celery_rabbit_delay.batch(app):
        app.send_task("t", (0,), countdown=1)


def test_an_interrupt_while_a_batch_is_sent_stays_one(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()

    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise SoftTimeLimitExceeded

    def send() -> None:
        with monkeypatch.context() as patched, celery_rabbit_delay.batch(app):
            app.send_task("t", countdown=30)
            patched.setattr(LimitedConnection, "read_all", interrupted)

    with pytest.raises(SoftTimeLimitExceeded):
        send()


def test_a_batch_needs_install() -> None:
    app = Celery("plain", broker="memory://", set_as_current=False)
    with pytest.raises(UnsupportedConfiguration, match="install"), celery_rabbit_delay.batch(app):
        pass

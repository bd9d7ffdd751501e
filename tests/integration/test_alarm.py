"""No call waits for ever for a broker that blocks publishers during an alarm, but still sends heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import kombu
import pytest
from amqp import Message
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError

from celery_rabbit_delay import scheduled
from celery_rabbit_delay.delay.amqp import sender
from celery_rabbit_delay.operate.broker_connection import closing, own_channel
from celery_rabbit_delay.schedule.amqp import stream_consumer
from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.amqp.waiting_tasks import cancel
from celery_rabbit_delay.schedule.core import streams
from tests.kit.broker import QUICK, Vhost, lead, own_node, publishing, take
from tests.kit.commands import run
from tests.kit.node import alarm
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.more


@pytest.fixture
def vhost() -> Iterator[Vhost]:
    """Yield a vhost on a separate node, because an alarm affects all vhosts."""
    with own_node() as vhost:
        yield vhost


def connect(vhost: Vhost) -> kombu.Connection:
    """Return a connection with a heartbeat of a second, which is shorter than the wait for a confirm."""
    options = {"rabbit_delay": QUICK | {"confirm_timeout": 1}}
    return kombu.Connection(vhost.url(), heartbeat=2, transport_options=options)


def publish(connection: kombu.Connection, body: str) -> None:
    message = Message(body, application_headers={"x-delay": 200})
    connection.default_channel.basic_publish(message, "", "q")


def publishes(connection: kombu.Connection, body: str) -> bool:
    """A busy machine may take longer than a second for this as well."""
    with suppress(AMQPError, OSError):
        publish(connection, body)
        return True
    return False


@contextmanager
def soon() -> Iterator[None]:
    """Assert that something takes seconds, even on a busy machine. What waits for the broker takes a minute or more."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 50


def test_a_task_that_an_alarm_blocks_is_an_error_in_time(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app({"confirm_timeout": 1})
    vhost.declare("celery")
    app.send_task("t", countdown=30)
    blocked = pytest.raises(OperationalError, match="does an alarm block publishers")
    with alarm(vhost.broker.node), soon(), blocked:  # after four tries of Celery's `task_publish_retry`
        app.send_task("t", countdown=30)


def test_during_an_alarm_a_revoke_does_not_wait_and_what_raised_is_not_listed(vhost: Vhost, make_app: MakeApp) -> None:
    options = {"confirm_timeout": 1, "journal": 0}
    app, patient = make_app(options, task_publish_retry_policy={"max_retries": 2}), make_app({"journal": 0})
    vhost.declare("celery")
    for id_ in ("waits", "revoked"):
        patient.send_task("t", countdown=100, task_id=id_)
    patient.control.revoke("creates the stream")
    with alarm(vhost.broker.node):
        for _ in range(4):
            with pytest.raises(OperationalError):
                app.send_task("t", countdown=100)
        for id_ in ("revoked", "another", "a third one"):
            with soon():
                patient.control.revoke(id_)

    def listed() -> list[str]:
        return [one.id for one in scheduled(patient)]

    wait_until(lambda: listed() == ["waits"], "RabbitMQ has taken all that was sent during the alarm")


def test_a_command_ends_within_the_time_that_was_set(vhost: Vhost) -> None:
    with vhost.connection() as connection:
        cancel(connection, ["creates the stream"])
    with alarm(vhost.broker.node), soon():
        done = run(vhost.url("amqp"), "--confirm-timeout", "2", "cancel", "x")
    assert done.code == 1
    assert "does an alarm block publishers" in done.err


def test_whoever_waited_in_vain_closes_channels_and_connections_without_waiting(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as unhurried:
        lead(unhurried, "q")
    with alarm(vhost.broker.node):  # which takes longer on a busy machine than a connection may be silent
        connection = connect(vhost)
        connection.default_channel  # noqa: B018
        with soon(), pytest.raises(TimeoutError), closing(connection), own_channel(connection):
            publish(connection, "x")


def test_an_alarm_is_an_error_within_the_time_that_was_set(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    vhost.declare("q")
    stream = streams.changes(vhost.cascade)
    with vhost.connection() as unhurried:  # a busy machine may take longer than a second to declare everything
        lead(unhurried, "q")
        cancel(unhurried, ["x"])
    with ExitStack() as stack:
        with alarm(vhost.broker.node):  # which takes longer on a busy machine than a connection may be silent
            connection, other = (stack.enter_context(connect(vhost)) for _ in range(2))
            for one in (connection, other):
                one.default_channel  # noqa: B018
                with publishing(one):
                    pass
            for body in ("small", "again"):
                with soon(), pytest.raises(TimeoutError, match="does an alarm block publishers"):
                    publish(connection, body)
            with soon(), pytest.raises(OSError):  # noqa: PT011
                publish(other, "x" * 50_000_000)  # more than any socket takes
            # Nor does who reads a stream wait for what an alarm keeps out of it.
            monkeypatch.setattr(stream_consumer, "PATIENCE", 600)
            patient = stack.enter_context(vhost.connection(confirm_timeout=None))
            with soon(), Follower(patient) as reader:
                first = [one.body for one in reader.catch_up(stream)]
                assert first == [one.body for one in reader.read(stream)] != []
                assert not list(reader.catch_up(streams.journal_for(vhost.cascade, 60)))
            with soon(), Follower(patient) as reader:
                assert [one.body for one in reader.catch_up(stream)] == first
                assert not list(reader.catch_up(stream)), "it goes on where it was"
                assert stream.name in reader.streams
        for one in (connection, other):
            wait_until(partial(publishes, one, "after"), "it publishes again")
        bodies: list[str] = []
        while bodies.count("after") < 2:
            bodies += [message.body for message in vhost.take("q", 1)]
        assert set(bodies) <= {"small", "again", "after"}


def test_in_an_event_loop_a_task_is_an_error_in_a_few_seconds(vhost: Vhost) -> None:
    """Its worker has heartbeats to send."""
    vhost.declare("q")
    with vhost.connection(journal=None) as connection:
        publish(connection, "before")
        with alarm(vhost.broker.node):
            sender.limit_this_thread(1)
            try:
                with suppress(TimeoutError):
                    publish(connection, "RabbitMQ may take this one")
                with soon(), pytest.raises(TimeoutError, match="does an alarm block publishers"):
                    publish(connection, "meanwhile")
            finally:
                sender.limit_this_thread(None)
        wait_until(partial(publishes, connection, "after"), "it publishes again")
        assert {message.body for message in take(connection, "q", 2)} >= {"before"}

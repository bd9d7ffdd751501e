"""Records of delayed messages in streams, as the broker has them."""

from __future__ import annotations

import logging
import time

import pytest

from celery_rabbit_delay import CascadeMissing, batch, scheduled
from celery_rabbit_delay.delay.amqp.sender import settle
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.core import journal, streams
from celery_rabbit_delay.schedule.interceptor import paused_of
from tests.kit.broker import Vhost, lead, own_node, publish, take
from tests.kit.frames import routing_keys
from tests.kit.proxy import proxy
from tests.kit.recorded import records

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost

JOURNAL = "celery-rabbit-delay.v3.journal.600"


@pytest.mark.own_vhost
def test_what_is_delayed_for_long_enough_is_recorded_by_default_a_minute_and_without_the_option_nothing(
    vhost: Vhost,
) -> None:
    vhost.declare("q")
    with vhost.connection(journal=None) as connection:
        publish(connection, 60)
    assert not [name for name in vhost.names("queues") if "journal" in name]
    assert records(vhost) == []
    with vhost.connection(journal=10) as connection:
        publish(connection, 9)
        publish(connection, 10, correlation_id="first")
        publish(connection, 60, correlation_id="second", priority=9)
    with vhost.connection() as connection:
        publish(connection, 59)
        publish(connection, 60, correlation_id="by default")
    assert [record.id for record in records(vhost)] == ["first", "second", "by default"]


def test_a_batch_puts_many_records_into_one_message(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options={"journal": 0})
    vhost.declare("celery")
    with batch(app) as producer:
        ids = [app.send_task("t", countdown=60, producer=producer).id for _ in range(250)]
    with batch(app) as producer:
        ids += [app.send_task("t", ("x" * 30_000,), countdown=60, producer=producer).id for _ in range(4)]
    assert sorted(record.id for record in records(vhost)) == sorted(ids)
    with vhost.connection() as connection, Follower(connection) as reader:
        packs = [list(journal.unpack_records(e.body)) for e in reader.read(streams.journal_for(vhost.cascade, 60))]
    sizes = [len(pack) for pack in packs if pack]
    # What an outbox that is missing has returned at first is recorded last.
    assert (sizes[:2], sum(sizes[2:-2]), sizes[-2:]) == ([100, 100], 50, [3, 1])
    assert len(sizes) <= 6


def test_each_stream_gets_messages_of_its_own_size(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app(options={"journal": 0, "max_delay": 3600})
    vhost.declare("celery")
    with batch(app) as producer:
        for size, countdown in ((90_000, 60), (1, 1000), (1, 1000), (50_000, 60)):
            app.send_task("t", ("x" * size,), countdown=countdown, producer=producer)
    with vhost.connection() as connection, Follower(connection) as reader:
        packs = {
            delay: [len(pack) for e in reader.read(stream) if (pack := journal.unpack_records(e.body))]
            for delay, stream in ((d, streams.journal_for(vhost.cascade, d)) for d in (60, 1000))
        }
    assert packs == {60: [1, 1], 1000: [2]}


def test_a_record_is_sent_after_its_message(vhost: Vhost) -> None:
    """What the broker did not take, as during an alarm, must not be listed: moving it would make it run."""
    vhost.declare("q")
    with vhost.connection(journal=0) as connection:
        lead(connection, "q")
        publish(connection, 60)
        with routing_keys() as alone:
            publish(connection, 60)
        producer = connection.Producer()
        with routing_keys() as together, batch(producer):
            for _ in range(3):
                producer.publish("x", routing_key="q", headers={"x-delay": 60_000})
    for keys, amount in ((alone, 1), (together, 3)):
        assert [key.startswith("@.journal.") for key in keys] == [False] * amount + [True]


def test_a_message_that_only_just_fits_is_sent_without_a_record(vhost: Vhost, caplog: pytest.LogCaptureFixture) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as connection:
        connection.Producer().publish("x" * (16 * 1024 * 1024 - 600), routing_key="q", headers={"x-delay": 100})
        publish(connection, 60, correlation_id="second")
    assert len(vhost.take("q", 1)) == 1
    assert [record.id for record in records(vhost)] == ["second"]
    assert "too large" in caplog.text


@pytest.mark.more
def test_a_record_that_rabbitmq_refuses_does_not_refuse_the_next_message() -> None:
    with own_node(conf="max_message_size = 100000") as vhost, vhost.connection(journal=0) as connection:
        vhost.declare("q")
        for body in ("first", *10 * ("x" * 99_990, "next")):
            connection.Producer().publish(body, routing_key="q", headers={"x-delay": 30})
        assert len(vhost.take("q", 21)) == 21


def test_a_record_of_which_the_answer_was_lost_is_told_of_when_nobody_sends_it_again(
    vhost: Vhost, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("q")
    with proxy(vhost.broker.node.port) as between, vhost.connection(port=between.port, journal=0) as connection:
        publish(connection, 0.03)
        between.cut_after = lambda data: b"second" in data and JOURNAL.rpartition(".v3")[2].encode() in data
        publish(connection, 0.03, headers={"second": 2})
    assert "1 stored messages may be missing in lists" in caplog.text


def test_what_is_delivered_is_the_same_with_a_journal_as_without(vhost: Vhost) -> None:
    vhost.declare("q")
    for journal_ in (None, 0):
        with vhost.connection(journal=journal_) as connection:
            publish(connection, 0.1, headers={"mine": 1})
            [message] = take(connection, "q", 1)
            assert message.headers == {"mine": 1}


@pytest.mark.own_vhost
def test_a_passive_publisher_sends_without_a_record_and_warns_once(
    vhost: Vhost, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        publish(connection, 0.1)
    with (
        vhost.connection(has_streams=False, journal=0, declare="passive") as connection,
        caplog.at_level(logging.WARNING),
    ):
        for _ in range(3):
            publish(connection, 0.1)
        with pytest.raises(CascadeMissing, match=r"\.changes'.*run `celery -A APP delay setup`"):
            waiting_tasks.cancel(connection, ["a"])
    assert len(vhost.take("q", 4)) == 4
    [warning] = [record.getMessage() for record in caplog.records]
    assert "`celery -A APP delay setup`" in warning


def test_a_stream_that_was_deleted_is_missed_for_a_minute_and_a_worker_creates_it_again(
    vhost: Vhost, caplog: pytest.LogCaptureFixture
) -> None:
    vhost.declare("q")
    with vhost.connection(journal=0) as connection:
        publish(connection, 60, correlation_id="first")
        vhost.delete_queue(JOURNAL)
        publish(connection, 60, correlation_id="comes back, and a warning says so")
        settle()
        vhost.make_streams({"journal": 0})
        publish(connection, 60, correlation_id="is not recorded yet")
        assert 50 < paused_of[connection][JOURNAL] - time.monotonic() < 60
        paused_of[connection].clear()
        publish(connection, 60, correlation_id="fourth")
    assert [record.id for record in records(vhost)] == ["fourth"]
    [warning] = [record.getMessage() for record in caplog.records]
    assert "sent without being recorded" in warning


@pytest.mark.own_vhost
def test_a_publisher_creates_no_stream_and_says_who_does(vhost: Vhost, caplog: pytest.LogCaptureFixture) -> None:
    vhost.declare("q")
    with vhost.connection(has_streams=False, journal=0) as connection, caplog.at_level(logging.WARNING):
        for _ in range(3):
            publish(connection, 0.1)
    assert len(vhost.take("q", 3)) == 3
    assert not [name for name in vhost.names("queues") if "journal" in name or "changes" in name]
    [warning] = [record.getMessage() for record in caplog.records]
    assert "a worker with schedule=True creates it when it starts, or `celery -A APP delay setup`" in warning


def test_each_task_of_a_minute_is_recorded_although_a_moment_of_it_has_passed(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app({"tick": 0.125, "max_delay": 86_400, "journal": 60})
    vhost.declare("celery")
    sent = [app.send_task("t", countdown=60).id for _ in range(60)]  # the first one connects
    assert sorted(task.id for task in scheduled(app)) == sorted(sent)

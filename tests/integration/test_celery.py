"""What a Celery app publishes, without a worker."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import celery
import kombu
import kombu.pools
import pytest
from celery import chain, chord, group
from celery.beat import ScheduleEntry, Scheduler
from celery.exceptions import QueueNotFound
from celery.schedules import schedule
from celery.utils.time import maybe_iso8601, maybe_make_aware
from freezegun import freeze_time

from celery_rabbit_delay import DestinationNotFound, InvalidDelay
from celery_rabbit_delay.delay.amqp import declare
from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.operate.addresses import read
from tests.kit.broker import Vhost, lead, take
from tests.kit.proxy import proxy
from tests.kit.wait import wait_until

from .conftest import MakeApp

pytestmark = pytest.mark.shared_vhost


def waiting(vhost: Vhost, amount: int = 1, *arrived: str) -> list[Any]:
    """Take and return the raw messages in levels and outboxes, and those in the queues that `arrived`."""
    names = [name for name in vhost.names("queues") if ".delay." in name or ".out." in name or name in arrived]
    with vhost.plain() as connection:
        # Not basic.get: up to RabbitMQ 4.0, it may stop a message that expires in this moment.
        found = take(connection, names, amount)
        assert [declare.message_count(connection.default_channel, name) for name in names] == [0] * len(names)
    assert len(found) == amount
    return found


def due(message: Any) -> datetime:
    return datetime.fromtimestamp(message.headers[HEADER]["due"] / 1000, timezone.utc)


NOW = datetime(2030, 7, 1, 12, tzinfo=timezone.utc)


#: What all mean a hundred seconds from then on.
ETAS: list[tuple[dict[str, Any], Any]] = [
    ({}, NOW + timedelta(seconds=100)),
    ({}, NOW.astimezone(ZoneInfo("Asia/Tokyo")) + timedelta(seconds=100)),
    ({}, "2030-07-01T12:01:40+00:00"),
    ({}, "2030-07-01T12:01:40Z"),
    ({}, "2030-07-01T12:01:40"),
    ({}, datetime(2030, 7, 1, 12, 1, 40)),  # noqa: DTZ001
    ({"timezone": "Europe/Berlin"}, datetime(2030, 7, 1, 12, 1, 40)),  # noqa: DTZ001
    ({"timezone": "Europe/Berlin", "enable_utc": False}, datetime(2030, 7, 1, 12, 1, 40)),  # noqa: DTZ001
    ({"timezone": "America/New_York"}, "2030-07-01T12:01:40"),
    ({"timezone": "America/New_York", "enable_utc": False}, NOW + timedelta(seconds=100)),
]


def test_an_eta_of_any_kind_means_what_celerys_worker_reads(vhost: Vhost, make_app: MakeApp) -> None:
    for conf, eta in ETAS:
        app = make_app(**conf)
        with app.connection_for_write() as connection:
            connection.connect()
            with freeze_time(NOW):
                app.send_task("t", eta=eta, connection=connection)
        [message] = waiting(vhost, 1)
        assert due(message) == NOW + timedelta(seconds=100), (conf, eta)
        read = maybe_make_aware(maybe_iso8601(message.headers["eta"]), app.timezone)
        assert read == NOW + timedelta(seconds=100), (conf, eta)
        assert message.delivery_info["routing_key"].startswith("@.")


def ticks_of(message: Any) -> int:
    """Return for how many ticks of 10 ms the levels and the outbox of a raw message hold it."""
    key = message.delivery_info["routing_key"]
    levels = [int(word[1:]) for word in key.split(".") if word.startswith("^")]
    addresses = filter(None, map(read, [key, *message.headers.get("CC", ())]))
    return sum(1 << power for power in levels) + sum(address.delay for address in addresses) // 10


@pytest.mark.parametrize("conf", [{}, {"timezone": "Europe/Berlin"}, {"enable_utc": False}])
def test_a_countdown_of_any_size_is_exact(vhost: Vhost, make_app: MakeApp, conf: Any) -> None:
    app = make_app(**conf)
    with app.connection_for_write() as connection:
        connection.connect()
        app.amqp.queues["celery"](connection.default_channel).declare()
        for countdown in (20.05, 30.5, 60, 99.9):
            lead(connection, "celery", delays=[countdown])
            with freeze_time(NOW):
                app.tasks["t"].apply_async(countdown=countdown, connection=connection)
            [message] = waiting(vhost, 1, "celery")
            wanted = countdown * 100  # ticks of 10 ms
            assert wanted <= ticks_of(message) <= wanted + 1 + wanted * 0.001, countdown
            if countdown == 60:
                assert message.delivery_info["routing_key"] == "@.60s.+celery"


@pytest.mark.own_vhost
def test_nothing_to_wait_for_goes_straight_through(vhost: Vhost, make_app: MakeApp) -> None:
    task = make_app({"schedule": False}).tasks["t"]
    for when in ({"countdown": 0}, {"countdown": -5}, {"eta": NOW - timedelta(days=9999)}):
        task.apply_async(**when)
        assert len(vhost.take("celery", 1)) == 1
        assert vhost.names("queues") == ["celery"]


def test_a_delay_or_destination_that_cannot_be_is_an_error_where_the_user_sees_it(
    vhost: Vhost, make_app: MakeApp
) -> None:
    app = make_app()
    for eta in ("tomorrow", "2030-13-01T00:00:00"):
        with pytest.raises(InvalidDelay, match="cannot read the eta"):
            app.send_task("t", eta=eta)
    with pytest.raises(InvalidDelay, match="max_delay, 120 s"):
        app.send_task("t", countdown=121)
    assert vhost.count("celery") == 0
    with pytest.raises(DestinationNotFound, match="declare it before you publish"):
        app.send_task("t", exchange="nowhere", routing_key="x", countdown=1)
    app.send_task("t", countdown=1)


def test_a_task_for_a_queue_that_does_not_exist_is_an_error_unless_celery_creates_the_queue(
    vhost: Vhost, make_app: MakeApp
) -> None:
    """As docs/reference.md says."""
    make_app().send_task("t", queue="created", countdown=4)
    assert "created" in vhost.names("queues")
    with pytest.raises(QueueNotFound, match="missing"):
        make_app(task_create_missing_queues=False).send_task("t", queue="missing", countdown=4)
    with vhost.connection() as connection, pytest.raises(DestinationNotFound, match="queue 'missing'"):
        connection.Producer().publish("x", routing_key="missing", headers={"x-delay": 4000})
    assert "missing" not in vhost.names("queues")


@pytest.mark.parametrize(
    ("options", "exchange", "key", "queue", "cc"),
    [
        ({}, "", "celery", "celery", ["@.+celery"]),
        ({"queue": "mail"}, "", "mail", "mail", ["@.+mail"]),
        (
            {"routing_key": "mail.urgent", "exchange": "mails"},
            "mails",
            "mail.urgent",
            "urgent",
            ["@.mails+", "mail.urgent"],
        ),
        ({"queue": "urgent"}, "mails", "mail.urgent", "urgent", ["@.mails+mail%2Eurgent"]),
    ],
)
def test_a_task_goes_to_the_queue_or_the_exchange_it_was_sent_to(
    vhost: Vhost, make_app: MakeApp, options: Any, exchange: str, key: str, queue: str, cc: list[str]
) -> None:
    mails = kombu.Exchange("mails", "topic")
    queues = [kombu.Queue("celery"), kombu.Queue("urgent", mails, routing_key="mail.urgent")]
    app = make_app({"outboxes": ()}, task_queues=queues)
    with app.connection_for_write() as connection:
        queues[1](connection.default_channel).declare()
    app.send_task("t", countdown=3, **options)
    [message] = vhost.take(queue, 1)
    assert (message.headers[HEADER]["exchange"], message.headers[HEADER]["routing_key"]) == (exchange, key)
    assert message.headers.get("CC", cc) == cc, "RabbitMQ before 4.0 removes it from what has reached a queue"


@pytest.mark.own_vhost
@pytest.mark.parametrize("exchange_type", ["direct", "topic"])
def test_native_delayed_delivery_stays_out_of_the_way_without_a_warning(
    vhost: Vhost, make_app: MakeApp, exchange_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(task_default_queue_type="quorum", task_default_exchange_type=exchange_type)
    with caplog.at_level(logging.WARNING):
        app.send_task("t", countdown=0.05)
    assert len(vhost.take("celery", 1)) == 1
    assert caplog.records == []
    assert not [name for name in vhost.names("exchanges") if name.startswith("celery_delayed")]


def test_canvas_and_beat_are_covered(vhost: Vhost, make_app: MakeApp) -> None:
    app = make_app()
    t = app.tasks["t"]
    t.si().set(countdown=30).apply_async()
    (t.si() | t.si()).apply_async(countdown=31)
    chain(t.si(), t.si().set(countdown=32)).apply_async()  # the second leaves when the first has run
    group(t.si().set(countdown=33), t.si().set(countdown=33)).apply_async()
    group(t.si(), t.si()).apply_async(countdown=33)
    chord([t.si().set(countdown=34), t.si().set(countdown=34)], t.si()).apply_async()
    entry = ScheduleEntry(name="e", task="t", schedule=schedule(1), options={"countdown": 35}, app=app)
    Scheduler(app, lazy=True).apply_async(entry)
    assert vhost.count("celery") == 1
    wait_until(lambda: sum(vhost.waiting().values()) == 1 + 1 + 2 + 2 + 2 + 1, "all wait, none between two levels")
    # Before 5.7, that of a whole chord is Celery's interval to look whether its header has run.
    chord([t.si(), t.si()], t.si()).apply_async(countdown=36)
    delayed, at_once = (2, 0) if celery.VERSION >= (5, 7) else (0, 2)
    assert vhost.count("celery") == 1 + at_once
    wait_until(lambda: sum(vhost.waiting().values()) == 9 + delayed, "its header waits")


@pytest.mark.parametrize("expires", [0.02, 60])
def test_expires_neither_cuts_the_delay_short_nor_gets_lost(vhost: Vhost, make_app: MakeApp, expires: float) -> None:
    make_app().tasks["t"].apply_async(countdown=0.4, expires=expires)
    [message] = vhost.take("celery", 1)
    assert message.headers["expires"]


def test_an_app_whose_broker_came_back_without_its_queue_declares_it_again(vhost: Vhost, make_app: MakeApp) -> None:
    with proxy(vhost.broker.node.port) as between:
        app = make_app(broker_url=between.url(vhost.url("amqp")))
        app.send_task("t", countdown=0.05)
        assert vhost.take("celery", 1)
        between.cut()
        vhost.delete_queue("celery")
        app.send_task("t", countdown=0.05)
        assert vhost.take("celery", 1)


def test_a_worker_consumes_a_queue_whose_name_is_too_long_for_an_outbox_and_says_so(
    vhost: Vhost, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    app, name = make_app(), "x" * 230
    vhost.declare(name)
    with app.connection_for_write() as connection, app.amqp.TaskConsumer(connection, queues=[kombu.Queue(name)]) as one:
        assert one.consuming_from(name)
    assert "cannot create the cascade or the outboxes" in caplog.text
    assert "is too long for delayed messages" in caplog.text

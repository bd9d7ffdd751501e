"""Reading the streams writes nothing, and finds what was confirmed before."""

from __future__ import annotations

from typing import Any

import pytest

from celery_rabbit_delay import CascadeConflict, NotPermitted
from celery_rabbit_delay.schedule.amqp import waiting_tasks
from celery_rabbit_delay.schedule.amqp.create_streams import bind_stream, make_streams
from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.core import streams
from tests.kit.broker import Vhost, lead, publish

pytestmark = pytest.mark.own_vhost

RECORDED: dict[str, Any] = {"journal": 0}


def listed(vhost: Vhost, **options: Any) -> list[str]:
    with vhost.connection(**options) as connection:
        return [waiting.id for waiting in waiting_tasks.scheduled(connection)]


def test_a_task_that_was_just_sent_is_in_the_list_and_one_that_was_just_cancelled_is_not(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, correlation_id="stays")
        for number in range(10):
            publish(connection, 60, correlation_id=str(number))
            assert listed(vhost) == ["stays", str(number)]
            waiting_tasks.cancel(connection, [str(number)])
            assert listed(vhost) == ["stays"]


def test_a_user_with_read_permission_alone_lists_and_leaves_nothing(vhost: Vhost) -> None:
    vhost.declare("q")
    user = vhost.user("^$", "^$", ".*")
    with vhost.connection(**RECORDED) as connection:
        publish(connection, 60, correlation_id="a")
        waiting_tasks.cancel(connection, ["b"])

        def written() -> dict[str, int | None]:
            with Follower(connection) as reader:
                extents = reader.extents(streams.all_streams(vhost.cascade))
            return {stream.name: extent.last for stream, extent in extents.items()}

        before = written()
        assert len(before) == 2
        for _ in range(3):
            assert listed(vhost, user=user) == ["a"]
        assert written() == before
    blind = vhost.user("^$", ".*", "^$")
    with pytest.raises(NotPermitted, match=r"read access|access to queue"):
        listed(vhost, user=blind)


def test_streams_that_are_empty_are_read_at_once(vhost: Vhost) -> None:
    with vhost.connection(has_streams=False, **RECORDED) as connection, Follower(connection) as reader:
        wanted = streams.all_streams(vhost.cascade)
        assert reader.extents(wanted) == {}
        with vhost.connection() as other:
            vhost.declare("q")
            lead(other, "q")
        for stream in wanted:
            bind_stream(connection.default_channel, vhost.cascade, stream)
        assert set(reader.extents(wanted).values()) == {(0, -1)}
        assert [list(reader.read(stream)) for stream in wanted] == [[] for _ in wanted]


def test_apps_that_keep_cancellations_for_other_times_are_told_what_to_do(vhost: Vhost) -> None:
    year = 365 * 24 * 3600
    with vhost.connection() as usual, vhost.connection(max_delay=year / 12) as short:
        waiting_tasks.cancel(usual, ["a"])
        waiting_tasks.cancel(short, ["b"])
    with (
        vhost.connection(max_delay=3 * year) as long,
        pytest.raises(CascadeConflict, match="give apps with the same prefix the same `max_delay`"),
    ):
        make_streams(long, [streams.changes_of(long.transport.delay_options)])

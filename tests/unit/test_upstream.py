"""The private parts of Celery, Kombu and py-amqp do what this package relies on."""

from __future__ import annotations

import re
import socket
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import amqp
import kombu
import pytest
from amqp import spec
from celery import Celery

from celery_rabbit_delay import upstream


@pytest.mark.filterwarnings("ignore:(?s).*The 'queue' task attribute is deprecated")
@pytest.mark.parametrize(
    ("routes", "names"),
    [
        (None, set()),
        ("tests.unit.test_upstream.route", set()),
        (
            {"shop.mail": "mail", "shop.*": {"queue": "rest", "priority": 3}, "shop.x": {"exchange": "x"}},
            {"mail", "rest"},
        ),
        ([[(re.compile("feed.*"), {"queue": kombu.Queue("feeds")}), ("feed.y", "y")]], {"feeds", "y"}),
        ([{"a": "one"}, {"b.*": "two"}], {"one", "two"}),
    ],
)
def test_the_queues_that_an_app_routes_to_are_known(routes: Any, names: set[str]) -> None:
    app = Celery("shop", set_as_current=False)
    app.conf.task_routes = routes
    app.task(name="own", queue="of the task", shared=False)(route)
    assert upstream.queues_routed_to(app) == {*names, "of the task"}


def route(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a function that chooses is not called")


def connection_to(frames: list[Any], **options: Any) -> Any:
    """Return a connection that writes its frames into a list."""
    connection = amqp.Connection(**options)
    connection._transport = SimpleNamespace(having_timeout=lambda timeout: nullcontext(), sock=None)
    connection._frame_writer = lambda *frame: frames.append(frame)
    return connection


def test_a_channel_that_is_closed_without_waiting_is_closed_once() -> None:
    frames: list[Any] = []
    channel = amqp.Channel(connection_to(frames))
    upstream.close_without_waiting(channel)
    assert frames == []  # it was not open yet
    channel.is_open = True
    upstream.close_without_waiting(channel)
    upstream.close_without_waiting(channel)
    [(_, channel_id, method, *_)] = frames
    assert (channel_id, method) == (channel.channel_id, spec.Channel.Close)


def test_a_closed_socket_is_closed_for_this_process_alone() -> None:
    ours, theirs = socket.socketpair()
    child = socket.fromfd(ours.fileno(), ours.family, ours.type)  # another process's copy
    connection = amqp.Connection()
    upstream.close_socket(connection)  # was never open
    connection._transport = SimpleNamespace(sock=ours)
    upstream.close_socket(connection)
    assert connection._transport.sock is None
    assert ours.fileno() == -1
    child.sendall(b"still open")
    assert theirs.recv(10) == b"still open"
    upstream.close_socket(connection)
    for end in (child, theirs):
        end.close()

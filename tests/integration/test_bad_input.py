"""Operators' commands survive what lies in queues and what is typed."""

from __future__ import annotations

from typing import Any

import pytest
from amqp import Message

from celery_rabbit_delay.core.headers import HEADER
from testkit.broker import QUICK, Vhost
from testkit.commands import CASCADE, management, run
from testkit.wait import wait_until

ODD: list[dict[str, Any]] = [
    {},
    {HEADER: "not ours"},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 10**15}, "CC": ["q"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": ""}, "CC": ["q", "@.=+q"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 0}, "CC": ["x" * 250, "@.=+q"]},
    {"task": b"\xff", "id": b"\xfe", "CC": ["q"]},
    {"task": "\x1b]0;owned\x07", "id": "1"},
]


def put(vhost: Vhost, queue: str) -> None:
    with vhost.plain() as connection:
        channel = connection.default_channel
        place = f"{CASCADE.root}.put"
        channel.exchange_declare(place, "fanout", durable=True, auto_delete=False)
        channel.queue_bind(queue, place)
        for headers in ODD:
            channel.basic_publish(Message("odd", application_headers=headers), place)
    wait_until(lambda: vhost.count(queue) >= len(ODD), "all are there")


def test_orphans_that_nobody_understands_are_listed_and_stay(vhost: Vhost) -> None:
    vhost.declare("q")
    assert run(vhost.url("amqp"), "setup").code == 0
    put(vhost, CASCADE.orphans)
    for arguments in (("list",), ("list", "--json")):
        listed = run(vhost.url("amqp"), "orphans", *arguments)
        assert listed.code == 0
        assert len(listed.out.splitlines()) == len(ODD)
        assert "\x1b" not in listed.out
    replayed = run(vhost.url("amqp"), "orphans", "replay", "--any-queue")
    assert replayed.code == 3
    assert "stays: " in replayed.out
    assert "\x1b" not in replayed.out


def test_messages_that_cannot_move_do_not_hinder_the_others(vhost: Vhost) -> None:
    vhost.declare("q", "gone")
    with vhost.connection() as connection:
        for queue in ("gone", "q", "gone", "q"):
            connection.Producer().publish("x", routing_key=queue, headers={"x-delay": 100_000})
    vhost.delete_queue("gone")
    longest = CASCADE.levels[-1].queue
    put(vhost, longest)
    moved = run(vhost.url("amqp"), "migrate", "--any-queue", "--to-prefix", "new")
    assert moved.code == 3
    assert "2 moved, " in moved.out
    assert "no queue 'gone'" in moved.out
    assert "it has no header of ours" in moved.out
    wait_until(lambda: sum(vhost.count(level.queue) for level in CASCADE.levels) == 2 + len(ODD), "the others stay")


def test_only_queues_that_were_named_are_sent_to(vhost: Vhost) -> None:
    vhost.declare("q", "secret")
    with vhost.connection() as connection:
        for queue in ("q", "secret"):
            connection.Producer().publish("x", routing_key=queue, headers={"x-delay": 100_000})
    moved = run(vhost.url("amqp"), "--queue", "q", "migrate", "--to-prefix", "new")
    assert (moved.code, "queue 'secret' is none of those that were named" in moved.out) == (3, True)
    assert "1 moved, 1 left" in moved.out


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "the broker URL cannot be read"),
        ("localhost", "the broker URL cannot be read"),
        ("amqp://me:secret@localhost:port//", "the broker URL cannot be read"),
        ("amqp://me:secret@[::1]:1//", "no connection to amqp://"),
        ("redis://:secret@localhost", "use a broker_url that begins with amqp://"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_error_without_its_password(url: str, says: str) -> None:
    failed = run(url, "status")
    assert failed.code in (1, 2)
    assert says in failed.err
    assert "secret" not in failed.text


@pytest.mark.parametrize("url", ["localhost", "http://h:port", "ftp://h", "http://"])
def test_a_management_url_that_cannot_be_used_is_an_error(vhost: Vhost, url: str) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    failed = run(vhost.url("amqp"), "status", "--management-url", url)
    assert failed.code == 1
    assert "the URL of the management API cannot be read" in failed.err


@pytest.mark.parametrize("command", [("list",), ("replay", "--any-queue"), ("purge", "--yes")])
def test_a_mistyped_prefix_is_an_error(vhost: Vhost, command: tuple[str, ...]) -> None:
    failed = run(vhost.url("amqp"), "--prefix", "celery-rabit-delay", "orphans", *command)
    assert failed.code == 1
    assert "there is no queue 'celery-rabit-delay.v2.10ms.orphans': check --prefix" in failed.err


def test_a_cascade_is_not_moved_onto_itself(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection() as connection:
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 100_000})
    refused = run(vhost.url("amqp"), "migrate", "--any-queue", "--to-broker", vhost.url("amqp"))
    assert refused.code == 2
    assert "onto itself" in refused.err
    assert vhost.cascade.tick.total_seconds() == QUICK["tick"]


def test_a_full_queue_is_named_with_what_to_do(vhost: Vhost) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with vhost.plain() as connection:
        connection.default_channel.queue_declare("full", durable=True, auto_delete=False, arguments=arguments)
    with vhost.connection() as connection:
        for _ in range(5):
            connection.Producer().publish("x", routing_key="full", headers={"x-delay": 50})
    said = "4 due for queue 'full': queue 'full' is full and refuses more: consume from it, or raise its limit"
    wait_until(lambda: said in run(vhost.url("amqp"), "status", *management(vhost)).out, "the API has counted")

"""The operators' commands survive malformed messages and malformed arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import ConsumerCancelled

from celery_rabbit_delay.delay.core.headers import HEADER
from celery_rabbit_delay.operate.replaying import look
from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.amqp.waiting_tasks import cancel
from celery_rabbit_delay.schedule.core import streams
from tests.kit.broker import REFUSING, Vhost, publish
from tests.kit.commands import CASCADE, celery, make_orphans, management, run
from tests.kit.frames import has_input
from tests.kit.wait import wait_until

pytestmark = pytest.mark.shared_vhost

ODD: list[dict[str, Any]] = [
    {},
    {HEADER: "not ours"},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 10**15}, "CC": ["q"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": ""}, "CC": ["q", "@.=+q"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 0}, "CC": ["x" * 300, "@.=+q"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": "orders", "due": 0}, "CC": ["x" * 300, "@.+orders"]},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 0}, "CC": ["q", "@.+q"], "BCC": ["x" * 300]},
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": -1, "n": -1}, "CC": ["q", "@.+q"]},
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


@pytest.mark.leaves_orphans
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


@pytest.mark.parametrize(
    "url", ["amqp://me:s3c/ret@host//", "amqp://me:s3cret@host:port//", "amqp://me:s3c;ret@host//"]
)
def test_the_url_of_an_app_that_cannot_be_used_is_an_error_without_its_password(url: str) -> None:
    directory = Path(__file__).parents[2] / "examples" / "quickstart"
    failed = celery("-A", "shop", "delay", "status", directory=directory, CELERY_BROKER_URL=url)
    assert failed.code == 1
    assert "the broker URL cannot be read" in failed.err
    assert not [part for part in ("s3c", "ret") if part in failed.text]


@pytest.mark.own_vhost
def test_a_mistyped_prefix_is_an_error_and_for_teardown_nothing_to_delete(vhost: Vhost) -> None:
    for command in (
        *("orphans list", "orphans replay --any-queue", "orphans purge --yes", "list", "cancel an-id"),
        *("reschedule an-id --countdown 60", "run-now an-id"),
    ):
        failed = run(vhost.url("amqp"), "--prefix", "celery-rabit-delay", *command.split())
        assert failed.code == 1, command
        assert re.search(r"there is no cascade 'celery-rabit-delay(.v3.10ms)?': check --prefix", failed.err), command
    done = run(vhost.url("amqp"), "--prefix", "celery-rabit-delay", "teardown", "--yes")
    assert (done.code, done.out) == (0, "there is no such cascade\n")
    assert (vhost.names("exchanges"), vhost.names("queues")) == ([], [])


def test_what_takes_nothing_is_named_with_what_to_do(vhost: Vhost) -> None:
    vhost.declare("full", arguments=REFUSING)
    vhost.declare(exchange="nobody")
    with vhost.connection() as connection:
        connection.Producer().publish("x", exchange="nobody", headers={"x-delay": 50})
        for _ in range(5):
            connection.Producer().publish("x", routing_key="full", headers={"x-delay": 50})
    said = {
        "4 due for queue 'full': queue 'full' is full and refuses more: consume from it, or raise its limit",
        "1 due for exchange 'nobody': no queue is bound for it: bind one",
    }
    url = vhost.url("amqp")

    def counted() -> int:
        rows = vhost.broker.api("GET", f"/queues/{vhost.name}?columns=name,messages")
        return sum(row.get("messages", 0) for row in rows if ".out." in row["name"])

    wait_until(lambda: counted() == 5, "the API has counted")
    wait_until(lambda: said <= {*run(url, "status", *management(vhost)).out.splitlines()}, "and how many are stuck")
    assert run(url, "status", *management(vhost)).code == 3
    assert run(url, "status").code == 0  # AMQP shows no outboxes


def test_no_name_that_a_stranger_chose_controls_the_terminal(vhost: Vhost) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    name = "\x1b]0;owned\x07"
    vhost.declare(name)
    with vhost.plain() as connection:
        connection.default_channel.queue_bind(name, CASCADE.levels[0].done, "k")
    shown = run(vhost.url("amqp"), "verify", *management(vhost))
    assert (shown.code, r"\x1b]0;owned\x07" in shown.out) == (3, True)
    assert "\x1b" not in shown.text


def test_a_body_in_a_stream_or_a_queue_stays_the_bytes_that_it_is(vhost: Vhost) -> None:
    """py-amqp would decode it as its sender says, even into what is no text."""
    vhost.declare("q")
    body, stream = b"\\ud800", streams.changes(vhost.cascade)
    with vhost.connection() as connection, Follower(connection) as reader:
        cancel(connection, ["before"])
        with vhost.plain() as plain:
            for place in ((vhost.cascade.ingest, stream.routing_key), ("", "q")):
                plain.default_channel.basic_publish(Message(body, content_encoding="unicode_escape"), *place)
        wait_until(lambda: body in [entry.body for entry in reader.read(stream)], "it is read")
        wait_until(lambda: vhost.count("q") == 1, "it is there")
        assert [message.body for message in look(connection, "q")] == [body]


@pytest.mark.leaves_orphans
def test_orphans_for_a_queue_that_refuses_them_stay_and_say_why(vhost: Vhost) -> None:
    make_orphans(vhost, 2)
    vhost.declare("gone", arguments=REFUSING | {"x-max-length": 0})
    replayed = run(vhost.url("amqp"), "--queue", "gone", "orphans", "replay")
    assert (replayed.code, replayed.out.count("could not store the message")) == (3, 2)
    wait_until(lambda: vhost.count(CASCADE.orphans) == 2, "both stay")


def test_a_consumer_that_is_cancelled_meanwhile_is_not_the_error_of_a_delayed_message(vhost: Vhost) -> None:
    vhost.declare("q", "x")
    with vhost.connection() as connection:
        publish(connection, 0.01)
        connection.default_channel.basic_consume("x", callback=lambda message: None)
        vhost.delete_queue("x")
        wait_until(lambda: has_input(connection), "the broker has cancelled it")
        publish(connection, 0.01)
        with pytest.raises(ConsumerCancelled):
            connection.drain_events(timeout=60)

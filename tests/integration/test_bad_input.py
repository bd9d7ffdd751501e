"""The operators' commands survive malformed messages and malformed arguments."""

from __future__ import annotations

import json
import re
import struct
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from amqp import Message
from amqp.exceptions import ConsumerCancelled

from celery_rabbit_delay.amqp.follower import Follower
from celery_rabbit_delay.amqp.schedule import cancel
from celery_rabbit_delay.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.amqp.unreadable import is_unreadable, take_anything
from celery_rabbit_delay.core import streams
from celery_rabbit_delay.core.changes import Changes
from celery_rabbit_delay.core.headers import HEADER
from tests.kit.broker import REFUSING, Vhost, publish, wait_to_learn
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


FORGERIES: list[dict[str, Any]] = [
    *({"x-delay-key": ["a"]}, {"CC": ["x" * 300]}, {"CC": 5}, {"BCC": [5]}, {"CC": []}, {"eta": 5, "task": "t"})
]

#: The same, but as if they waited.
FORGED: list[dict[str, Any]] = [
    {HEADER: {"prefix": CASCADE.root, "exchange": "", "due": 10**15, "n": 5}, "CC": ["q", "@.+q"], **more}
    for more in FORGERIES
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
    assert said == {*run(url, "orphans", "list", *management(vhost)).out.splitlines()}
    listed = run(url, "orphans", "list", "--json", *management(vhost)).out.splitlines()
    assert {json.loads(line)["stuck"] for line in listed} == {4, 1}
    assert not run(url, "orphans", "list").out  # AMQP shows no outboxes
    verified = run(url, "verify", *management(vhost))
    assert verified.code == 3
    assert said <= {*verified.out.splitlines()}
    assert run(url, "verify").code == 0


def test_no_name_that_a_stranger_chose_controls_the_terminal(vhost: Vhost) -> None:
    assert run(vhost.url("amqp"), "setup").code == 0
    name = "\x1b]0;owned\x07"
    vhost.declare(name)
    with vhost.plain() as connection:
        connection.default_channel.queue_bind(name, CASCADE.levels[0].done, "k")
    for command in ("verify", "plan"):
        shown = run(vhost.url("amqp"), command, *management(vhost))
        assert (shown.code, r"\x1b]0;owned\x07" in shown.out) == (3, True)
        assert "\x1b" not in shown.text


def table(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def unreadable(key: str) -> list[tuple[bytes, bytes]]:
    """Return properties and routing keys of messages that RabbitMQ routes by a key, and that py-amqp cannot read."""
    named = table(b"\x01nS" + table(b"\x0fx-stream-offset"))
    unicode_escape = b"\x0eunicode_escape"
    return [
        (b"\x04\x00\x01\xff", key.encode()),  # a correlation id that is no UTF-8
        (b"\x20\x00" + table(b"\x01tT\x7f" + b"\xff" * 7), key.encode()),  # a time that is none
        (b"\x24\x00" + named + b"\x01\xff", key.encode()),  # and an offset that is hard to find
        (b"\x40\x00" + unicode_escape, key.encode()),  # as the sender says, the body is a lone surrogate
        (b"\x20\x00" + table(b"\x02CCA" + table(b"S" + table(key.encode()))), b"\xff"),
    ]


def put_unreadable(vhost: Vhost, exchange: str, key: str) -> int:
    """Publish messages that py-amqp cannot read; return their number."""
    messages = unreadable(key)
    with vhost.plain() as connection:
        for properties, routing_key in messages:
            message = Message(b"\\ud800")
            message._serialize_properties = partial(bytes, properties)
            connection.default_channel.basic_publish(message, exchange, routing_key)
    return len(messages)


def test_what_nobody_can_read_in_a_stream_stops_nobody(vhost: Vhost) -> None:
    stream = streams.changes(vhost.cascade)
    running, starting = Changes(time.time), Changes(time.time)
    with vhost.connection() as connection, vhost.connection() as worker, Follower(connection) as follower:
        cancel(connection, ["before"])
        worker.connection.following.catch_up(stream, running.apply)
        followed: list[StreamMessage] = []
        follower.follow({stream: None})
        amount = put_unreadable(vhost, vhost.cascade.ingest, stream.routing_key)
        cancel(connection, ["after"])
        wait_to_learn(worker, lambda: running.cancels("after"))
        while not followed or b"after" not in followed[-1].body:
            entry = follower.receive(10)
            assert entry
            followed.append(entry)
        assert [entry.offset for entry in followed] == list(range(len(followed)))
        assert [entry.body for entry in followed].count(b"\\ud800") == amount
        with Follower(connection) as reader:
            read = list(reader.read(stream))
            assert reader.at(stream, followed[-2].offset) == followed[-2]
        assert read[: len(followed)] == followed
        connection.connection.following.catch_up(stream, starting.apply, patience=0)
        assert starting.cancels("after")


def test_what_nobody_can_read_in_a_queue_can_be_got_and_given_back(vhost: Vhost) -> None:
    vhost.declare("q", exchange="e", kind="topic")
    amount = put_unreadable(vhost, "e", "q")
    wait_until(lambda: vhost.count("q") == amount, "all are there")
    with vhost.connection() as connection:
        channel = connection.channel()
        take_anything(channel)
        got = [channel.basic_get("q") for _ in range(amount)]
        assert {message.body for message in got} == {b"\\ud800"}
        assert [is_unreadable(message) for message in got] == [True, True, True, False, True]
        channel.close()
    wait_until(lambda: vhost.count("q") == amount, "all are there again")


@pytest.mark.leaves_orphans
def test_orphans_for_a_queue_that_refuses_them_stay_and_say_why(vhost: Vhost) -> None:
    make_orphans(vhost, 2)
    vhost.declare("gone", arguments=REFUSING | {"x-max-length": 0})
    replayed = run(vhost.url("amqp"), "--queue", "gone", "orphans", "replay")
    assert (replayed.code, replayed.out.count("could not store the message")) == (3, 2)
    wait_until(lambda: vhost.count(CASCADE.orphans) == 2, "both stay")


@pytest.mark.leaves_orphans
def test_what_nobody_can_read_stays_with_the_orphans_and_in_levels(vhost: Vhost) -> None:
    make_orphans(vhost, 1)
    vhost.declare("gone")
    with vhost.plain() as connection:
        channel = connection.default_channel
        channel.exchange_declare("put", "topic", durable=True, auto_delete=False)
        for queue in (CASCADE.orphans, CASCADE.levels[-1].queue):
            channel.queue_bind(queue, "put", "k")
    amount = put_unreadable(vhost, "put", "k")
    wait_until(lambda: vhost.count(CASCADE.orphans) == amount + 1, "all are there")
    listed = run(vhost.url("amqp"), "orphans", "list")
    assert (listed.code, len(listed.out.splitlines())) == (0, amount + 1)
    replayed = run(vhost.url("amqp"), "--queue", "gone", "orphans", "replay")
    assert (replayed.code, replayed.out.count("its properties cannot be read")) == (3, amount - 1)
    assert vhost.count("gone") == 1


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

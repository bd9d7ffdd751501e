"""Round delays take one hop, through an outbox of their own; whatever outboxes exist, every message arrives."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import kombu
import pytest
from amqp import spec

from celery_rabbit_delay import batch
from celery_rabbit_delay.delay.amqp import declare, routes
from celery_rabbit_delay.delay.core.destination import Destination
from tests.kit.broker import Vhost, lead
from tests.kit.frames import frames, routing_keys

pytestmark = pytest.mark.shared_vhost

#: Outboxes of 0.03 to 1.1 s, for ticks of 10 ms.
SHORT: dict[str, Any] = {"outboxes": [0.03, 0.07, 0.25, 0.61, 1.1], "max_delay": 20}

#: So that a delay is round even where a busy machine takes long to publish it.
EASY: dict[str, Any] = {"slack": (0.9, 2.7)}

Q = Destination("", "q")


def send(connection: kombu.Connection, milliseconds: float, queue: str = "q", **more: Any) -> None:
    body = {"due": time.time() + milliseconds / 1000}
    connection.Producer().publish(body, routing_key=queue, headers={"x-delay": milliseconds}, **more)


def arrive(vhost: Vhost, amount: int, queue: str = "q", timeout: float = 60) -> list[list[str]]:
    """Take so many messages, none early and none twice; return the queues that each has passed, the first one first."""
    early, ways = [], []
    for message in vhost.take(queue, amount, timeout):
        early += [message.payload["due"] - time.time()] if message.payload["due"] > time.time() else []
        ways.append([death["queue"] for death in reversed(message.headers["x-death"])])
    assert not early
    time.sleep(0.1)  # for a copy too many
    assert vhost.count(queue) == 0
    return ways


def outbox(vhost: Vhost, delay: str = "", queue: str = "q") -> str:
    return f"{vhost.cascade.root}.out.{delay}+{queue}"


def outboxes(vhost: Vhost) -> list[str]:
    """Return the outboxes with and without a delay, of all destinations."""
    return [name for name in vhost.names("queues") if ".out." in name and not name.endswith("short-lived")]


def test_a_round_delay_passes_one_queue_and_no_level(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**EASY) as connection:
        lead(connection, "q", delays=[1, 2, 3])
        for seconds in (1, 2, 3, 3, 1):
            send(connection, seconds * 1000)
        root = connection.connection.delay_options.cascade.root
    ways = Counter(way for [way] in arrive(vhost, 5))
    assert ways == {f"{root}.out.1s.+q": 2, f"{root}.out.2s.+q": 1, f"{root}.out.3s.+q": 2}


@pytest.mark.parametrize("passive", [False, True])
def test_a_delay_whose_outbox_is_missing_passes_levels_until_it_was_used_often(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, passive: bool
) -> None:
    vhost.declare("q")
    with vhost.connection(outboxes=()) as connection:
        lead(connection, "q")
    options: dict[str, Any] = {"outboxes": [5, 10, 15, 30, 60, 20], "slack": 0.0}
    exact = outbox(vhost, "20s.")
    with vhost.connection(declare="passive" if passive else "auto", **options) as connection:
        lead(connection, "q")
        monkeypatch.setattr(declare, "SAVED_AFTER", 60)
        for number in range(1, 8):
            with frames(connection) as (sent, _), routing_keys() as keys:
                send(connection, 20_000)
            tried = keys[0].startswith("@.20s.")
            assert tried is (number == 1), "what came back once is not tried again for some time"
            if number != routes.OFTEN:  # where the first return was slow, fewer ticks were left, which counts as no use
                assert (exact in outboxes(vhost)) is (number > routes.OFTEN and not passive)
            assert spec.Queue.Bind not in sent, "it is bound once it is safe"
        [known] = [one for one in routes._all.values() if (Q, 2000) in one._missing]
        later = time.monotonic() + routes.AGAIN + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with routing_keys() as keys:
            send(connection, 20_000)
        assert [key.startswith("@.20s.") for key in keys] == ([True, False] if passive else [True])
        assert ((Q, 2000) in known._missing) is passive


def test_delays_that_are_not_round_pass_levels_and_end_in_few_outboxes(vhost: Vhost) -> None:
    vhost.declare("q")
    chosen = random.Random(3)
    with vhost.connection() as connection:
        options = connection.transport.delay_options
        lead(connection, "q", delays=[1, 2, 3])
        for _ in range(60):
            send(connection, chosen.uniform(1000, 4000))
        ways = arrive(vhost, 60)
        assert {way[-1] for way in ways} <= {outbox(vhost, f"{delay}s.") for delay in (1, 2, 3)} | {outbox(vhost)}
        assert len(outboxes(vhost)) <= 16
        powers = {level.queue for level in options.cascade.levels}
    assert {queue for way in ways for queue in way[:-1]} <= powers
    assert sum(map(len, ways)) / 60 < 5.5


def test_processes_with_other_options_share_a_cascade(vhost: Vhost) -> None:
    vhost.declare("q")
    others: list[dict[str, Any]] = [
        SHORT,
        {"outboxes": ()},
        {"outboxes": [0.07, 0.5, 1.3], "slack": 0.05},
        {**SHORT, "max_delay": 300},
        {"max_delay": 3},
        {"declare": "passive"},
        {"declare": "passive", "outboxes": [0.5, 0.9], "max_delay": 3},
    ]
    with vhost.connection(max_delay=120) as connection:
        lead(connection, "q")
    for options in others:
        if options.get("declare"):
            with vhost.connection(**{**options, "declare": "auto"}) as connection:
                lead(connection, "q")
        with vhost.connection(**options) as connection:
            for delay in random.Random(1).choices(range(1, 2000), k=15):
                send(connection, delay)
    arrive(vhost, 15 * len(others))
    assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.parametrize("passive", [False, True])
def test_a_batch_loses_nothing_with_an_outbox_that_was_deleted(vhost: Vhost, passive: bool) -> None:
    vhost.declare("q", "r")
    with vhost.connection() as connection:
        for queue in ("q", "r"):
            lead(connection, queue, delays=[1])
    with vhost.connection(**EASY, declare="passive" if passive else "auto") as connection:
        for queue in ("q", "r"):
            lead(connection, queue, delays=[1])
        vhost.delete_queue(outbox(vhost, "1s."))
        with batch(connection.Producer()):
            for number in range(40):
                send(connection, 1000, "qr"[number % 2])
        arrive(vhost, 20, "q")
        arrive(vhost, 20, "r")
    assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.parametrize("how", ["deleted", "unbound"])
def test_a_passive_publisher_does_without_an_outbox_that_nothing_leads_to_any_more(vhost: Vhost, how: str) -> None:
    vhost.declare("q")
    name = outbox(vhost, "3s.")
    with vhost.connection() as connection:
        lead(connection, "q", delays=[3])
    with vhost.connection(**EASY, declare="passive", outboxes=[3]) as connection:
        send(connection, 3000)
        assert arrive(vhost, 1) == [[name]]
        if how == "deleted":
            vhost.delete_queue(name)
        else:
            with vhost.plain() as plain:
                plain.default_channel.queue_unbind(name, vhost.cascade.outbox_ingest, Q.address(3000))
        for _ in range(3):
            send(connection, 3000)
        ways = arrive(vhost, 3)
        assert [name] not in ways
    assert vhost.count(vhost.cascade.orphans) == 0


@pytest.mark.parametrize("outboxes", [False, True], ids=["", "and to see the outboxes"])
def test_a_publisher_needs_to_write_to_the_two_entries_alone(vhost: Vhost, outboxes: bool) -> None:
    """RabbitMQ from 4.2.7 shows outboxes only to those who may do something with them."""
    vhost.declare("q")
    cascade = vhost.cascade
    with vhost.connection() as connection:
        lead(connection, "q", delays=[1, 2])
    entries = [name.replace(".", r"\.") for name in (cascade.ingest, cascade.outbox_ingest, cascade.marker)]
    entries += [rf"{cascade.root}\.out\..*"] if outboxes else []
    user = vhost.user("^$", f"^({'|'.join(entries)})$", "^$")
    # RabbitMQ checks these only where a user publishes to a topic exchange.
    for exchange in (cascade.behind_ingest, cascade.levels[3].done, "amq.topic"):
        rule = {"exchange": exchange, "write": "^$", "read": "^$"}
        vhost.broker.api("PUT", f"/topic-permissions/{vhost.name}/{user}", rule)
    with vhost.connection(user, **EASY, declare="passive") as connection:
        lead(connection, "q")
        with routing_keys() as keys:
            for milliseconds in (1000, 370, 1000, 2000):
                send(connection, milliseconds)
        assert keys.count("@.1s.+q") == 2
    arrive(vhost, 4)

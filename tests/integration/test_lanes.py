"""Messages arrive through lanes and shards on a broker, also while processes differ in them or change them."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from functools import partial
from typing import Any

import kombu
import pytest
from amqp import Message

from celery_rabbit_delay import operate
from celery_rabbit_delay.core.destination import Destination
from celery_rabbit_delay.core.headers import HEADER
from testkit.broker import Vhost, lead
from testkit.commands import management, run
from testkit.node import cluster
from testkit.wait import wait_until

#: Lanes of 0.03 to 1.1 s, in ticks of 10 ms.
SHORT: dict[str, Any] = {"lanes": [0.03, 0.07, 0.25, 0.61, 1.1], "max_delay": 20}


def send(connection: kombu.Connection, milliseconds: int) -> None:
    body = {"due": time.time() + milliseconds / 1000}
    connection.Producer().publish(body, routing_key="q", headers={"x-delay": milliseconds})


def levels(vhost: Vhost) -> list[str]:
    """Return the queues of levels that hold messages."""
    return [queue for queue in vhost.names("queues") if ".delay." in queue and vhost.count(queue)]


def arrive(vhost: Vhost, amount: int) -> None:
    early = []
    for message in vhost.take("q", amount):
        early += [message.payload["due"] - time.time()] if message.payload["due"] > time.time() else []
    assert not early
    assert vhost.count("q") == 0


@pytest.mark.parametrize("options", [SHORT, {**SHORT, "shards": 3}, {**SHORT, "queue_type": "classic"}])
def test_every_delay_arrives_once_and_not_early_through_lanes(vhost: Vhost, options: dict[str, Any]) -> None:
    vhost.declare("q")
    delays = random.Random(1).choices(range(1, 2500), k=150)
    with vhost.connection(**options) as connection:
        for delay in delays:
            send(connection, delay)
        arrive(vhost, len(delays))


def test_processes_with_other_lanes_and_shards_share_a_cascade(vhost: Vhost) -> None:
    vhost.declare("q")
    others: list[dict[str, Any]] = [
        SHORT,
        {"lanes": ()},
        {"lanes": [0.07, 0.5, 1.3], "shards": 2},
        {**SHORT, "max_delay": 300},
    ]
    for options in others:
        with vhost.connection(**options) as connection:
            for delay in random.Random(1).choices(range(1, 2000), k=40):
                send(connection, delay)
    arrive(vhost, 160)


def test_messages_take_their_lane_and_then_powers_of_two_in_each_shard_by_turns(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(lanes=[5.05], shards=2) as connection:
        lead(connection, "q")
        for _ in range(4):
            send(connection, 5050)
    waiting = {queue: vhost.count(queue) for queue in levels(vhost)}
    assert waiting == {
        "celery-rabbit-delay.v2.10ms.delay.5050": 2,
        "celery-rabbit-delay.v2.10ms.s2.delay.5050": 2,
    }
    arrive(vhost, 4)


def test_what_waits_in_lanes_and_shards_that_are_no_longer_used_is_seen_arrives_and_is_removed(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(**{**SHORT, "lanes": [8.01], "shards": 3}) as connection:
        lead(connection, "q")
        for _ in range(3):
            send(connection, 8010)
    before = vhost.names("queues")
    with vhost.connection(**{**SHORT, "lanes": ()}) as connection:
        lead(connection, "q")
        cascades = operate.existing(connection)
        assert [cascade.lanes for cascade in cascades] == [(801,)] * 3
        assert operate.status(connection, cascades).waiting == 3
        assert [level.ready for level in operate.status(connection, cascades).added_up if level.ready] == [3]
        arrive(vhost, 3)
        assert operate.teardown(connection, []) > len(before)
        assert [name for name in vhost.names("queues") if ".out." not in name] == ["q"]
        assert vhost.names("exchanges") == []


def interrupt(connection: kombu.Connection, left: int) -> None:
    """Let a connection delete only so many parts."""
    channel = connection.default_channel
    turns = iter(range(left))

    def ending(delete: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if next(turns, None) is None:
                raise OSError("interrupted")
            return delete(*args, **kwargs)

        return wrapper

    channel.queue_delete, channel.exchange_delete = map(ending, (channel.queue_delete, channel.exchange_delete))


def test_a_teardown_that_is_interrupted_again_and_again_removes_everything_in_the_end(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(lanes=[60], shards=3) as connection:
        operate.setup(connection, operate.cascades(connection, True), [Destination("", ("q",))])
        for _ in range(3):
            send(connection, 60_000)
        connection.Producer().publish("x", routing_key="q", headers={"x-delay": 60_000}, priority=9)
    all_levels = {name for name in vhost.names("queues") if ".delay." in name}
    interrupted = 0
    finished = False
    while not finished:
        with vhost.connection(lanes=(), shards=1, max_delay=1) as connection:
            interrupt(connection, 45)
            try:
                operate.teardown(connection, [Destination("", ("q",))])
                finished = True
            except OSError:
                interrupted += 1
        if all_levels <= {*vhost.names("queues")}:
            with vhost.connection(lanes=(), shards=1, max_delay=1) as connection:
                assert operate.status(connection, operate.existing(connection)).waiting == 4
    assert interrupted > 3
    wait_until(lambda: vhost.names("queues") == ["q"], "all queues are gone", 10)
    assert vhost.names("exchanges") == []


def test_what_waits_in_lanes_of_others_moves(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(lanes=[90], shards=2) as connection:
        lead(connection, "q")
        send(connection, 90_000)
        send(connection, 90_000)
    moved = run(vhost.url("amqp"), "--lanes", "", "--queue", "q", "migrate", "--to-prefix", "other", "--to-lanes", "80")
    assert "2 moved, 0 left" in moved.out
    assert sorted(levels(vhost))[-1].startswith("other.v2.10ms.delay.")


def test_status_adds_up_shards_or_tells_them_apart(vhost: Vhost) -> None:
    vhost.declare("q")
    with vhost.connection(shards=2) as connection:
        lead(connection, "q")
        for _ in range(5):
            send(connection, 60_000)
    status = run(vhost.url("amqp"), "status", "--json")
    [level] = [level for level in json.loads(status.out)["levels"] if level["ready"]]
    assert (level["queue"], level["shard"], level["ready"]) == ("celery-rabbit-delay.v2.10ms.delay.60000", None, 5)
    status = run(vhost.url("amqp"), "status", "--json", "--shards")
    found = {level["shard"]: level["ready"] for level in json.loads(status.out)["levels"] if level["ready"]}
    assert sorted(found) == [1, 2]
    assert sorted(found.values()) == [2, 3]
    shown = run(vhost.url("amqp"), "status", "--shards").out
    assert "celery-rabbit-delay.v2.10ms.s2.delay.60000" in shown


def test_status_adds_up_what_shards_hold_for_a_destination_or_tells_it_apart(vhost: Vhost) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with vhost.plain() as plain:
        plain.default_channel.queue_declare("q", durable=True, auto_delete=False, arguments=arguments)
    with vhost.connection(shards=3) as connection:
        lead(connection, "q")
        for _ in range(10):
            send(connection, 30)
    command = ("status", *management(vhost))
    total = "9 due for queue 'q': queue 'q' is full and refuses more: consume from it, or raise its limit"
    wait_until(lambda: total in run(vhost.url("amqp"), *command).out.splitlines(), "the management API has counted")
    shown = run(vhost.url("amqp"), *command, "--shards")
    assert (shown.code, shown.out.count(" due for queue 'q'")) == (3, 3), shown.text
    for more, amount in (((), 1), (("--shards",), 3)):
        stuck = json.loads(run(vhost.url("amqp"), *command, "--json", *more).out)["stuck"]
        assert [sorted(one) for one in stuck] == [["destination", "queue", "reason", "stuck"]] * amount
    assert total in run(vhost.url("amqp"), "verify", *management(vhost)).out.splitlines()
    assert total in run(vhost.url("amqp"), "orphans", "list", *management(vhost)).out.splitlines()


def test_verify_knows_lanes_and_shards_and_those_of_others(vhost: Vhost) -> None:
    url = vhost.url("amqp")
    ours = ("--lanes", "0.07,0.5,15", "--shards", "2")
    assert run(url, "--lanes", "1,30", "--shards", "3", "setup").code == 0
    assert run(url, *ours, "plan").code == 3
    assert run(url, *ours, "setup").code == 0
    verified = run(url, *ours, "verify", *management(vhost))
    assert verified.code == 0, verified.text
    assert "probe: all messages on time" in verified.out
    status = run(url, *ours, "status", "--json", "--shards")
    assert status.code == 0, status.text
    levels = json.loads(status.out)["levels"]
    ttls = {shard: {level["ttl"] for level in levels if level["shard"] == shard} for shard in (1, 2, 3)}
    assert {70, 500, 1000, 15_000, 30_000} <= ttls[1] == ttls[2]
    assert ttls[1] - ttls[3] == {70, 500, 15_000}, "only other processes use the third"


@pytest.mark.parametrize("kind", ["lane", "shared exchange", "second shard"])
def test_the_probe_finds_a_binding_that_is_gone(vhost: Vhost, kind: str) -> None:
    with vhost.connection(**SHORT, shards=2) as connection:
        options = connection.transport.delay_options
        operate.setup(connection, operate.cascades(connection), [])
        cascade = options.shards_of(options.cascade)[1 if kind == "second shard" else 0]
        source = cascade.lanes_done if kind == "shared exchange" else cascade.levels[-1].done
        binding = next(binding for binding in cascade.bindings() if binding.source == source)
        channel = connection.default_channel
        if binding.destination_type == "queue":
            channel.queue_unbind(binding.destination, binding.source, binding.routing_key)
        else:
            channel.exchange_unbind(binding.destination, binding.source, binding.routing_key)
        found = {c.shard: list(operate.probe(connection, c, patience=1)) for c in operate.cascades(connection)}
        assert [shard for shard, problems in found.items() if problems] == [cascade.shard]


def test_two_readers_of_the_records_both_see_all(vhost: Vhost) -> None:
    with vhost.connection(lanes=[0.5]) as one, vhost.connection(lanes=[0.7]) as other:
        for connection in (one, other):
            operate.setup(connection, operate.cascades(connection), [])
        for _ in range(25):  # more often than RabbitMQ would by itself look at a message
            assert operate.existing(one)[0].lanes == operate.existing(other)[0].lanes == (50, 70)


def test_records_that_somebody_made_up_hide_no_right_one_and_stop_no_command(vhost: Vhost) -> None:
    made_up = ["", "[", "5", "{}", '{"powers": 10000000, "lanes": []}', '{"powers": 5, "lanes": {}}', b"\xff\xfe\x00"]
    with vhost.connection(lanes=[8.01]) as connection:
        operate.setup(connection, operate.cascades(connection), [])
    records = f"{vhost.cascade.root}.records"
    with vhost.plain() as connection:
        for body in made_up:
            headers = {HEADER: 5, "CC": []}
            message = Message(body, application_headers=headers, content_encoding="utf-8", delivery_mode=2)
            connection.default_channel.basic_publish(message, "", records)
        wait_until(lambda: vhost.count(records) == 1 + len(made_up), "all are there")
    url, lanes = vhost.url("amqp"), ("--lanes", "")
    told = f"{len(made_up)} malformed messages of the queue {records!r} are skipped"
    status = run(url, *lanes, "status", "--json")
    assert (status.code, told in status.err) == (0, True)
    assert f"{vhost.cascade.root}.delay.8010" in [level["queue"] for level in json.loads(status.out)["levels"]]
    assert run(url, *lanes, "setup").code == 0
    verified = run(url, *lanes, "verify", *management(vhost))
    assert (verified.code, told in verified.err) == (0, True), verified.text
    removed = run(url, *lanes, "teardown", "--yes", *management(vhost))
    assert (removed.code, told in removed.err) == (0, True)
    assert vhost.names("queues") + vhost.names("exchanges") == []


@pytest.mark.cluster
def test_levels_and_outboxes_are_led_by_all_nodes_of_a_cluster_and_each_shard_of_a_level_by_another() -> None:
    destinations = [Destination("amq.direct", key=f"k{number}") for number in range(12)]
    with cluster(3, plugins=("rabbitmq_management",)) as nodes:
        wait_until(lambda: len(nodes[0].api("GET", "/nodes")) == 3, "all nodes are there")

        def leaders(queues: list[str]) -> dict[str, str]:
            rows = nodes[0].api("GET", "/queues?columns=name,leader")
            found = {row["name"]: row.get("leader") for row in rows if row["name"] in queues}
            return found if found.keys() == set(queues) and all(found.values()) else {}

        for shards in (1, 3):
            options = {"prefix": f"of-{shards}", "tick": 0.01, "max_delay": 120, "shards": shards}
            url = nodes[0].url().replace("amqp", "rabbit-delay", 1)
            with kombu.Connection(url, transport_options={"rabbit_delay": options}) as client:
                client.ensure_connection()
                cascades = operate.cascades(client)
                operate.setup(client, cascades, destinations)
            levels = [level.queue for cascade in cascades for level in cascade.levels]
            outboxes = [cascade.outbox_name(destination) for cascade in cascades for destination in destinations]
            led = wait_until(partial(leaders, levels + outboxes), "all have a leader")
            # One node leads the orphans and the records besides, and so fewer outboxes.
            for queues, share in ((levels, 1 / 4), (outboxes, 1 / 12), (levels + outboxes, 1 / 4)):
                counts = Counter(led[queue] for queue in queues)
                assert min(counts[node.name] for node in nodes) >= len(queues) * share, counts
            for same in zip(*(cascade.levels for cascade in cascades), strict=True):
                assert len({led[level.queue] for level in same}) == shards

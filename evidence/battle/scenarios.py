"""What is done to brokers, workers and publishers while tasks are on their way."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import kombu
from amqp import Message

import celery_rabbit_delay
from celery_rabbit_delay import operate
from celery_rabbit_delay.delay.core.names import LAYOUT
from celery_rabbit_delay.operate.replaying import Allowed
from evidence.meter import about
from tests.kit.node import DEFAULT_AGAIN, Node, NodeFailed, cluster, dead_letters_again, is_whole, start_all
from tests.kit.proxy import Proxy, proxy

from .app import CONTENDERS, QUEUE
from .arena import Arena, Clocks
from .verdict import Verdict

#: Seconds after which RabbitMQ tries again to pass on a message.
AGAIN = 10

RATE = 30  # tasks a second

#: Options of publishers that come and go.
OTHERS: list[dict[str, Any]] = [
    {"outboxes": [3, 7, 11]},
    {"outboxes": [], "max_delay": 3600},
    {"outboxes": [2.5, 9], "max_delay": 60},
    {"slack": 0.1},
]


class Stage(NamedTuple):
    arena: Arena
    nodes: list[Node]
    between: Proxy  # before the first node
    rounds: int

    @property
    def node(self) -> Node:
        return self.nodes[0]


def crash(stage: Stage, node: Node) -> None:
    """Send SIGKILL to a broker, and start it again."""
    with stage.arena.fault("broker killed"):
        node.kill()
        stage.arena.wait(1)
        node.start()


def broker_killed(stage: Stage) -> None:
    """The broker is killed while tasks wait and while they pass from queue to queue."""
    for _ in range(stage.rounds):
        stage.arena.wait(5)
        crash(stage, stage.node)


def worker_killed(stage: Stage) -> None:
    """Workers are killed in the middle of tasks."""
    for number in range(4 * stage.rounds):
        stage.arena.wait(2)
        stage.arena.kill_worker(number % 2)


def publisher_killed(stage: Stage) -> None:
    """Publishers are killed in the middle of publishing, and others take their place."""
    for _ in range(4 * stage.rounds):
        victim = stage.arena.publish(60 * RATE, RATE)
        stage.arena.wait(3)
        stage.arena.kill_publisher(victim)


def connection_cut(stage: Stage) -> None:
    """Connections are cut, now and then just after a message was sent and before it is confirmed."""
    chosen = random.Random(1)
    for _ in range(4 * stage.rounds):
        with stage.arena.fault("connections cut"):
            stage.between.cut_after = lambda data: b"evidence.battle.run" in data and chosen.random() < 0.2
            stage.arena.wait(1)
            stage.between.cut_after = lambda data: False
            stage.between.cut()
        stage.arena.wait(2)


def alarm(stage: Stage) -> None:
    """The broker runs out of memory and of disk: publishers have to wait."""
    for _ in range(stage.rounds):
        for broken, mended in (
            (("set_vm_memory_high_watermark", "absolute", "1"), ("set_vm_memory_high_watermark", "0.4")),
            (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB")),
        ):
            stage.arena.wait(3)
            with stage.arena.fault(broken[0]):
                stage.node.ctl(*broken)
                stage.arena.wait(5)
                stage.node.ctl(*mended)


def everything(stage: Stage) -> None:
    """Broker, workers and publishers are killed and connections cut, again and again."""
    for number in range(stage.rounds):
        victim = stage.arena.publish(60 * RATE, RATE)
        stage.arena.wait(2)
        stage.arena.kill_publisher(victim)
        stage.arena.kill_worker(number % 2)
        stage.arena.wait(3)
        crash(stage, stage.node)
        stage.arena.wait(3)
        with stage.arena.fault("connections cut"):
            stage.between.cut()
        stage.arena.wait(4)


def cancelling(stage: Stage) -> None:
    """Every third task is cancelled and every twelfth moved, while nodes, workers and those processes are killed."""
    for number in range(2 * stage.rounds):
        stage.arena.cancel()
        stage.arena.wait(4)
        stage.arena.kill_worker(number % 2)
        stage.arena.wait(2)
        crash(stage, stage.nodes[number % len(stage.nodes)])
        stage.arena.wait(2)


def queue_deleted(stage: Stage) -> None:
    """The destination is deleted while all tasks for it wait, and workers declare it again."""
    for _ in range(stage.rounds):
        publisher = stage.arena.publish(6 * RATE, RATE, 15, 20)
        while publisher.poll() is None:
            stage.arena.wait(2)
            with stage.arena.fault("queue deleted"), kombu.Connection(stage.node.url()) as connection:
                connection.default_channel.queue_delete(QUEUE)
        stage.arena.wait(20)


def queue_gone(stage: Stage) -> None:
    """The destination is gone, and so are the workers, when tasks are due; it comes back, and orphans are replayed."""
    stage.arena.publish(10 * stage.rounds * RATE, RATE, 12, 15)
    stage.arena.wait(3)
    with stage.arena.fault("queue gone"):
        stage.arena.stop_workers()
        with kombu.Connection(stage.node.url()) as connection:
            connection.default_channel.queue_delete(QUEUE)
        stage.arena.wait_for_publishers()
        stage.arena.wait(20)
        stage.arena.start_workers()
        stage.arena.ready()
    with ours(stage) as connection:
        if connection is not None:
            list(operate.replay(connection, 1_000_000, Allowed(None)))


@contextmanager
def ours(stage: Stage) -> Iterator[kombu.Connection | None]:
    """Yield a connection with our transport and the contender's options; None if the contender is not us."""
    options = CONTENDERS[stage.arena.contender]
    if options is None:
        yield None
        return
    url = stage.node.url().replace("amqp", "rabbit-delay", 1)
    with kombu.Connection(url, transport_options={"rabbit_delay": options}) as connection:
        yield connection


def orphans_beside(stage: Stage) -> None:
    """1,000 tasks whose queue is gone are due beside those of others."""
    with ours(stage) as connection:
        if connection is not None:
            kombu.Queue("gone")(connection.default_channel).declare()
            producer = connection.Producer()
            with celery_rabbit_delay.batch(producer):
                for number in range(1000):
                    producer.publish("x", routing_key="gone", headers={"x-delay": 8000 + 4 * number})
            connection.default_channel.queue_delete("gone")
    stage.arena.wait(15 * stage.rounds)


def stuck(stage: Stage, queue: str, amount: int, arguments: dict[str, Any], url: str | None = None) -> None:
    """Send tasks to a queue that will not take them, due while the others are."""
    with ours(stage) as connection:
        if connection is not None:
            with kombu.Connection(url or stage.node.url()) as plain:
                kombu.Queue(queue, queue_arguments=arguments)(plain.default_channel).declare()
            producer = connection.Producer()
            with celery_rabbit_delay.batch(producer):
                for number in range(amount):
                    producer.publish("x", routing_key=queue, headers={"x-delay": 4000 + 4 * number})


def destination_full(stage: Stage) -> None:
    """1,000 tasks for a queue that is full and refuses them are due beside those of others."""
    for kind in ("classic", "quorum"):
        arguments = {"x-queue-type": kind, "x-max-length": 1, "x-overflow": "reject-publish"}
        stuck(stage, f"full-{kind}", 1000, arguments)
    stage.arena.wait(15 * stage.rounds)


def classic_node_down(stage: Stage) -> None:
    """1,000 tasks for a classic queue are due while its node, one of three, is down."""
    node = stage.nodes[2]
    stuck(stage, "theirs", 1000, {"x-queue-type": "classic"}, node.url())
    with stage.arena.fault("node down"):
        node.kill()
        stage.arena.wait(15 * stage.rounds)
        node.start()


#: Keys of levels that do not exist, or are in the wrong order; and addresses of outboxes that do not exist.
FORGED = (("@.^5.^9",), ("@.^3.x",), ("@.^6.^2.^60",), ("@.^4", "@.7s.+nobody"), ("@.^4.^3", "@.=+nobody", "@.+nobody"))


def forged_keys(stage: Stage) -> None:
    """A user who may write to ingest publishes forged routing keys."""
    with ours(stage) as connection:
        if connection is not None:
            cascade = connection.transport.delay_options.cascade
            with kombu.Connection(stage.node.url()) as plain:
                for number in range(1000 * stage.rounds):
                    first, *others = FORGED[number % len(FORGED)]
                    forged = Message("forged", application_headers={"CC": others})
                    plain.default_channel.basic_publish(forged, cascade.ingest, first)
                    if number % 100 == 0:
                        stage.arena.wait(1)


def node_killed(stage: Stage) -> None:
    """The three nodes are killed, one after the other."""
    for number in range(2 * stage.rounds):
        stage.arena.wait(6)
        crash(stage, stage.nodes[number % 3])


def options_changed(stage: Stage) -> None:
    """Publishers come and go, each with other outboxes, another `max_delay` or another `slack`; nodes are killed."""
    for number in range(4 * stage.rounds):
        stage.arena.publish(6 * RATE, RATE, options=OTHERS[number % len(OTHERS)])
        stage.arena.wait(3)
        if number % 2:
            crash(stage, stage.nodes[number // 2 % len(stage.nodes)])
        stage.arena.wait(2)


def apart(stage: Stage, node: Node) -> None:
    """Keep a node from answering for longer than the others wait."""
    with stage.arena.fault("node partitioned"):
        node.suspend(True)
        stage.arena.wait(12)
        node.suspend(False)
        stage.arena.wait(8)


def node_partitioned(stage: Stage) -> None:
    """The three nodes stop answering, one after the other, for longer than the others wait."""
    for number in range(2 * stage.rounds):
        stage.arena.wait(6)
        apart(stage, stage.nodes[number % 3])
    stage.arena.wait_for_publishers()
    heal(stage)


def cancelling_apart(stage: Stage) -> None:
    """Every third task is cancelled and every twelfth moved, while the three nodes stop answering in turn."""
    for number in range(2 * stage.rounds):
        stage.arena.cancel()
        stage.arena.wait(6)
        apart(stage, stage.nodes[number % 3])
    stage.arena.wait_for_publishers()
    heal(stage)


def heal(stage: Stage) -> None:
    """Restart all nodes if they stay apart, as an operator would; those of RabbitMQ 3.10 do at times."""
    if not all(map(is_whole, stage.nodes)):
        with stage.arena.fault("nodes restarted"):
            for node in stage.nodes:
                node.kill()
            start_all(stage.nodes)


def rolling_restart(stage: Stage) -> None:
    """The nodes are stopped cleanly and started again, one after the other."""
    for node in stage.nodes * stage.rounds:
        stage.arena.wait(4)
        with stage.arena.fault("node restarted"):
            node.stop()
            node.start()


def level_full(stage: Stage) -> None:
    """A policy limits levels to a few messages: no more may enter, from publishers or from levels above."""
    for _ in range(2 * stage.rounds):
        stage.arena.wait(3)
        with stage.arena.fault("levels full"):
            stage.node.ctl("set_policy", "full", "delay", '{"max-length": 3}', "--apply-to", "queues")
            stage.arena.wait(4)
            stage.node.ctl("clear_policy", "full")
    stage.arena.wait_for_publishers()
    if about(stage.node)["rabbitmq"].startswith("3."):  # a level above a full one may never go on by itself
        with stage.arena.fault("broker restarted"):
            stage.node.stop()
            stage.node.start()


def peace(stage: Stage) -> None:
    """No fault occurs; clocks may be wrong throughout."""


class Scenario(NamedTuple):
    play: Callable[[Stage], None]
    seconds: int = 15  # of publishing, for each round
    nodes: int = 1
    clocks: Clocks = Clocks()
    mode: str = "plain"
    options: Mapping[str, Any] = MappingProxyType({})  # of publishers, if they are ours
    again: int = AGAIN
    patience: float = math.inf  # seconds that a task may be late, where nothing concerns it


#: The options of an app whose tasks are cancelled.
RECORDING = {"schedule": True, "journal": 0}

SCENARIOS: dict[str, Scenario] = {
    "everything": Scenario(everything, 18),
    "broker killed": Scenario(broker_killed),
    "broker killed, RabbitMQ's own settings": Scenario(broker_killed, again=DEFAULT_AGAIN),
    "workers killed": Scenario(worker_killed),
    "publishers killed": Scenario(publisher_killed),
    "connections cut": Scenario(connection_cut),
    "tasks cancelled": Scenario(cancelling, 20, options=RECORDING),
    "tasks cancelled, three nodes": Scenario(cancelling, 30, nodes=3, options=RECORDING),
    "tasks cancelled, nodes partitioned": Scenario(cancelling_apart, 55, nodes=3, options=RECORDING),
    "memory and disk alarms": Scenario(alarm, 20),
    "levels full": Scenario(level_full),
    "queue deleted": Scenario(queue_deleted, 0),
    "queue gone": Scenario(queue_gone, 0),
    "1,000 orphans": Scenario(orphans_beside),
    "a destination is full": Scenario(destination_full, again=DEFAULT_AGAIN, patience=30),
    "a node with classic task queues is down": Scenario(
        classic_node_down, 30, nodes=3, again=DEFAULT_AGAIN, patience=60
    ),
    "forged keys": Scenario(forged_keys, again=DEFAULT_AGAIN, patience=30),
    "a node of three killed": Scenario(node_killed, 30, nodes=3),
    "a node of three killed, RabbitMQ's own settings": Scenario(node_killed, 30, nodes=3, again=DEFAULT_AGAIN),
    "options changed": Scenario(options_changed, 20),
    "options changed, three nodes": Scenario(options_changed, 30, nodes=3),
    "a node of three partitioned": Scenario(node_partitioned, 55, nodes=3),
    "rolling restart of three": Scenario(rolling_restart, 60, nodes=3),
    "priorities and expiry": Scenario(peace, mode="mixed"),
    "workers' clocks 30 s ahead": Scenario(peace, clocks=Clocks(worker=30)),
    "workers' clocks 30 s behind": Scenario(peace, clocks=Clocks(worker=-30)),
    "publisher's clock 30 s ahead": Scenario(peace, clocks=Clocks(publisher=30)),
    "publisher's clock 30 s behind": Scenario(peace, clocks=Clocks(publisher=-30)),
}


@contextmanager
def brokers(server: Path, amount: int, again: int) -> Iterator[list[Node]]:
    advanced = dead_letters_again(again)
    if amount == 1:
        with Node(server, advanced=advanced) as node:
            yield [node]
    else:
        with cluster(amount, server=server, advanced=advanced) as nodes:
            yield nodes


@contextmanager
def staged(
    contender: str, server: Path, amount: int, again: int, rounds: int, directory: Path, **options: Any
) -> Iterator[Stage]:
    """Yield brokers, a proxy before the first, and workers that are ready; `options` are those of `Arena`."""
    with brokers(server, amount, again) as nodes, proxy(nodes[0].port) as between:
        ports = [between.port, *(node.port for node in nodes[1:])]
        urls = ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in ports)
        arena = Arena(contender, urls, directory, **options)
        try:
            arena.ready()
            yield Stage(arena, nodes, between, rounds)
        finally:
            arena.close()


def leave_evidence(nodes: list[Node], directory: Path) -> None:
    """Write down what each node says of the queues, and keep its log."""
    for number, node in enumerate(nodes):
        shutil.copy(node.log, directory / f"node-{number}.log")
        with contextlib.suppress(NodeFailed):
            queues = node.ctl("list_queues", "name", "messages", "messages_ready", "consumers", "state")
            (directory / f"queues-{number}").write_text(node.ctl("cluster_status") + queues)


def fight(name: str, contender: str, server: Path, directory: Path, rounds: int) -> tuple[Verdict, dict[str, Any]]:
    """Fight one battle from beginning to end; return how it ended, and what was in it."""
    scenario = SCENARIOS[name]
    options = {"clocks": scenario.clocks, "patience": scenario.patience}
    with staged(contender, server, scenario.nodes, scenario.again, rounds, directory, **options) as stage:
        arena = stage.arena
        arena.publish(scenario.seconds * rounds * RATE, RATE, mode=scenario.mode, options=scenario.options)
        arena.wait(3)
        scenario.play(stage)
        verdict = arena.finish(50 + scenario.again)
        if verdict.lost:
            leave_evidence(stage.nodes, directory)
        return verdict, {"rounds": rounds, "layout": LAYOUT, **about(stage.node)}

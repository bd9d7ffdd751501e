"""The measurements, each a function of a node that returns plain numbers for the results file."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import kombu
import kombu.pools
from celery import Celery

import celery_rabbit_delay
from celery_rabbit_delay import Options
from evidence import meter
from tests.kit.background import kill, start
from tests.kit.node import Node

from .contenders import (
    QUEUE,
    SCHEDULE,
    Contender,
    Log,
    MessageTTL,
    Native,
    NativeHurried,
    Ours,
    OursBare,
    OursHurried,
    QueuePerDelay,
    receiving,
    take,
    vhost,
    with_streams,
)


def scaled(amount: int, scale: float, least: int = 50) -> int:
    return max(least, int(amount * scale))


# --- the broker's CPU


class Transit(NamedTuple):
    """Messages that pass through the broker, confirmed one by one, or sent as fast as they can be."""

    amount: int
    delays: Sequence[float]  # seconds
    confirm: bool = True
    makes: tuple[type[Contender], ...] = (Contender, Ours, Native, QueuePerDelay)
    turns: int = 1  # for each repeat


TRANSITS = {
    "broker_cpu": Transit(4000, range(1, 16), confirm=False),
    "broker_cpu_confirmed": Transit(800, range(1, 16)),
    "everyday_cpu_confirmed": Transit(800, (5, 10, 15)),  # everyday delays: one hop
    # No queue holds a message for more than a second.
    "hour_cpu_confirmed": Transit(800, range(1, 3601), makes=(Contender, OursHurried, NativeHurried), turns=3),
}


def broker_cpu(row: str, node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure the broker's CPU microseconds for a message, from the first publish until the last is delivered."""
    of = TRANSITS[row]
    runs = {make.name: partial(transit, node, make, of, scaled(of.amount, scale)) for make in of.makes}
    return meter.interleaved(runs, of.turns * repeats, log, Native.name)


def transit(node: Node, make: type[Contender], of: Transit, amount: int) -> float:
    chosen = random.Random(1)
    with vhost(node) as url:
        contender = make(url, of.confirm)
        contender.prepare_for(sorted(set(of.delays)))
        before = meter.cpu(meter.pid(node))
        if of.confirm:
            for delay in chosen.choices(of.delays, k=amount):
                contender.publish(delay)
        else:
            contender.burst(chosen.choices(of.delays, k=amount))
        came = take(contender.connection, amount)
        used = meter.cpu(meter.pid(node)) - before
        contender.close()
    if came < amount:
        print(f"  {make.name}: {amount - came} of {amount} never came", file=sys.stderr)
    return 1e6 * used / came


# --- hops

#: Seconds.
EVERYDAY = [1, 2, 3, 5, 10, 15, 20, 30, 45]
EVERYDAY += [60 * minutes for minutes in EVERYDAY] + [3600 * hours for hours in (1, 2, 3, 4, 6, 8, 12)]
EVERYDAY += [86400 * days for days in (1, 2, 3, 7, 14, 30)]

HORIZONS = {
    "15 s": 15,
    "a minute": 60,
    "10 min": 600,
    "an hour": 3600,
    "a day": 86400,
    "a month": 30 * 86400,
    "a year": 365 * 86400,
}

#: Options that decide how many levels a delay takes.
ROUTES: dict[str, dict[str, Any]] = {
    "no slack": {"slack": 0.0},
    "default": {},
    "default, `outboxes=()`": {"outboxes": ()},
    "slack of 1 %, at most 1 s": {"slack": (0.01, 1.0)},
    "slack of 1 %": {"slack": 0.01},
}


def hops(node: Node | None, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Compute the mean levels of everyday delays, and of delays spread evenly up to a horizon, besides the outbox."""
    found: dict[str, Any] = {}
    for name, chosen_options in ROUTES.items():
        options = Options(**chosen_options)
        delays = {"everyday": [seconds * 1_000_000 for seconds in EVERYDAY]}
        for horizon, seconds in HORIZONS.items():
            chosen = random.Random(1)
            delays[horizon] = [chosen.randint(1, seconds * 1_000_000) for _ in range(int(20_000 * scale) or 1)]
        for horizon, each in delays.items():
            counts = [len(options.route(options.cascade, options.ticks(delay)).levels) for delay in each]
            found[f"{name}, {horizon}"] = {"mean": sum(counts) / len(counts), "most": max(counts)}
            log(f"  {name}, {horizon}: {found[f'{name}, {horizon}']}")
    return found


# --- publishing


def make_app(url: str, options: dict[str, Any] | None, native: bool = False) -> Celery:
    """Return an app, installed with `options` if there are any. `native`: set up for native delayed delivery."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(task_default_queue=QUEUE, task_ignore_result=True)
    app.conf.broker_transport_options = {"confirm_publish": True}
    if native:
        exchange = kombu.Exchange(QUEUE, type="topic")
        queue = kombu.Queue(QUEUE, exchange, QUEUE, queue_arguments={"x-queue-type": "quorum"})
        app.conf.update(task_queues=[queue], task_default_exchange=QUEUE, task_default_exchange_type="topic")
        app.conf.task_default_routing_key = QUEUE
    if options is not None:
        celery_rabbit_delay.install(app, **options)
    return app


@contextmanager
def running_app(url: str, options: dict[str, Any] | None, native: bool = False) -> Iterator[Celery]:
    """Yield what `make_app` makes, and close it afterwards with all of its connections."""
    app = make_app(url, options, native)
    try:
        yield app
    finally:
        app.close()
        kombu.pools.reset()


# --- lateness


def lateness_at(
    node: Node, make: type[Contender], rate: int, seconds: float, delays: tuple[float, float], whole: bool = False
) -> dict[str, float]:
    """Publish at a steady rate, confirmed, in batches of a twentieth of a second; return how late messages are."""
    chosen = random.Random(1)
    with vhost(node) as url:
        contender = make(url, confirm=True)
        received = receiving(url, int(rate * seconds / 20) * 20)
        started = time.monotonic()
        for slot in range(int(seconds * 20)):
            time.sleep(max(0.0, started + slot / 20 - time.monotonic()))
            with _batch(contender):
                for _ in range(rate // 20):
                    delay = chosen.uniform(*delays)
                    if whole:
                        delay = float(round(delay))
                    contender.publish(delay, body=repr(time.time() + delay))
        behind = time.monotonic() - started - seconds
        late = received()
        contender.close()
    return {
        "p50": 1000 * meter.percentile(late, 50),
        "p99": 1000 * meter.percentile(late, 99),
        "most": 1000 * max(late),
        "early": sum(one < 0 for one in late),
        "messages": len(late),
        "publisher_behind": behind,
    }


@contextmanager
def _batch(contender: Contender) -> Iterator[None]:
    if isinstance(contender, Ours):
        with celery_rabbit_delay.batch(contender.producer):
            yield
    else:
        yield


#: Contenders, and whether their delays are whole seconds.
LATENESS: dict[str, tuple[type[Contender], bool]] = {
    Ours.name: (Ours, False),
    f"{Ours.name}, whole seconds": (Ours, True),
    Native.name: (Native, True),
    QueuePerDelay.name: (QueuePerDelay, True),
    MessageTTL.name: (MessageTTL, False),
}


def lateness(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure milliseconds, at 200 messages a second with delays of 1 to 15 s."""
    seconds = max(1.0, 8 * scale)
    found = {}
    for name, (make, whole) in LATENESS.items():
        found[name] = lateness_at(node, make, 200, seconds, (1, 15), whole=whole)
        log(f"  {name}: {found[name]}")
    return found


# --- the worker


class Kind(NamedTuple):
    """What a worker of it consumes."""

    options: dict[str, Any] | None = None  # of `install`
    delay: float | None = None  # seconds
    native: bool = False  # whether native delayed delivery is on


WORKERS = {
    Contender.name: Kind(),
    Native.name: Kind(delay=1, native=True),
    Ours.name: Kind({}, 1),
    f"{Ours.name}, levels": Kind({}, 1.37),
    SCHEDULE: Kind({"schedule": True}, 1.37),
}


def worker(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure a worker's CPU microseconds for each task that waits in its queue and is due."""
    amount, plain = scaled(5000, scale), Contender.name
    floors = {f"{name}, floor": partial(reader_cpu, node, amount, name) for name in WORKERS}
    found = meter.interleaved(floors, repeats, log, f"{plain}, floor")
    for pool in ("solo", "prefork"):
        runs = {f"{name}, {pool}": partial(worker_cpu, node, amount, name, pool) for name in WORKERS}
        found |= meter.interleaved(runs, repeats, log, f"{plain}, {pool}")
        for name in WORKERS:  # what a worker would take that reads such messages, and does no more with them
            more = found[f"{name}, floor"]["median"] - found[f"{plain}, floor"]["median"]
            found[f"{name}, {pool}"]["floor"] = 1 + more / found[f"{plain}, {pool}"]["median"]
    return found


@contextmanager
def running_worker(url: str, kind: str, directory: Path, pool: str = "solo", queues: str = "idle") -> Iterator[int]:
    """Start a worker that consumes nothing yet, and yield its process id."""
    log = directory / "worker.log"
    log.unlink(missing_ok=True)  # of the worker before
    command = [sys.executable, "-m", "celery", "-A", "evidence.benchmarks.worker_app"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = start(
        [*command, "worker", "-P", pool, "-c", "2", "-Q", queues, "-l", "INFO", *quiet],
        log,
        Path(__file__).parents[2],
        {**os.environ, "BENCH_BROKER": url, "BENCH_KIND": kind},
    )
    try:
        while " ready." not in log.read_text():
            if process.poll() is not None:
                raise RuntimeError(log.read_text())
            time.sleep(0.05)
        yield process.pid
    finally:
        kill(process)


@contextmanager
def filled(node: Node, amount: int, kind: str) -> Iterator[tuple[str, Celery]]:
    """Fill the queue of a vhost with so many tasks, all of them due; yield its URL and the app that sent them."""
    options, delay, native = WORKERS[kind]
    with vhost(node) as url, running_app(url, options, native) as app:
        if kind == SCHEDULE:
            with_streams(url)
        with app.connection_for_write() as connection:
            queue = app.amqp.queues[QUEUE](connection.default_channel)
            queue.declare()
            if native:
                Native.lead_to(connection, queue)
            app.send_task("bench.nothing", countdown=delay)  # declares the cascade
            with celery_rabbit_delay.batch(app) if options is not None else nullcontext():
                for n in range(amount):
                    app.send_task("bench.nothing" if n < amount - 1 else "bench.last", countdown=delay)
            while queue.queue_declare(passive=True).message_count < amount:
                time.sleep(0.05)
        yield url, app


def consume(app: Celery) -> None:
    """Let the worker begin, and return when it has run all."""
    with app.connection_for_read() as connection:
        done = kombu.Queue("done", durable=True)(connection.default_channel)
        done.declare()
        exchange = app.conf.task_default_exchange
        while not app.control.add_consumer(QUEUE, exchange=exchange, reply=True, timeout=10, limit=1):
            time.sleep(0.1)
        while not done.get(no_ack=True):
            time.sleep(0.02)


def worker_cpu(node: Node, amount: int, kind: str, pool: str) -> float:
    with filled(node, amount, kind) as (url, app), running_worker(url, kind, node.data, pool) as pid:
        before = meter.cpu(pid)
        consume(app)
        return 1e6 * (meter.cpu(pid) - before) / amount


def reader_cpu(node: Node, amount: int, kind: str) -> float:
    """Return microseconds of CPU for each of these messages, if nothing but py-amqp reads and acknowledges it."""
    left = amount

    def on_message(message: Any) -> None:
        nonlocal left
        left -= 1
        message.channel.basic_ack(message.delivery_tag)

    with filled(node, amount, kind) as (url, _), kombu.Connection(url) as connection:
        channel = connection.connection.channel()
        channel.basic_qos(0, 8, False)  # as many as the worker
        channel.basic_consume(QUEUE, callback=on_message)
        before = time.process_time()
        while left:
            connection.drain_events()
        return 1e6 * (time.process_time() - before) / amount


def bindings(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure a worker's start on a fresh node, with five queues, what is bound then, and the node after a kill."""
    names, found = ("seconds", "bindings", "restart", "restart cpu"), dict[str, list[tuple[float, ...]]]()
    for _ in range(repeats):
        for kind in (Contender.name, Ours.name, SCHEDULE):
            with Node(node.server, node.plugins, node.conf) as fresh:
                begun = time.monotonic()
                with running_worker(fresh.url(), kind, fresh.data, queues="a,b,c,d,e"):
                    seconds = time.monotonic() - begun
                bound = len(fresh.ctl("list_bindings", "source_name").split())
                time.sleep(2)  # all is saved
                fresh.kill()
                begun = time.monotonic()
                fresh.start()
                took = seconds, bound, time.monotonic() - begun, meter.cpu(meter.pid(fresh))
            found.setdefault(kind, []).append(took)
            log(f"  {kind}: {took}")
    return {
        kind: {name: meter.spread(each) for name, each in zip(names, zip(*of, strict=True), strict=True)}
        for kind, of in found.items()
    }


# --- memory


#: What RabbitMQ uses itself. Of what it no longer uses, its allocators give back little, and now more, now less.
_USED = "[erlang:garbage_collect(P) || P <- processes()], erlang:memory(total)."

#: What RabbitMQ does when its write-ahead log has 512 MiB (raft.wal_max_size_bytes).
_EMPTY_LOG = "ra_log_wal:force_roll_over(ra_log_wal)."


def memory(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure bytes of memory for a waiting message of 1 KiB, before and after the write-ahead log is emptied.

    RabbitMQ keeps in memory what is in that log (https://www.rabbitmq.com/docs/quorum-queues#resource-use).
    """
    amount = scaled(10_000, scale, 100)

    def used(fresh: Node) -> int:
        while meter.is_busy(meter.pid(fresh)):
            pass
        return int(fresh.ctl("eval", _USED))

    def used_without_log(fresh: Node) -> int:
        fresh.ctl("eval", _EMPTY_LOG)
        return used(fresh)

    found = {}
    for make in (Contender, Ours, OursBare, Native):
        name = make.name
        values: dict[str, list[float]] = {name: [], f"{name}, the log emptied": []}
        with Node(node.server, node.plugins, node.conf) as fresh:
            contender = make(fresh.url())
            chosen = random.Random(1)
            kept = used_without_log(fresh)
            for turn in range(1 + repeats):
                before = kept
                contender.burst([float(chosen.randint(3600, 7200)) for _ in range(amount)], body="x" * 1024)
                contender.connection.channel().queue_declare(QUEUE, passive=True)
                logged = used(fresh)
                kept = used_without_log(fresh)
                if turn:  # a fresh node frees some megabytes in the first one
                    for figures, value in zip(values.values(), (logged, kept), strict=True):
                        figures.append((value - before) / amount)
            contender.close()
        for kind, figures in values.items():
            log(f"  {kind}: {figures}")
            found[kind] = meter.spread(figures)
    return found


ROWS: dict[str, Callable[[Node, float, int, Log], dict[str, Any]]] = {
    **{row: partial(broker_cpu, row) for row in TRANSITS},
    **{row.__name__: row for row in (hops, lateness, worker, bindings, memory)},
}

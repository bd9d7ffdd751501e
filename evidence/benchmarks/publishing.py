"""What users feel who publish, beside plain Celery with `confirm_publish`: each in a process of its own, in turns.

A *floor* is what the AMQP methods of the same call cost if nothing but py-amqp sends them again.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from typing import Any
from unittest import mock

import amqp
from amqp import spec
from amqp.abstract_channel import AbstractChannel
from celery import Celery

import celery_rabbit_delay
from tests.kit.node import Node

from .. import meter
from .contenders import SCHEDULE, Log, Ours, vhost, with_streams
from .rows import make_app

PLAIN, OURS = "plain Celery", Ours.name

#: The options of `install`.
KINDS: dict[str, dict[str, Any] | None] = {PLAIN: None, OURS: {}, SCHEDULE: {"schedule": True}}


@contextmanager
def publisher(url: str, kind: str) -> Iterator[Callable[..., Any]]:
    """Yield what calls a function with an app, and other arguments, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (url, kind)) as pool:
        pool.submit(time.time).result()  # it has imported all
        yield lambda function, *args, **options: pool.submit(_call, function, args, options).result()


def _begin(url: str, kind: str) -> None:
    global _app
    _app = make_app(url, KINDS[kind])
    _app.task(name="bench.nothing", shared=False)(nothing)


_app: Celery


def nothing() -> None:
    pass


def _call(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return function(_app, *args, **options)


def send(app: Celery, **options: Any) -> None:
    app.tasks["bench.nothing"].apply_async(**options)


# --- floors

#: A channel, and a method with what `AbstractChannel.send_method` takes, or only what `AbstractChannel.wait` waits for.
Step = tuple[Any, bool, tuple[Any, ...]]

#: Classes of methods that py-amqp sends by itself, or that come with each channel here: connection, channel, confirm.
_OWN = {spec.Connection.Open[0], spec.Channel.Open[0], spec.Confirm.Select[0]}


def steps_of(call: Callable[[], Any]) -> list[Step]:
    """Return the AMQP methods that a call sends, and the answers that it waits for, but for those to messages."""
    steps: list[Step] = []
    send_method, wait = AbstractChannel.send_method, AbstractChannel.wait

    def sending(channel: Any, method: Any, *args: Any, **options: Any) -> Any:
        if method[0] not in _OWN:
            steps.append((channel, True, (method, *args)))
        return send_method(channel, method, *args, **options)

    def waiting(channel: Any, methods: Any, *args: Any, **options: Any) -> Any:
        first = methods[0] if isinstance(methods, list) else methods
        if first[0] not in _OWN and first != spec.Basic.Ack:
            steps.append((channel, False, (first,)))
        return wait(channel, methods, *args, **options)

    with mock.patch.multiple(AbstractChannel, send_method=sending, wait=waiting):
        call()
    return steps


class Replay:
    """Sends the methods again over connections of its own, and waits for the same answers and the first confirm."""

    def __init__(self, url: str) -> None:
        self._open = partial(
            amqp.Connection, f"127.0.0.1:{url.split(':')[-1].split('/')[0]}", virtual_host=url.split("/")[-1]
        )
        self._channels: dict[Any, Any] = {}
        self._connections: dict[Any, Any] = {}
        self._confirmed: dict[Any, int] = {}  # messages
        self._sent: dict[Any, int] = {}

    def _channel(self, of: Any) -> Any:
        if of not in self._channels:
            if of.connection not in self._connections:
                self._connections[of.connection] = self._open()
                self._connections[of.connection].connect()
            channel = self._channels[of] = self._connections[of.connection].channel()
            channel.confirm_select(nowait=True)
            channel.events["basic_return"].add(lambda *what: None)
            channel.events["basic_ack"].add(lambda tag, multiple: self._confirmed.update({channel: tag}))
            self._sent[channel] = self._confirmed[channel] = 0
        return self._channels[of]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Wait for all confirms at the end of a block."""
        yield
        for channel, sent in self._sent.items():
            while self._confirmed[channel] < sent:
                channel.connection.drain_events()

    def run(self, steps: list[Step], waits: bool = True) -> None:
        for of, sends, (method, *args) in steps:
            channel = self._channel(of)
            if not sends:
                with suppress(amqp.ChannelError):  # what does not exist
                    channel.wait(method)
            elif method != spec.Basic.Publish:
                channel.send_method(method, *args)
            else:
                form, values, message = args
                channel.send_method(method, form, values, amqp.Message(message.body, **message.properties))
                self._sent[channel] += 1
                while waits and self._confirmed[channel] < self._sent[channel]:
                    channel.connection.drain_events()
                waits = False


# --- a process that has sent before


def spent(
    call: Callable[[], Any], amount: int, batch: AbstractContextManager[None] | None = None
) -> tuple[float, float]:
    """Return microseconds of CPU of a call, and the median of how long it takes; in a batch, the mean."""
    took = []
    started, before = time.perf_counter(), time.process_time()
    with batch or nullcontext():
        for _ in range(amount):
            begun = time.perf_counter()
            call()
            took.append(time.perf_counter() - begun)
    used, mean = time.process_time() - before, (time.perf_counter() - started) / amount
    return 1e6 * used / amount, 1e6 * (mean if batch else statistics.median(took))


def spent_by(app: Celery, amount: int, batched: bool = False, **options: Any) -> tuple[float, float]:
    return spent(partial(send, app, **options), amount, celery_rabbit_delay.batch(app) if batched else None)


def spent_by_floor(app: Celery, url: str, amount: int, batched: bool = False, **options: Any) -> tuple[float, float]:
    global _floor
    if _floor is None:
        _floor = Replay(url), steps_of(partial(send, app, **options))
        _floor[0].run(_floor[1])
    replay, steps = _floor
    return spent(partial(replay.run, steps, not batched), amount, replay.batch() if batched else None)


_floor: tuple[Replay, list[Step]] | None = None


def warm(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure microseconds of the publisher's CPU for `apply_async`, and until it returns; and in a batch of 1,000."""
    with vhost(node) as url, ExitStack() as stack:
        calls = {kind: stack.enter_context(publisher(with_streams(url), kind)) for kind in KINDS}
        for call in calls.values():
            call(spent_by, 300, countdown=60)
        time.sleep(2)  # outboxes are saved, and used
        one = {f"{kind}, no delay": partial(calls[kind], spent_by, 50) for kind in (PLAIN, OURS)}
        one |= {kind: partial(call, spent_by, 50, countdown=60) for kind, call in calls.items()}
        one |= {f"{kind}, floor": partial(call, spent_by_floor, url, 50, countdown=60) for kind, call in calls.items()}
        many = {kind: partial(calls[kind], spent_by, 1000, countdown=60) for kind in (OURS, SCHEDULE)}
        for kind in (OURS, SCHEDULE):
            many[f"{kind}, batch"] = partial(calls[kind], spent_by, 1000, True, countdown=60)
            many[f"{kind}, batch, floor"] = partial(calls[kind], spent_by_floor, url, 1000, True, countdown=60)
        against = dict.fromkeys(one, PLAIN) | {f"{OURS}, no delay": f"{PLAIN}, no delay"}
        found = _both(one, max(2, int(20 * repeats * scale)), against)
        batches = _both(many, max(2, int(2 * repeats * scale)), {f"{kind}, batch": kind for kind in (OURS, SCHEDULE)})
        for what, each in batches.items():  # what one by one would take if its methods cost what they do in a batch
            for kind in (OURS, SCHEDULE):
                saved = found[what][f"{kind}, floor"]["median"] - each[f"{kind}, batch, floor"]["median"]
                each[f"{kind}, batch"]["floor"] = 1 - saved / each[kind]["median"]
        return {what: {**batches[what], **_with_floors(found[what], PLAIN)} for what in found}


def _both(runs: Mapping[str, Callable[[], Any]], repeats: int, against: Mapping[str, str]) -> dict[str, Any]:
    """Run each in turn, as `meter.interleaved`, after one turn that does not count."""
    turns = [{name: run() for name, run in runs.items()} for _ in range(1 + repeats)][1:]
    return {
        what: meter.compared({name: [turn[name][place] for turn in turns] for name in runs}, against)
        for place, what in enumerate(("cpu", "time"))
    }


def _with_floors(found: dict[str, Any], plain: str) -> dict[str, Any]:
    """Note what plain Celery would take, in its own times, if its methods cost what those of this package do."""
    for name in [name for name in found if f"{name}, floor" in found]:
        ours, least, of = (found[which]["median"] for which in (f"{name}, floor", f"{plain}, floor", plain))
        found[name]["floor"] = 1 + (ours - least) / of
    return found


# --- a process that has not


def first(app: Celery, seconds: float, queues: int, floor: str | None = None) -> float:
    """Return milliseconds of the first task, or of those to new queues; `floor`: of its methods, to that URL."""
    took, replay = [], floor and Replay(floor)
    for number in range(queues):
        call = partial(send, app, countdown=seconds, **({"queue": uuid.uuid4().hex[:7]} if number else {}))
        if replay:
            call = partial(replay.run, steps_of(call))
        started = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - started))
    return statistics.median(took[1:] or took)


def first_task(node: Node, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure milliseconds of the first `apply_async` of a process, with connecting.

    On a broker that has everything; to another new queue, which is created; and on a fresh virtual host.
    """

    def ask(url: str, kind: str, *args: Any) -> float:
        with publisher(url, kind) as call:
            return float(call(first, *args))

    def on_fresh(kind: str, floor: bool = False) -> float:
        with vhost(node) as url, vhost(node) if floor else nullcontext() as other:
            return ask(url, kind, 60, 1, other)

    repeats, found = max(1, int(2 * repeats * scale)), dict[str, Any]()
    with vhost(node) as url, vhost(node) as other:
        for one in (url, other):
            ask(with_streams(one), SCHEDULE, 60, 1)
        for what, queues in (("to a queue", 1), ("to a further queue", 5)):
            runs = {
                f"{kind}, {seconds} s, {what}": partial(ask, url, kind, seconds, queues)
                for kind in KINDS
                for seconds in ((1, 60) if queues == 1 else (60,))
            }
            runs |= {
                f"{kind}, 60 s, {what}, floor": partial(ask, url, kind, 60, queues, other) for kind in (PLAIN, OURS)
            }
            for run in runs.values():
                run()
            time.sleep(2)  # all is saved, and as old as that of other processes
            plain = f"{PLAIN}, 60 s, {what}"
            found |= _with_floors(meter.interleaved(runs, repeats, log, plain), plain)
    where = "on a fresh virtual host"
    runs = {f"{kind}, {where}": partial(on_fresh, kind) for kind in KINDS}
    runs |= {f"{kind}, {where}, floor": partial(on_fresh, kind, True) for kind in (PLAIN, OURS)}
    return found | _with_floors(meter.interleaved(runs, repeats, log, f"{PLAIN}, {where}"), f"{PLAIN}, {where}")


# --- imports

_IMPORTS = """
import sys, time, celery
app = celery.Celery("bench", broker="amqp://")
{}
app.connection_for_write().transport
print(1000 * time.process_time(), len(sys.modules))
"""


def imports(node: Node | None, scale: float, repeats: int, log: Log) -> dict[str, Any]:
    """Measure milliseconds of CPU, and modules, of a process that imports and installs, more than plain Celery."""
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in KINDS}
    for _ in range(max(1, int(10 * repeats * scale))):
        for kind, options in KINDS.items():
            ours = f"import celery_rabbit_delay; celery_rabbit_delay.install(app, **{options})"
            code = _IMPORTS.format("" if options is None else ours)
            shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
            found[kind].append(tuple(map(float, shown.split())))
    spreads = {}
    for kind, values in found.items():
        pairs = zip(values, found[PLAIN], strict=True)
        of = list(values) if kind == PLAIN else [(a - c, b - d) for (a, b), (c, d) in pairs]
        spreads[kind] = {**meter.spread(cpu for cpu, _ in of), "modules": statistics.median(some for _, some in of)}
        log(f"  {kind}: {spreads[kind]}")
    return spreads


ROWS = {row.__name__: row for row in (warm, first_task, imports)}

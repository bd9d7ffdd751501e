"""Interrupts programs at random moments while they use the broker, and counts those that hang, lose or double tasks.

    python -m evidence.battle.interrupts                              a minute each for signals and green threads
    python -m evidence.battle.interrupts --rabbitmq 4.3 --seconds 300 --means signal --contender "plain Celery"
    python -m evidence.battle.interrupts --actions publish batch --seed 7

A program that shows no progress for STALLED seconds has hung: its stack is printed, and another one takes its place.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.kit.broker import Broker, Vhost
from tests.kit.node import Node, find_server

#: Seconds: of no progress, after which a program has hung; of a call that is worth a word; and the delays of the tasks.
STALLED, SLOW, SHORTEST, LONGEST = 25, 5, 1, 6

OURS, PLAIN = "celery-rabbit-delay", "plain Celery"

#: What interrupts: exceptions out of a signal handler, or time-outs of green threads.
MEANS = ("signal", "gevent", "eventlet")

#: The exit code of a program of which a green thread has hung.
HUNG = 3

#: The number of green threads in a program.
GREEN = 4


def nothing(task: Any) -> None:
    pass


class Program:
    """A program that is interrupted; its ledger gets a line before and after each task."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from celery import Celery
        from celery.exceptions import SoftTimeLimitExceeded
        from kombu import Queue

        import celery_rabbit_delay

        self.chosen = random.Random(arguments.seed)
        self.name = f"{arguments.means}-{arguments.seed}"
        self.means = arguments.means
        self.ours = arguments.contender == OURS
        self.until = time.monotonic() + arguments.seconds
        self.ledger = os.open(arguments.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.number = 0
        self.usual: dict[str, float] = {}
        self.kinds = [SoftTimeLimitExceeded, KeyboardInterrupt, ZeroDivisionError]
        self.app = self._app(Celery)
        self.other = self._app(Celery)  # sends without the package
        if self.ours:
            celery_rabbit_delay.install(self.app, schedule=True, journal=2)
        self.schedule = celery_rabbit_delay
        self.task = self.app.task(name="t", bind=True, shared=False, max_retries=None)(nothing)
        self.handed_on = Queue("handed-on")
        self.consuming: dict[Any, Any] = {}
        actions: dict[str, Callable[[], None]] = {
            "publish": self.publish,
            "undelayed": self.undelayed,
            "retry": self.retry,
            "connect": self.connect,
            "declare": self.declare,
        }
        if self.ours:
            actions |= {"batch": self.batch, "hand on": self.hand_on, "cancel": self.cancel, "list": self.list}
        self.actions = {name: actions[name] for name in arguments.actions or actions if name in actions}

    def _app(self, celery: Any) -> Any:
        app = celery("battle", set_as_current=False, broker=os.environ["BROKER"])
        app.conf.update(
            broker_transport_options={"confirm_publish": True},
            task_default_queue="tasks",
            task_ignore_result=True,
            task_publish_retry_policy={"max_retries": 3, "interval_start": 0, "interval_step": 0.1},
        )
        return app

    def log(self, **line: Any) -> None:
        os.write(self.ledger, (json.dumps(line) + "\n").encode())

    def new_id(self) -> str:
        self.number += 1
        return f"{self.name}-{os.getpid()}-{self.number}"

    @contextlib.contextmanager
    def sending(self, *ids: str) -> Iterator[None]:
        self.log(sent=ids)
        yield
        self.log(stored=ids)

    def delay(self) -> dict[str, Any]:
        return {"countdown": self.chosen.uniform(SHORTEST, LONGEST)}

    def publish(self) -> None:
        with self.sending(id_ := self.new_id()):
            self.app.send_task("t", task_id=id_, **self.delay())

    def undelayed(self) -> None:
        with self.sending(id_ := self.new_id()):
            self.app.send_task("t", task_id=id_)

    def declare(self) -> None:
        with self.sending(id_ := self.new_id()):
            self.app.send_task("t", task_id=id_, queue=f"tasks-{self.chosen.randrange(30)}", **self.delay())

    def connect(self) -> None:
        with self.sending(id_ := self.new_id()), self.app.connection_for_write() as connection:
            self.app.send_task("t", task_id=id_, producer=self.app.amqp.Producer(connection), **self.delay())

    def retry(self) -> None:
        from celery.exceptions import Retry

        id_ = self.new_id()
        self.task.push_request(id=id_, called_directly=False, retries=0, args=[], kwargs={}, delivery_info={})
        try:
            with self.sending(id_), contextlib.suppress(Retry):
                self.task.retry(**self.delay())
        finally:
            self.task.pop_request()

    def batch(self) -> None:
        ids = [self.new_id() for _ in range(self.chosen.choice([2, 30]))]
        with self.sending(*ids), self.schedule.batch(self.app):
            for id_ in ids:
                self.app.send_task("t", task_id=id_, **self.delay())

    def cancel(self) -> None:
        self.schedule.cancel(self.app, f"no-such-{self.new_id()}")

    def list(self) -> None:
        for _ in self.schedule.scheduled(self.app, limit=3):
            pass

    def hand_on(self) -> None:
        """Take tasks with an eta from a queue, as a worker does; nothing is stored by a call here."""
        own = self.current()
        consuming = self.consuming.get(own)
        if consuming is None or not consuming.connected:
            if consuming is not None:
                consuming.collect()
            connection = self.app.connection_for_read()
            consumer = self.app.amqp.TaskConsumer(connection.channel(), queues=[self.handed_on])
            consumer.on_message = self.keep
            consumer.consume()
            self.consuming[own] = consuming = connection
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                consuming.drain_events(timeout=0.05)

    def keep(self, message: Any) -> None:
        self.log(kept=message.headers["id"])
        message.ack()

    def before(self, action: str) -> None:
        if action == "hand on" and self.chosen.random() < 0.3:
            ids = [f"handed-on-{self.new_id()}" for _ in range(10)]
            self.log(sent=ids)
            for id_ in ids:
                self.other.send_task("t", task_id=id_, queue="handed-on", **self.delay())
            self.log(stored=ids)

    def run(self) -> None:
        while time.monotonic() < self.until:
            action = self.chosen.choice(sorted(self.actions))
            self.before(action)
            usual = self.usual.get(action)
            seconds = None if usual is None or self.chosen.random() < 0.1 else self.chosen.uniform(0, 1.2 * usual)
            started = time.monotonic()
            try:
                with contextlib.suppress(Interrupted):
                    self.attempt(action, seconds)
            except Exception as exc:
                self.log(error=f"{type(exc).__name__}: {exc}"[:90])
            took = time.monotonic() - started
            if took > SLOW:
                self.log(error=f"{action} took {took:.0f} s")
            if seconds is None:
                self.usual[action] = took if usual is None else min(0.8 * usual + 0.2 * took, 2 * usual)
            self.progress()

    def current(self) -> Any:
        """Return the thread, which has its own consumer."""
        return None

    def progress(self) -> None:
        os.write(1, b".")

    def attempt(self, action: str, seconds: float | None) -> None:
        """Run an action, and interrupt it after some seconds."""
        armed = seconds is not None
        kind = self.chosen.choice(self.kinds)

        def on_signal(*args: Any) -> None:
            nonlocal armed
            if armed:
                armed = False
                raise kind

        signal.signal(signal.SIGALRM, on_signal)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds or 0, 1e-6))
            self.actions[action]()
        except BaseException as exc:
            if armed or seconds is None:
                raise
            self.log(interrupted=action)
            raise Interrupted from exc
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class GreenProgram(Program):
    """The same in green threads."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.library = import_module(arguments.means)
        self.seen: dict[int, float] = {}

    def attempt(self, action: str, seconds: float | None) -> None:
        timeout = self.library.Timeout(seconds)
        if self.means == "gevent":
            timeout.start()
        try:
            self.actions[action]()
        except BaseException as exc:
            if exc is not timeout:
                raise
            self.log(interrupted=action)
            raise Interrupted from exc
        finally:
            timeout.cancel()

    def progress(self) -> None:
        self.seen[id(self.current())] = time.monotonic()
        super().progress()

    def current(self) -> Any:
        return import_module("greenlet").getcurrent()

    def run(self) -> None:
        threads = [self.library.spawn(super(GreenProgram, self).run) for _ in range(GREEN)]
        while not all(getattr(thread, "dead", False) for thread in threads):
            self.library.sleep(0.5)
            now = time.monotonic()
            hung = [thread for thread in threads if not thread.dead and now - self.seen.get(id(thread), now) > STALLED]
            if hung:
                import traceback

                for thread in hung:
                    sys.stderr.write("".join(traceback.format_stack(thread.gr_frame)))
                sys.stderr.flush()
                os._exit(HUNG)


class Interrupted(Exception):
    """An action was interrupted, and said so."""


def child(arguments: argparse.Namespace) -> None:
    if arguments.means == "gevent":
        import_module("gevent.monkey").patch_all()
    elif arguments.means == "eventlet":
        import_module("eventlet").monkey_patch()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    program = (Program if arguments.means == "signal" else GreenProgram)(arguments)
    program.run()
    os._exit(0)  # closing the pools is not what is tried here


def watch(command: list[str], environment: dict[str, str]) -> tuple[bool, str]:
    """Run a program; return whether it hung, and what it said of that or of its own failure."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        assert process.stdout is not None
        hung, patience = False, 2 * STALLED
        while True:
            ready, _, _ = select.select([process.stdout], [], [], patience)
            if not ready:
                hung = True
                process.send_signal(signal.SIGUSR1)
                time.sleep(1)
                process.kill()
                break
            if not os.read(process.stdout.fileno(), 65536):
                break
            patience = STALLED + 5
        code = process.wait()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
    return hung or code == HUNG, text if code else ""


def drain(vhost: Vhost) -> Counter[str]:
    """Take all tasks that come, and count them by their ids."""
    taken: Counter[str] = Counter()

    def on_message(message: Any) -> None:
        taken[message.headers["id"]] += 1
        message.ack()

    queues = [name for name in vhost.names("queues") if name.startswith(("tasks", "handed-on"))]
    quiet = 0
    with vhost.plain() as connection:
        from kombu import Consumer, Queue

        for queue in queues:
            Consumer(connection, [Queue(queue, no_declare=True)], on_message=on_message).consume()
        while quiet < LONGEST + 6:
            try:
                connection.drain_events(timeout=1)
                quiet = 0
            except TimeoutError:
                quiet += 1
    return taken


def fight(broker: Broker, contender: str, means: str, arguments: argparse.Namespace) -> bool:
    with broker.vhost() as vhost, tempfile.TemporaryDirectory() as directory:
        ledger = Path(directory) / "ledger"
        until, seed, hangs, programs = time.monotonic() + arguments.seconds, arguments.seed, 0, 0
        while (left := until - time.monotonic()) > 1:
            command = [
                sys.executable,
                "-m",
                "evidence.battle.interrupts",
                "--child",
                "--contender",
                contender,
                "--means",
                means,
            ]
            command += ["--seed", str(seed), "--seconds", str(min(left, arguments.each)), "--ledger", str(ledger)]
            command += ["--actions", *arguments.actions] if arguments.actions else []
            hung, text = watch(command, {**os.environ, "BROKER": vhost.url("amqp")})
            hangs += hung
            programs += 1
            seed += 1
            if text:
                print(text[-6000:], file=sys.stderr, flush=True)
        time.sleep(2)
        taken = drain(vhost)
        sent, stored, interrupts, errors = set[str](), set[str](), Counter[str](), Counter[str]()
        for line in map(json.loads, ledger.read_text().splitlines()):
            sent.update(line.get("sent", ()))
            stored.update(line.get("stored", ()))
            if "kept" in line:
                taken[line["kept"]] += 1
            if "interrupted" in line:
                interrupts[line["interrupted"]] += 1
            if "error" in line:
                errors[line["error"]] += 1
    lost = sorted(stored - taken.keys())
    # A task that was handed on comes again if its consumer was interrupted before the acknowledgement.
    twice = [name for name, number in taken.items() if number > 1 and not name.startswith("handed-on")]
    returned = [name for name in twice if name in stored]
    print(
        f"RabbitMQ {'.'.join(map(str, broker.version))}, {contender}, {means}: {programs} programs, {hangs} hung; "
        f"{interrupts.total()} interrupts {dict(sorted(interrupts.items()))}; {len(sent)} tasks sent, "
        f"{len(stored)} stored, {len(lost)} lost, {len(twice)} twice, {len(returned)} of these after a call that "
        f"returned; other errors: {dict(errors) or 'none'}",
        lost[:5],
        flush=True,
    )
    return not hangs and not lost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m evidence.battle.interrupts", description=__doc__.splitlines()[0])
    parser.add_argument("--rabbitmq", nargs="+", default=["3.10", "4.3"])
    parser.add_argument("--contender", nargs="+", default=[OURS], choices=[OURS, PLAIN])
    parser.add_argument("--means", nargs="+", default=list(MEANS), choices=MEANS)
    parser.add_argument("--actions", nargs="+")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--each", type=float, default=30, help="seconds of one program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ledger", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        arguments.contender, arguments.means = arguments.contender[0], arguments.means[0]
        child(arguments)
    good = True
    for name in arguments.rabbitmq:
        with Node(find_server(name), plugins=("rabbitmq_management",)) as node:
            for contender in arguments.contender:
                for means in arguments.means:
                    good &= fight(Broker(node), contender, means, arguments) or contender != OURS
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

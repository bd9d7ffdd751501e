"""How much of the package one received message passes: what is long is hard to follow, and slow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kombu

import celery_rabbit_delay
from tests.kit.broker import Vhost, publish

PACKAGE = str(Path(celery_rabbit_delay.__file__).parent)

#: Functions of the package, and files, between the frames that py-amqp has read and the consumer.
FUNCTIONS, FILES = 19, 7


def test_a_delayed_message_passes_few_functions_on_its_way_to_the_consumer(vhost: Vhost) -> None:
    vhost.declare("q")
    passed: set[tuple[str, str]] = set()
    ways: list[set[tuple[str, str]]] = []

    def note(frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code.co_name == "on_frame":  # amqp.method_framing: a frame is handed over
            passed.clear()
        elif code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):  # Python 3.12 inlines these
            passed.add((code.co_filename[len(PACKAGE) + 1 :], code.co_name))

    def on_message(message: Any) -> None:
        sys.setprofile(None)
        ways.append(set(passed))
        message.ack()

    with vhost.connection() as connection:
        publish(connection, 0.02)
        publish(connection, 0.02)
        queue = kombu.Queue("q", no_declare=True)
        with kombu.Consumer(connection.channel(), queue, on_message=on_message, auto_declare=False):
            while len(ways) < 2:  # before the first one, the connection reads what was cancelled
                sys.setprofile(note)
                try:
                    connection.drain_events(timeout=60)
                finally:
                    sys.setprofile(None)
    way = ways[-1]
    shown = "\n".join(" ".join(one) for one in sorted(way))
    assert len(way) <= FUNCTIONS, shown
    assert len({file for file, _ in way}) <= FILES, shown

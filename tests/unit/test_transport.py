"""What needs no broker's behaviour."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kombu

import celery_rabbit_delay  # noqa: F401  registers the scheme


def test_an_event_loop_reads_once_what_came_in_with_the_answer_to_consume() -> None:
    """As Celery's loop does for the driver type "amqp": TLS may have buffered it, and no reader would be called."""
    soon: list[tuple[Any, ...]] = []
    drained: list[float] = []

    def drain_events(timeout: float) -> None:
        drained.append(timeout)
        raise TimeoutError  # nothing came in

    loop = SimpleNamespace(add_reader=lambda *args: None, call_soon=lambda *args: soon.append(args))
    connection = SimpleNamespace(transport=SimpleNamespace(), sock=None, drain_events=drain_events)
    kombu.Connection("rabbit-delay://").transport.register_with_event_loop(connection, loop)
    [(function, *arguments)] = soon
    function(*arguments)
    assert drained == [0.1]

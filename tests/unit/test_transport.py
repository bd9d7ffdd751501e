"""The parts of the transport that need no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kombu
import pytest

from celery_rabbit_delay import UnsupportedConfiguration
from celery_rabbit_delay.amqp.connection import Connection


def test_quorum_levels_want_a_broker_that_knows_at_least_once_dead_lettering() -> None:
    """No such old RabbitMQ is to be had here, so this is all the proof."""

    def delayed(version: str, queue_type: str) -> Any:
        client = kombu.Connection("rabbit-delay://", transport_options={"rabbit_delay": {"queue_type": queue_type}})
        user = Connection()
        user.client = client
        own = Connection()
        own.client, own.server_properties = client, {"version": version}
        sender: Any = user.sender
        sender._client = SimpleNamespace(connection=own, connected=False, collect=lambda: None)
        return sender.publisher_for()

    with pytest.raises(UnsupportedConfiguration, match=r"RabbitMQ before 3\.10 .* This is 3\.9\.27: upgrade it"):
        delayed("3.9.27", "quorum")
    delayed("3.9.27", "classic")
    delayed("3.10.0", "quorum")


def test_an_event_loop_reads_once_what_came_in_with_the_answer_to_consume() -> None:
    """As Celery's loop does for the driver type "amqp": TLS may have buffered it, and no reader would be called."""
    soon: list[tuple[Any, ...]] = []
    drained: list[float] = []

    def drain_events(timeout: float) -> None:
        drained.append(timeout)
        raise TimeoutError  # nothing came in

    loop = SimpleNamespace(add_reader=lambda *args: None, call_soon=lambda *args: soon.append(args))
    connection = SimpleNamespace(transport=SimpleNamespace(), sock=None, connected=True, drain_events=drain_events)
    kombu.Connection("rabbit-delay://").transport.register_with_event_loop(connection, loop)
    function, *arguments = soon[0]
    function(*arguments)
    assert drained == [0.1]
    connection.connected = False  # a loop that is closed runs what it has not run yet
    function(*arguments)
    assert drained == [0.1]

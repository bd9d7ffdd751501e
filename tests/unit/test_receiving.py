"""Which messages a consumer is not to receive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import StreamUnavailable
from celery_rabbit_delay.amqp import receiving
from celery_rabbit_delay.amqp.clients import client_of
from celery_rabbit_delay.core import journal
from celery_rabbit_delay.core.headers import HEADER
from celery_rabbit_delay.core.options import Options


class Client:
    """A `kombu.Connection`, of which only the identity is of interest."""


def test_the_last_message_of_a_key_is_received_where_the_stream_cannot_be_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client()
    client_of(client).keys.apply(journal.last_of_key("k", 1))  # read before the connection was lost
    connection = SimpleNamespace(client=client, followed=set(), delay_options=Options())

    def catch_up(connection: Any, stream: Any, *args: Any) -> None:
        connection.followed.add(stream.name)
        if "keys" in stream.name:
            raise StreamUnavailable("its node is down")

    monkeypatch.setattr(receiving, "catch_up", catch_up)
    messages = [SimpleNamespace(headers={HEADER: {"n": n}, "x-delay-key": "k"}, properties={}) for n in (2, 3)]
    assert [receiving.is_dropped(connection, message) for message in messages] == [False, False]
    assert (
        caplog.messages.count(
            "Messages that were moved, cancelled or replaced may be delivered all the same: its node is down"
        )
        == 1
    )


@pytest.mark.parametrize(
    ("headers", "properties"),
    [
        ({"id": "a"}, {"correlation_id": "b"}),
        ({}, {"correlation_id": "a", "message_id": "b"}),
        ({}, {"message_id": "a"}),
    ],
)
def test_a_message_is_cancelled_by_the_id_that_it_is_listed_with(headers: Any, properties: Any) -> None:
    client = Client()
    connection = SimpleNamespace(client=client, followed=set(), delay_options=Options())
    message = SimpleNamespace(headers={HEADER: {}, **headers}, properties=properties)
    assert not receiving.is_dropped(connection, message)
    for id_, dropped in (("b", False), ("a", True)):
        for change in journal.cancelled([id_]):
            client_of(client).changes.apply(change)
        assert receiving.is_dropped(connection, message) is dropped

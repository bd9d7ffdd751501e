"""The parts of the transport that need no broker."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
from amqp import Message
from freezegun import freeze_time

from celery_rabbit_delay import NotPermitted, UnsupportedConfiguration
from celery_rabbit_delay.delay.amqp.confirms import NotStored
from celery_rabbit_delay.delay.amqp.interceptor import Interceptor
from celery_rabbit_delay.delay.amqp.limited import PAUSE
from celery_rabbit_delay.delay.amqp.transport import Channel, UserConnection
from celery_rabbit_delay.delay.core.headers import HEADER, X_DELIVERY_TIME, wrap
from celery_rabbit_delay.delay.core.options import Options


def test_levels_want_a_broker_that_knows_at_least_once_dead_lettering(monkeypatch: pytest.MonkeyPatch) -> None:
    """No such old RabbitMQ is to be had here, so this is all the proof."""

    def delayed(version: str) -> Any:
        user, own = UserConnection(), UserConnection()
        user.client, own.server_properties = kombu.Connection("rabbit-delay://"), {"version": version}
        own.client = user.client
        monkeypatch.setattr(kombu.Connection, "connection", own)
        return user.sender.publisher()

    with pytest.raises(UnsupportedConfiguration, match=r"RabbitMQ before 3\.10 .* This is 3\.9\.27: upgrade it"):
        delayed("3.9.27")
    delayed("3.10.0")


def parameters_of_tls(query: str) -> Any:
    with kombu.Connection(f"rabbit-delays://localhost//?{query}") as connection:
        connection.transport  # noqa: B018  reads them
        return connection.ssl


def test_a_url_that_names_certificates_has_the_name_of_the_broker_checked(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    assert parameters_of_tls(f"ssl_ca_certs={ca}") == {"ca_certs": str(ca), "server_hostname": None}
    assert parameters_of_tls("ssl_cert_reqs=CERT_NONE") == {"cert_reqs": ssl.CERT_NONE}
    assert parameters_of_tls("heartbeat=10") is True


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("ssl_ca_cert=ca.pem", "has ssl_ca_cert: for TLS it may have ssl_ca_certs, ssl_certfile"),
        ("ssl_keyfile=none.key", "has ssl_keyfile: the file 'none.key' cannot be read"),
    ],
)
def test_a_url_whose_certificates_cannot_be_used_is_an_error_that_names_them(query: str, error: str) -> None:
    with pytest.raises(UnsupportedConfiguration, match=error):
        parameters_of_tls(query)


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


DUE = datetime(2030, 1, 1, tzinfo=timezone.utc)
ETA = {"task": "t", "eta": DUE.isoformat()}


class Consumer:
    """What a channel that consumes has of others."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.acknowledged: list[int] = []
        self.fails: Exception | None = None
        self.connection = SimpleNamespace(sender=self, delay_options=Options(), interceptor=Interceptor(), client=self)
        self.auto_decode, self._paused_until, self.basic_ack = True, 0.0, self.acknowledged.append
        self._sends_back = partial(Channel._sends_back, self)  # type: ignore[arg-type]

    def publish(self, plan: Any, seconds: float) -> None:
        if self.fails:
            raise self.fails
        self.sent.append(plan)

    def is_kept_from(self, headers: dict[str, Any], by_time: bool = True) -> bool:
        wrapped = wrap(headers, Options().cascade.root, "orders", "new", DUE, 7)
        message: Any = Message(b"", application_headers=wrapped | ({X_DELIVERY_TIME: 1} if by_time else {}))
        message.delivery_info = {"exchange": "", "routing_key": "q", "delivery_tag": 1}
        message.taken_from = "q"
        return Channel._drops(self, message, no_ack=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "seconds", "early"),
    [
        ({}, -1, False),
        ({}, 0, False),
        ({}, 0.001, True),
        (ETA, 0.001, False),  # Celery holds it, if it is not due by the clock of this host
        (ETA, 5, False),
        (ETA, 5.001, True),
        ({"task": "t", "eta": (DUE - timedelta(hours=1)).isoformat()}, 1, True),  # it also has an x-delay
        ({"task": "t", "eta": "tomorrow"}, 1, True),
    ],
)
def test_a_message_that_came_before_its_delivery_time_is_sent_back_if_nobody_else_would_hold_it(
    headers: dict[str, Any], seconds: float, early: bool
) -> None:
    consumer = Consumer()
    with freeze_time(DUE - timedelta(seconds=seconds)):
        assert not consumer.is_kept_from(headers, by_time=False), "it has passed levels, or comes from elsewhere"
        assert consumer.is_kept_from(headers) is early
    assert [(plan.came_early, plan.headers[HEADER]["n"]) for plan in consumer.sent] == [(True, 7)] * early
    assert len(consumer.acknowledged) == early


@pytest.mark.parametrize("error", [NotPermitted("no"), NotStored(), TimeoutError("no answer"), OSError("reset")])
def test_a_message_that_came_early_and_cannot_be_sent_back_reaches_no_consumer_and_raises_nothing(
    error: Exception,
) -> None:
    consumer = Consumer()
    consumer.fails = error
    with freeze_time(DUE - timedelta(hours=1)) as clock:
        assert consumer.is_kept_from({})
        consumer.fails = None
        assert consumer.is_kept_from({}), "not each of many waits for an answer"
        assert not consumer.sent
        clock.tick(PAUSE)
        assert consumer.is_kept_from({})
    assert (len(consumer.sent), len(consumer.acknowledged)) == (1, 1)

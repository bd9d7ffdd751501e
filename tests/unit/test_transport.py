"""The parts of the transport that need no broker."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu
import pytest

from celery_rabbit_delay import UnsupportedConfiguration
from celery_rabbit_delay.delay.amqp.transport import UserConnection


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

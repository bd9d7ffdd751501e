"""What is said of RabbitMQ releases with known faults."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from celery_rabbit_delay import Options
from celery_rabbit_delay.app import control
from celery_rabbit_delay.core.faults import advice
from celery_rabbit_delay.core.options import DRIVER_TYPE


@pytest.mark.parametrize(
    ("release", "faults"),
    [
        ("4.0.0", "#16203, #16652, #17012"),
        ("4.1.8", "#16203, #16652, #17012"),
        ("4.2.6", "#16203, #16652, #17012"),
        ("4.2.7", "#16652, #17012"),
        ("4.3.0", "#16203, #16652, #17012"),
        ("4.3.1", "#16652, #17012"),
        ("4.3.3-rc.1", "#17012"),
    ],
)
def test_a_release_with_known_faults_is_named_with_what_to_do(release: str, faults: str) -> None:
    told = advice(release)
    assert told
    assert told.startswith(
        f"RabbitMQ {release} has faults of at-least-once dead lettering ({faults} of rabbitmq-server)"
    )
    assert told.endswith("upgrade to 4.3.5 or later")


@pytest.mark.parametrize("release", ["4.3.5", "4.3.6", "4.4.0", "5.0.0", "3.10.8", "3.13.7", "0", "", "unknown"])
def test_nothing_is_said_of_other_releases_and_of_those_that_nobody_knows_about(release: str) -> None:
    assert advice(release) is None


class Connected:
    """An `amqp.Connection`."""

    def __init__(self, release: str, options: Options) -> None:
        self.server_properties = {"version": release}
        self.delay_options = options


class Client:
    """A `kombu.Connection`."""

    def __init__(self, connection: Connected) -> None:
        self.connection = connection
        self.transport = SimpleNamespace(driver_type=DRIVER_TYPE, delay_options=connection.delay_options)


@pytest.mark.parametrize(("release", "lines"), [("4.2.7", 1), ("4.3.6", 0)])
def test_a_worker_says_so_once(
    release: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(control, "catch_up", lambda *args, **kwargs: None)
    consumer = SimpleNamespace(connection=Client(Connected(release, Options())))
    step = control.FollowChanges(consumer)
    with caplog.at_level(logging.INFO, "celery_rabbit_delay"):
        for _ in range(2):  # it starts again at each reconnect
            step.start(consumer)
    told = [record for record in caplog.records if "upgrade to 4.3.5 or later" in record.message]
    assert [record.levelname for record in told] == ["INFO"] * lines

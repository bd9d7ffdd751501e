"""What is said of RabbitMQ releases with known faults."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_rabbit_delay import Options, StreamUnavailable
from celery_rabbit_delay.app import control
from celery_rabbit_delay.core.faults import FAULTS, advice, warning
from celery_rabbit_delay.core.options import DRIVER_TYPE

PAGE = Path(__file__).parents[2] / "docs" / "deployment.md"


@pytest.mark.parametrize(
    ("release", "issues"),
    [
        ("3.10.0", [16203, 16652]),
        ("3.10.8", [16203, 16652]),
        ("3.13.7", [16203, 16652]),
        ("4.0.5", [16203, 16652]),
        ("4.1.8", [16203, 16652]),
        ("4.2.6", [16203, 16652]),
        ("4.2.7", [16652]),
        ("4.2.9", [16652]),
        ("4.3.0", [16203, 16652, 17012]),
        ("4.3.1", [16652, 17012]),
        ("4.3.3-rc.1", [17012]),
        ("4.3.4", [17012]),
    ],
)
def test_a_release_with_known_faults_is_named_with_what_to_do(release: str, issues: list[int]) -> None:
    told = advice(release)
    assert told
    assert told.startswith(f"RabbitMQ {release} has faults of at-least-once dead lettering")
    assert [int(issue) for issue in re.findall(r"#(\d+)", told)] == issues
    assert told.endswith("upgrade to 4.3.5 or later")


@pytest.mark.parametrize(
    ("release", "crashes"),
    [
        ("3.10.19", "two"),
        ("3.10.20", "100"),
        ("3.11.0", "two"),
        ("3.11.11", "two"),
        ("3.11.12", "100"),
        ("4.3.2", "100"),
    ],
)
def test_it_says_how_many_crashes_end_dead_lettering_on_a_release(release: str, crashes: str) -> None:
    assert re.findall(r"after (\w+) crashes", advice(release) or "") == [crashes]


@pytest.mark.parametrize("release", ["4.3.5", "4.3.6", "4.4.0", "5.0.0", "3.9.29", "0", "", "unknown"])
def test_nothing_is_said_of_releases_without_known_faults(release: str) -> None:
    assert advice(release) is None
    assert warning(release) is None


@pytest.mark.parametrize("release", ["4.2.5", "4.2.6", "4.2.7", "4.3.0", "4.3.1"])
def test_just_4_2_6_and_4_3_0_must_not_be_used_with_least_privilege(release: str) -> None:
    told = warning(release)
    assert bool(told) is (release in ("4.2.6", "4.3.0"))
    assert not told or (f"Do not use RabbitMQ {release}" in told and "#16085" in told)


def test_the_page_on_deployment_has_the_same_faults_with_a_source_for_each() -> None:
    def shown(release: tuple[int, ...]) -> str:
        return ".".join(map(str, release))

    row = r"^\| \[#(\d+)\]\(https://github\.com/rabbitmq/rabbitmq-server/(?:issues|pull)/\1\) \| .* \| (.*) \|$"
    assert re.findall(row, PAGE.read_text(), re.MULTILINE) == [
        (
            str(fault.issue),
            ", ".join(shown(a) if a == b else f"{shown(a)} to {shown(b)}" for a, b in fault.ranges),
        )
        for fault in FAULTS
    ]


class Connected:
    """An `amqp.Connection`."""

    def __init__(self, release: str, options: Options) -> None:
        self.server_properties = {"version": release}
        self.delay_options = options
        self.following = SimpleNamespace(catch_up=lambda *args, **kwargs: None)


class Client:
    """A `kombu.Connection`."""

    def __init__(self, connection: Connected) -> None:
        self.connection = connection
        self.transport = SimpleNamespace(driver_type=DRIVER_TYPE, delay_options=connection.delay_options)


def a_step(client: Client) -> tuple[control.FollowChanges, Any]:
    """Return what follows the changes in a worker, and the worker's consumer."""
    timer = SimpleNamespace(call_repeatedly=lambda *arguments: None)
    app = SimpleNamespace(conf=SimpleNamespace(worker_enable_remote_control=True, control_exchange="celery"))
    consumer = SimpleNamespace(app=app, connection=client, hub=None, pool=None, timer=timer, call_soon=None)
    return control.FollowChanges(consumer), consumer


def test_a_worker_that_cannot_follow_the_changes_says_so_again_once_it_could(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(Connected("4.3.6", Options()))
    step, consumer = a_step(client)
    fails = iter([True, True, False, True, True])

    def catch_up(*args: Any, **options: Any) -> None:
        if next(fails):
            raise StreamUnavailable("it has no leader")

    client.connection.following.catch_up = catch_up
    for _ in range(5):  # it starts again at each reconnect
        step.start(consumer)
    assert sum("does not know which tasks were cancelled" in one.message for one in caplog.records) == 2


@pytest.mark.parametrize(("release", "levels"), [("4.2.7", ["INFO"]), ("4.2.6", ["WARNING", "INFO"]), ("4.3.6", [])])
def test_a_worker_says_so_once(
    release: str, levels: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, consumer = a_step(Client(Connected(release, Options())))
    with caplog.at_level(logging.INFO, "celery_rabbit_delay"):
        for _ in range(2):  # it starts again at each reconnect
            step.start(consumer)
    told = [record for record in caplog.records if "upgrade to 4.3.5 or later" in record.message]
    assert [record.levelname for record in told] == levels

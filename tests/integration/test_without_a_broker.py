"""Test suites without a broker can call install() unconditionally."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import kombu
import kombu.pools
import pytest
from celery import Celery, group
from celery.contrib.testing.worker import start_worker
from celery.exceptions import TaskRevokedError

import celery_rabbit_delay
from celery_rabbit_delay import UnsupportedConfiguration, install
from tests.kit.node import free_port

TOLD = "has no broker: Celery runs its delayed tasks; celery-rabbit-delay does nothing"


def app_with(**conf: Any) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)

    def double(n: int) -> int:
        return 2 * n

    app.task(double, name="double", shared=False)
    return app


@pytest.fixture(autouse=True)
def what_the_process_has_once() -> Iterator[None]:
    """Restore the state that a worker changes in this process: Celery sets the root logger to errors only."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    kombu.pools.reset()


MEMORY = {
    "broker_url": "memory://",
    "result_backend": "cache+memory://",
    "broker_connection_retry_on_startup": True,
}


def test_an_app_in_memory_is_left_alone_with_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(**MEMORY)
    with caplog.at_level(logging.INFO):
        install(app)
        app.connection_for_write().connect()
        app.tasks["double"].apply_async((1,), countdown=60)
    [record] = [record for record in caplog.records if record.name.startswith("celery_rabbit_delay")]
    assert TOLD in record.getMessage()
    assert record.levelno == logging.INFO
    assert app.connection().transport.driver_type == "memory"


@pytest.mark.parametrize("conf", [{"broker_url": "filesystem://"}, {"broker_url": "memory://"}, {}])
def test_an_eager_app_needs_no_broker_whatever_it_is_said_to_be(conf: dict[str, Any]) -> None:
    conf = conf or {"broker_url": f"amqp://127.0.0.1:{free_port()}//"}
    app = app_with(**conf, task_always_eager=True)
    install(app)
    assert app.tasks["double"].apply_async((21,), countdown=60).get() == 42
    with celery_rabbit_delay.batch(app) as producer:
        results = group(app.tasks["double"].s(n) for n in range(3)).apply_async(countdown=60, producer=producer)
    assert results.get() == [0, 2, 4]


@pytest.mark.parametrize("order", ["install first", "settings first"])
def test_start_worker_runs_tasks_in_memory(order: str) -> None:
    app = app_with(**(MEMORY if order == "settings first" else {"broker_url": "amqp://localhost//"}))
    install(app)
    if order == "install first":
        app.conf.update(MEMORY)
    with start_worker(app, perform_ping_check=False, pool="solo", shutdown_timeout=120):
        assert app.tasks["double"].delay(4).get(timeout=120) == 8
        with celery_rabbit_delay.batch(app) as producer:
            result = app.tasks["double"].apply_async((5,), countdown=0.2, producer=producer)
        assert result.get(timeout=120) == 10
        app.control.add_consumer("another")
        assert app.tasks["double"].apply_async((6,), countdown=0.2).get(timeout=120) == 12


def test_a_task_in_memory_is_revoked_as_celery_does_it(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(**MEMORY)
    install(app)
    with start_worker(app, perform_ping_check=False, pool="solo", shutdown_timeout=120):
        result = app.tasks["double"].apply_async((1,), countdown=2)
        result.revoke()
        app.control.terminate("another")
        app.control.revoke_by_stamped_headers({"customer": "7"})
        with pytest.raises(TaskRevokedError):
            result.get(timeout=120)
    assert "keep this revoke" not in caplog.text


def test_settings_that_lead_to_memory_and_back_are_followed() -> None:
    app = app_with(broker_url="amqp://localhost//")
    install(app)
    assert app.connection().transport.driver_type == "rabbitmq"
    app.conf.broker_url = "memory://"
    assert app.connection().transport.driver_type == "memory"
    app.conf.update(broker_url="localhost", broker_transport="memory")
    assert app.connection().transport.driver_type == "memory"
    app.conf.update(broker_url="amqp://localhost//", broker_transport=None)
    assert app.connection().transport.driver_type == "rabbitmq"
    app.conf.broker_url = "redis://localhost"
    with pytest.raises(UnsupportedConfiguration):
        app.connection()

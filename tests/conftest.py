from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from testkit.broker import Broker, Vhost
from testkit.node import Node
from testkit.wait import wait_until

# A busy machine is no reason to fail.
settings.register_profile("without a clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without a clock")


#: Plug-ins with more types of exchanges, which every distribution of RabbitMQ has.
EXCHANGES = ("rabbitmq_random_exchange", "rabbitmq_consistent_hash_exchange")


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A private node for the whole run; `RABBITMQ` chooses which RabbitMQ."""
    with Node(plugins=("rabbitmq_management", *EXCHANGES)) as node:
        yield Broker(node)


@pytest.fixture
def vhost(broker: Broker) -> Iterator[Vhost]:
    """A fresh vhost. A test that leaves connections open fails."""
    with broker.vhost() as vhost:
        yield vhost
        wait_until(lambda: not broker.connections(), "all connections of the test are closed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `pytest -n auto`: tests wait for half of their time."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests that take a minute begin first, so that the others do not end long before them.

    Each process of pytest-xdist begins with an equal part of the list, in its order.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    long = [item for item in items if item.get_closest_marker("long")]
    others = [item for item in items if not item.get_closest_marker("long")]
    share = -(-len(items) // processes)
    ordered = []
    for process in range(processes):
        first = long[process::processes]
        ordered += first + [others.pop(0) for _ in range(min(share - len(first), len(others)))]
    items[:] = ordered + others


def pytest_report_header() -> list[str]:
    from importlib.metadata import version

    # Not find_server(): unit tests need no broker, and it may have to install one.
    rabbitmq = os.environ.get("RABBITMQ") or "of this machine"
    return [f"celery {version('celery')}, kombu {version('kombu')}, amqp {version('amqp')}, RabbitMQ {rabbitmq}"]

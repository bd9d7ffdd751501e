from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from celery_rabbit_delay.delay.amqp import declare, delivery_time, routes
from tests.kit.broker import Broker, Vhost
from tests.kit.quiet import taking_turns
from tests.kit.shared_node import shared_node
from tests.kit.shared_vhost import SharedVhost, assert_no_orphans
from tests.kit.wait import wait_until

# A test must not fail because the machine is busy.
settings.register_profile(
    "without a clock",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=100 if os.environ.get("CI") else 40,
)
settings.load_profile("without a clock")

declare.SAVED_AFTER = declare.STARTED_AFTER = 0.0  # see tests.kit.broker.waiting_for_queues


#: Plug-ins with more types of exchanges, which every distribution of RabbitMQ has.
EXCHANGES = ("rabbitmq_random_exchange", "rabbitmq_consistent_hash_exchange")


def run_directory(config: pytest.Config) -> Path:
    """Return the directory that all processes of a run have in common."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    directory = factory.getbasetemp()
    return directory.parent if "PYTEST_XDIST_WORKER" in os.environ else directory


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """Yield a private node for the whole run, all its processes; `RABBITMQ` selects the release."""
    with shared_node(run_directory(pytestconfig), ("rabbitmq_management", *EXCHANGES)) as node:
        yield Broker(node)


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test begin as a new process that knows of no destination and no broker."""
    monkeypatch.setattr(delivery_time, "known", {})
    monkeypatch.setattr(routes, "_all", {})


def assert_no_connections(vhost: Vhost) -> None:
    """Assert that the connections of a test are closed, or will be soon.

    The management API may go on showing one that is not there any more: it counts while connections come and go.
    """
    with suppress(AssertionError):
        wait_until(lambda: not vhost.connections(), "all connections of the test are closed", 10)
        return

    def left() -> list[str]:
        found = vhost.broker.node.ctl("list_connections", "vhost", "name", "state", "channels", "client_properties")
        return [line for line in found.splitlines() if line.startswith(vhost.name)]

    try:
        wait_until(lambda: not left(), "RabbitMQ knows of no connection of the test", 90)
    except AssertionError as exc:
        raise AssertionError(f"{exc}: {left()}") from exc


@pytest.fixture(scope="session")
def shared_vhosts(broker: Broker) -> Iterator[list[SharedVhost]]:
    """Yield the virtual hosts that wait for the next test with `@pytest.mark.shared_vhost`: none or one."""
    shared: list[SharedVhost] = []
    yield shared
    for one in shared:
        one.remove()


@pytest.fixture
def vhost(request: pytest.FixtureRequest, broker: Broker) -> Iterator[Vhost]:
    """Yield a fresh vhost, or one that `shared_vhosts` are made of. A test that leaves connections open fails."""
    marked = request.node.get_closest_marker
    is_shared = marked("shared_vhost") and not marked("own_vhost")
    with ExitStack() as stack:
        if is_shared:
            shared: list[SharedVhost] = request.getfixturevalue("shared_vhosts")
            one = shared.pop() if shared else SharedVhost(broker)
            stack.callback(one.remove)
            vhost = one.vhost
        else:
            vhost = stack.enter_context(broker.vhost())
        yield vhost
        assert_no_connections(vhost)
        leaves_orphans = marked("leaves_orphans") is not None
        if is_shared and one.reset(leaves_orphans):
            stack.pop_all()
            shared.append(one)
        elif not is_shared and not leaves_orphans:
            assert_no_orphans(vhost.names("queues"), vhost.count)


def rank(item: pytest.Item) -> int:
    """Return when a test begins: those that take a minute first, then those that wait, those that need quiet last."""
    if item.get_closest_marker("quiet"):
        return 4
    if item.get_closest_marker("long"):
        return 0
    return {"acceptance": 1, "integration": 2}.get(item.path.parent.name, 3)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each process of pytest-xdist, which starts with an equal part of the list, some tests of each rank."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    ranks = [[item for item in items if rank(item) == number] for number in range(5)]
    shares = [
        of_rank[len(of_rank) * process // processes : len(of_rank) * (process + 1) // processes]
        for process in range(processes)
        for of_rank in ranks
    ]
    items[:] = itertools.chain.from_iterable(shares)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # its time is not yet running
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    with taking_turns(run_directory(item.config), item.get_closest_marker("quiet") is not None):
        return (yield)


def pytest_report_header() -> list[str]:
    from importlib.metadata import version

    # Not find_server(): unit tests need no broker, and it may have to install one.
    rabbitmq = os.environ.get("RABBITMQ") or "of this machine"
    return [f"celery {version('celery')}, kombu {version('kombu')}, amqp {version('amqp')}, RabbitMQ {rabbitmq}"]

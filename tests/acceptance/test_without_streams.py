"""On a broker without streams, as Amazon MQ, tasks are delayed, and what needs streams says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.broker import QUICK, Broker
from tests.kit.commands import run
from tests.kit.node import Node, find_server

from .conftest import Shop


class Streamless(Node):
    def environment(self) -> dict[str, str]:
        return super().environment() | {"RABBITMQ_FEATURE_FLAGS": "quorum_queue,virtual_host_metadata"}


@pytest.mark.long
def test_tasks_are_delayed_and_a_warning_says_what_does_not_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Streamless(find_server("3.10"), ("rabbitmq_management",)) as node, Broker(node).vhost() as vhost:
        shop = Shop(vhost, tmp_path, {**QUICK, "journal": 0}, {})
        worker = shop.worker()
        shop.send("note", "delayed", countdown=1)
        shop.wait_for(1, "delayed")
        assert worker.output().count("Connected to") == 1, "it has not lost its connection"
        assert "RabbitMQ cannot create the stream" in worker.output()
        assert "Delayed messages are sent without being recorded" in caplog.text
        refused = run(vhost.url("amqp"), "--queue", "celery", "setup")
        assert refused.code == 1
        assert "If it has no streams, as Amazon MQ, then delayed tasks work" in refused.err
        shop.close()

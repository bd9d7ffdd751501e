"""The prefetch count of a worker where RabbitMQ has one for each consumer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.common import QoS

from celery_rabbit_delay.delay.app.worker import FollowPool
from celery_rabbit_delay.delay.core.options import DRIVER_TYPE


def started(driver_type: str = DRIVER_TYPE, for_each_consumer: bool = True) -> Any:
    """Return a worker's consumer after the step has started."""
    task_consumer = SimpleNamespace(set_prefetch_count=lambda prefetch_count: applied.append(prefetch_count))
    applied: list[int] = []
    worker = SimpleNamespace(
        app=SimpleNamespace(conf=SimpleNamespace(worker_enable_prefetch_count_reduction=True)),
        connection=SimpleNamespace(
            transport=SimpleNamespace(driver_type=driver_type), qos_semantics_matches_spec=for_each_consumer
        ),
        task_consumer=task_consumer,
        qos=QoS(None, 8),
        applied=applied,
    )
    FollowPool(worker).start(worker)
    return worker


def test_only_the_pool_changes_the_count_and_not_tasks_that_wait_for_their_eta_in_the_worker() -> None:
    worker = started()
    qos = worker.qos
    assert qos.prev == qos.value == worker.task_consumer.fetches == 8  # Celery has sent it
    for _ in range(3):
        qos.increment_eventually()
    qos.decrement_eventually()
    assert qos.prev == qos.value
    qos.increment_eventually(4)  # as for `pool_grow`
    qos.update()
    qos.decrement_eventually(2)
    qos.update()
    assert worker.applied == [12, 10]
    assert not worker.app.conf.worker_enable_prefetch_count_reduction


@pytest.mark.parametrize(("driver_type", "for_each_consumer"), [("memory", True), (DRIVER_TYPE, False)])
def test_celery_changes_a_count_of_the_channel_itself(driver_type: str, for_each_consumer: bool) -> None:
    worker = started(driver_type, for_each_consumer)
    assert type(worker.qos) is QoS
    assert worker.app.conf.worker_enable_prefetch_count_reduction

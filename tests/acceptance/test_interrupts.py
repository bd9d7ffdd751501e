"""A task that exceeds its soft time limit while it publishes ends, and so does the next one in its process."""

from __future__ import annotations

import pytest

from .conftest import MakeShop

pytestmark = pytest.mark.shared_vhost


def test_soft_time_limits_end_tasks_that_publish(make_shop: MakeShop) -> None:
    shop = make_shop()
    worker = shop.worker("-c", "3", "--prefetch-multiplier", "1")
    for _ in range(12):
        shop.send("sends_for_ever", soft_time_limit=1)
    shop.wait_for(12, "interrupted")
    for _ in range(6):
        shop.send("note", "after")
    shop.wait_for(6, "after")
    assert worker.stop() == 0

"""Immediate tasks do not wait behind delayed ones in a worker with default settings."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from .conftest import MakeShop

DELAYED = 200
ENOUGH = 5  # seconds for an immediate task: milliseconds, in truth


@pytest.mark.long
@pytest.mark.parametrize("conf", [{}, {"queues": "quorum"}], ids=["classic", "quorum"])
def test_two_hundred_delayed_tasks_do_not_hold_up_immediate_ones(make_shop: MakeShop, conf: dict[str, Any]) -> None:
    shop = make_shop({}, **conf)
    for _ in range(DELAYED):
        shop.send("note", "delayed", countdown=80)  # more than a worker needs to start on a busy machine
    shop.worker("-c", "2")
    for n in range(10):
        sent = time.time()
        shop.send("note", f"immediate {n}")
        [run] = shop.wait_for(1, f"immediate {n}")
        assert run["at"] - sent < 4 * ENOUGH  # without us it takes until the others are due
    assert not shop.runs("delayed")
    for run in shop.wait_for(DELAYED, "delayed", timeout=150):
        assert run["at"] >= datetime.fromisoformat(run["eta"]).timestamp()

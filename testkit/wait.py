from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], description: str, timeout: float = 60) -> T:
    """Return the first true value of `predicate`; fail with `description` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain: {description}")
        time.sleep(0.02)
    return value

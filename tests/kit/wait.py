from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], description: str, timeout: float = 60) -> T:
    """Return the first true value of `predicate`; fail with `description` after `timeout` seconds.

    Asks less often the longer it has waited, because most predicates ask the broker: what took a second is noticed a
    tenth of a second later.
    """
    started = time.monotonic()
    while not (value := predicate()):
        waited = time.monotonic() - started
        if waited > timeout:
            raise AssertionError(f"waited {timeout} s in vain: {description}")
        time.sleep(min(max(0.02, waited / 10), 0.5))
    return value

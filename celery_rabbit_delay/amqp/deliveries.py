"""Deliveries that wait while a connection waits for the broker's answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

#: channel id, method, payload, content: what `amqp.Connection.on_inbound_method` is called with.
Delivery = tuple[int, Any, Any, Any]


class DeferredDeliveries:
    """Holds deliveries back, and hands them on one after the other.

    Waiting for the broker's answer, py-amqp calls consumers for whatever comes in meanwhile. One that publishes with a
    delay itself would wait in its turn, and so on, as deep as the consumer's prefetch count.
    """

    def __init__(self, deliver: Callable[[Delivery], None]) -> None:
        self._deliver = deliver
        self._waiting: deque[Delivery] = deque()
        self._holds = 0
        self._delivering = False

    def hold(self) -> DeferredDeliveries:
        """Keep deliveries until the block of a `with` ends. Blocks may be nested."""
        return self

    def __enter__(self) -> None:
        self._holds += 1

    def __exit__(self, *exc_info: object) -> None:
        self._holds -= 1
        self.flush()

    def offer(self, delivery: Delivery) -> bool:
        """Take a delivery if they are being held; return whether it was taken."""
        if self._holds:
            self._waiting.append(delivery)
        return bool(self._holds)

    def flush(self) -> bool:
        """Hand on what waits, unless that must wait longer; return whether there was anything.

        A consumer that raises leaves the others for the next call.
        """
        if self._holds or self._delivering or not self._waiting:
            return False
        self._delivering = True  # a consumer called from here must not call the next one
        try:
            while self._waiting:
                self._deliver(self._waiting.popleft())
        finally:
            self._delivering = False
        return True

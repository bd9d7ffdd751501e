"""How long, and how often, to try again what RabbitMQ cannot do at the moment, such as while a queue has no leader."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Patience:
    """So many seconds for which to try again. Pauses between two tries double: RabbitMQ logs each one."""

    def __init__(self, seconds: float, pause: float = 0.1, longest: float = 1.0) -> None:
        self._seconds, self._first, self._longest = seconds, pause, longest
        self.renew()

    def renew(self) -> None:
        """Begin again, as something has worked meanwhile."""
        self._end, self._pause = time.monotonic() + self._seconds, self._first

    def pause(self) -> bool:
        """Pause, and return True for another try; return False at once if the seconds are over."""
        if time.monotonic() >= self._end:
            return False
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        return True


def again(call: Callable[[], T], errors: type[Exception] | tuple[type[Exception], ...], seconds: float) -> T:
    """Call a function, again and again for some seconds while it raises one of some errors."""
    tries = Patience(seconds)
    while True:
        try:
            return call()
        except errors:
            if not tries.pause():
                raise

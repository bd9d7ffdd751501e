"""State of a `kombu.Connection`, stored outside of it. It outlives the AMQP connections that the object opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class PerClient(Generic[T]):
    """A value for each `kombu.Connection`, which is made when it is first asked for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[Any, T] = WeakKeyDictionary()

    def __getitem__(self, client: Any) -> T:
        value = self._values.get(client)
        return self._values.setdefault(client, self._make()) if value is None else value

    def __setitem__(self, client: Any, value: T) -> None:
        self._values[client] = value

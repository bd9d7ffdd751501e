"""Reading what any user who may publish can have written. Pure. For the schedule and for periodic tasks."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from .delay.core.errors import DelayError

F = TypeVar("F", bound=Callable[..., Any])

_MALFORMED = (
    *(struct.error, zlib.error),
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError),
)


class Unreadable(DelayError):
    """A message of a stream is malformed: any user who may publish to ingest can write one."""


def reading(function: F) -> F:
    """Raise `Unreadable` instead of the errors that malformed bytes cause in a function."""

    @wraps(function)
    def wrapper(*args: Any) -> Any:
        try:
            return function(*args)
        except _MALFORMED as exc:
            raise Unreadable(f"it is not what this package writes ({exc})") from exc

    return wrapper  # type: ignore[return-value]

"""State of a `kombu.Connection`, stored outside of it. It outlives the AMQP connections that the object opens."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..core.changes import Changes, Keys

if TYPE_CHECKING:
    from .batch import Batch


@dataclass
class Client:
    #: Batches being collected, the innermost last.
    batches: list[Batch] = field(default_factory=list)
    #: Returns whether the app consumes from quorum queues. The app's queues may change later.
    uses_quorum_queues: Callable[[], bool] = lambda: False
    #: The contents of the streams, for messages that are received.
    changes: Changes = field(default_factory=lambda: Changes(time.time))
    #: The keys of each cascade, by its root, because keys of different cascades are unrelated.
    keys: dict[str, Keys] = field(default_factory=lambda: defaultdict(lambda: Keys(time.monotonic)))
    #: Is called with the id of a cancelled task that arrives; returns whether it discards the task.
    on_cancelled: Callable[[str], bool] | None = None
    #: Streams of the journal that do not work, and the time (`time.monotonic`) of the next attempt.
    paused_streams: dict[str, float] = field(default_factory=dict)


_clients: WeakKeyDictionary[Any, Client] = WeakKeyDictionary()


def client_of(connection: Any) -> Client:
    """Return the state of a `kombu.Connection`."""
    known = _clients.get(connection)
    return _clients.setdefault(connection, Client()) if known is None else known


def share(connection: Any, known: Any) -> None:
    """Give a `kombu.Connection` the same state as another one."""
    _clients[connection] = client_of(known)

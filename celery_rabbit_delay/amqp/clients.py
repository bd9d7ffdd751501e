"""State of a `kombu.Connection`, stored outside of it. It outlives the AMQP connections that the object opens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..core.journal import Changes, Keys

if TYPE_CHECKING:
    from .batch import Batch


@dataclass
class Client:
    #: Batches being collected, the innermost last.
    batches: list[Batch] = field(default_factory=list)
    #: Whether the app consumes from quorum queues. The app's queues may change later.
    uses_quorum_queues: Callable[[], bool] = lambda: False
    #: What the streams say of messages that are received.
    changes: Changes = field(default_factory=Changes)
    #: Of each cascade by its root, for keys of different cascades have nothing to do with each other.
    keys: dict[str, Keys] = field(default_factory=lambda: defaultdict(Keys))
    #: Is told of a cancelled task that arrives, by its id; returns whether it sees to it.
    on_cancelled: Callable[[str], bool] | None = None
    #: Streams of the journal that do not work, and until when (`time.monotonic`) they are left alone.
    paused_streams: dict[str, float] = field(default_factory=dict)


_clients: WeakKeyDictionary[Any, Client] = WeakKeyDictionary()


def client_of(connection: Any) -> Client:
    """Return the state of a `kombu.Connection`."""
    known = _clients.get(connection)
    return _clients.setdefault(connection, Client()) if known is None else known


def share(connection: Any, known: Any) -> None:
    """Give a `kombu.Connection` the same state as another one."""
    _clients[connection] = client_of(known)

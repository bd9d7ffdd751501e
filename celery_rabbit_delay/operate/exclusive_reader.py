"""Makes readers of a whole queue wait for each other: what one connection reads is invisible to others meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from amqp.exceptions import AccessRefused, AMQPError, PreconditionFailed, ResourceLocked

from ..delay.amqp import declare
from ..delay.amqp.connecting import Patience
from .connecting import again


@contextmanager
def exclusive_reader(channel: Any, queue: str) -> Iterator[bool]:
    """Hold an exclusive queue as a lock on reading a queue; yield whether no other reader is known.

    If another one still reads it after five seconds, go on without the lock, as does a user who may not configure
    it, or where a limit leaves no room for it.
    """
    lock, owned, known = f"{queue}.reader", False, False
    with suppress(AccessRefused, PreconditionFailed):
        try:
            again(lambda: channel.queue_declare(lock, exclusive=True, auto_delete=True), ResourceLocked, 5)
            owned = True
        except ResourceLocked:
            known = True
    try:
        yield not known
    finally:
        if owned:
            with suppress(AMQPError, OSError):  # the lock ends with its connection
                channel.queue_delete(lock, nowait=True)


def wait_for_return(channel: Any, queue: str, amount: int, patience: float = 2) -> None:
    """Wait until a queue holds `amount` messages again: RabbitMQ closes their reader's channel before they return.

    Not for longer than `patience` seconds, because another consumer may have taken some of them.
    """
    tries = Patience(patience, 0.01, 0.1)
    while (declare.message_count(channel, queue) or 0) < amount and tries.pause():
        pass

"""The AMQP connections of users: what Kombu's do, and the connections of our own that belong to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

from amqp.exceptions import RecoverableConnectionError

from . import batch
from .interceptor import Interceptor
from .limited import LimitedConnection
from .sender import Sender


class Connection(LimitedConnection):
    """An `amqp.Connection` that has others: one to send what it delays, and those of its interceptor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Exchanges and routing keys that lasting queues were bound with on this connection.
        self.bound: set[tuple[str, str]] = set()
        self._senders: dict[int, Sender] = {}  # by the id of their process
        #: Whether the consumer sends back what comes before it is due; see `HandingOn`.
        self.hands_on = False
        #: Makes an event loop read what came with an answer: its data may show nowhere that there is more to read.
        self.read_soon: Callable[[], object] = lambda: None

    @property
    def sender(self) -> Sender:
        """What sends the messages that are delayed; a forked process has its own."""
        process = os.getpid()
        found = self._senders.get(process)
        if found is None:
            if self.client is None:
                raise RecoverableConnectionError("the connection is closed")
            found = self._senders.setdefault(process, Sender(self))
        return found

    @cached_property
    def interceptor(self) -> Interceptor:
        interceptor: Interceptor = self.client.transport.intercept(self.client)
        return interceptor

    def close(self, *args: Any, **kwargs: Any) -> None:
        if collected_by := batch.current():  # without a pool, Celery closes after each task
            collected_by.settle()
        if sender := self._senders.get(os.getpid()):
            sender.settle()
        super().close(*args, **kwargs)

    def collect(self) -> None:
        senders, interceptor = list(self._senders.values()), self.__dict__.pop("interceptor", None)
        self._senders = {}
        for one in (*senders, interceptor):
            if one is not None:
                one.close()
        super().collect()

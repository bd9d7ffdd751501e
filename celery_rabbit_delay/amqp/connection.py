"""The AMQP connections of users: what Kombu's do, and the connections of our own that belong to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import Any

from amqp.exceptions import RecoverableConnectionError

from . import batch
from .limited import LimitedConnection
from .receiving import Following, Known, known_to
from .sender import Sender


class Connection(LimitedConnection):
    """An `amqp.Connection` that has others: one to send what it delays, and one to follow the streams."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: Exchanges and routing keys that lasting queues were bound with on this connection.
        self.bound: set[tuple[str, str]] = set()
        self._senders: dict[int, Sender] = {}  # by the id of their process
        self._following: Following | None = None
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

    @property
    def following(self) -> Following:
        """What follows the streams."""
        if self._following is None:
            self._following = Following(self.client)
        return self._following

    def close(self, *args: Any, **kwargs: Any) -> None:
        if collected_by := batch.current():  # without a pool, Celery closes after each task
            collected_by.settle()
        super().close(*args, **kwargs)

    def collect(self) -> None:
        senders, following = list(self._senders.values()), self._following
        self._senders, self._following = {}, None
        for one in (*senders, following):
            if one is not None:
                one.close()
        super().collect()

    @cached_property
    def known(self) -> Known:
        """What the streams have said about messages that this connection may receive."""
        return known_to[self.client]

"""The page within another web application, which decides who may see it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .indexer import Indexer
from .operations import Broker
from .setting import Setting
from .site import create

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


class MountedPage:
    """A WSGI application (PEP 3333) with the page at any path.

    Each process that serves it follows the journal from its first request on, so that a server may fork before.
    """

    def __init__(self, setting: Setting, broker: Callable[[], Broker]) -> None:
        self._setting = setting
        self._broker = broker
        self._lock = threading.Lock()
        self._site: WSGIApplication | None = None
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. Raises `UnsupportedConfiguration`."""
        with self._lock:
            site = self._site = self._site or self._started()
        return site(environ, start_response)

    def _started(self) -> WSGIApplication:
        broker = self._broker()
        indexer = Indexer(broker.connect, broker.names)
        site = create(self._setting, broker, indexer)
        indexer.start()
        return site

    def _forget(self) -> None:
        self._lock, self._site = threading.Lock(), None

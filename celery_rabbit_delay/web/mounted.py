"""The page within another web application, which decides who may see it."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .database import IndexDamaged
from .operations import Broker
from .serve import indexing
from .setting import Setting
from .site import create

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


class MountedPage:
    """A WSGI application (PEP 3333) with the page at any path.

    Each process that serves it follows the journal from its first request on, so that a server may fork before.
    """

    def __init__(self, setting: Setting, broker: Callable[[], Broker], index: Path | None) -> None:
        self._setting = setting
        self._broker = broker
        self._index = index
        self._lock = threading.Lock()
        self._site: WSGIApplication | None = None
        os.register_at_fork(after_in_child=self._forget)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. Raises `UnsupportedConfiguration`, `IndexUnusable`."""
        with self._lock:
            site = self._site = self._site or self._started()
        return site(environ, start_response)

    def _started(self) -> WSGIApplication:
        broker, process = self._broker(), os.getpid()
        with ExitStack() as stack:
            indexer = stack.enter_context(indexing(broker, self._index))
            site = create(self._setting, broker, indexer)
            indexer.start()
            stack.callback(indexer.stop)
            ending = stack.pop_all()
        # A child that this process forks later must not remove the index.
        atexit.register(lambda: _end(ending) if os.getpid() == process else None)
        return site

    def _forget(self) -> None:
        self._lock, self._site = threading.Lock(), None


def _end(ending: ExitStack) -> None:
    with suppress(IndexDamaged):  # which the page has said
        ending.close()

"""Runs the web page until a signal stops it, and prints the metrics once."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waitress.server import BaseWSGIServer

from ..core.errors import UnsupportedConfiguration
from . import safety
from .database import IndexDamaged, delete
from .gauges import exposition
from .index import Index
from .indexer import Indexer, indexed
from .listening import listen
from .operations import Broker, Operations
from .overview import Overview
from .setting import Setting
from .site import create


def check(setting: Setting) -> None:
    """Raise `UnsupportedConfiguration` if other machines could use the page without a password."""
    if not safety.is_loopback(setting.host) and not setting.password:
        raise UnsupportedConfiguration(
            f"other machines can reach {setting.host}: set a password in the environment variable "
            "CELERY_RABBIT_DELAY_WEB_PASSWORD, or listen on 127.0.0.1"
        )


def serve(setting: Setting, broker: Broker, index: Path | None, say: Callable[[str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM.

    Raises `UnsupportedConfiguration`, `IndexUnusable`, `OSError`; `IndexDamaged` as soon as the damage is noticed.
    """
    check(setting)
    signal.signal(signal.SIGTERM, _stop)
    with indexing(broker, index) as indexer:
        site = create(setting, broker, indexer)
        server = listen(site, setting.host, setting.port)
        indexer.on_damage = lambda: os.kill(os.getpid(), signal.SIGTERM)
        indexer.start()
        port = server.getsockname()[1] if isinstance(server, BaseWSGIServer) else setting.port
        say(f"http://{_shown(setting.host)}:{port}/")
        try:
            server.run()  # until SIGINT or SIGTERM
        finally:
            server.close()
            indexer.stop()
        say("stopped")


def metrics(broker: Broker, index: Path | None) -> bytes:
    """Return the metrics from an up-to-date index. Raises `StreamUnavailable`, `IndexUnusable`, `IndexDamaged`."""
    with indexing(broker, index) as indexer:
        indexed(indexer)
        return exposition(Overview(Operations(broker, indexer)))


@contextmanager
def indexing(broker: Broker, path: Path | None) -> Iterator[Indexer]:
    """Yield what feeds the index in a file, or in a temporary one. Raises `IndexUnusable`.

    Deletes a file that turned out to be damaged, so that the next start builds it again; raises `IndexDamaged`.
    """
    with tempfile.TemporaryDirectory(prefix="celery-rabbit-delay-index-") as directory:
        index = Index(path or Path(directory, "index.sqlite"), broker.name, broker.names.scope)
        indexer = Indexer(index, broker.connect, broker.names)
        try:
            yield indexer
        except IndexDamaged as exc:
            indexer.give_up(exc)
        finally:
            if indexer.damage:
                delete(index.path)
            index.close()
        if indexer.damage:
            raise indexer.damage


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stop(*signal: Any) -> None:
    raise SystemExit(0)

"""Runs the web page until a signal stops it, and prints the metrics once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from waitress.server import BaseWSGIServer, create_server

from ..delay.core.errors import UnsupportedConfiguration
from . import safety
from .forms import FORM
from .gauges import exposition
from .indexer import Indexer, indexed
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


def serve(setting: Setting, broker: Broker, say: Callable[[str], None]) -> None:
    """Serve the page until SIGINT or SIGTERM. Raises `UnsupportedConfiguration`, `OSError`."""
    check(setting)
    signal.signal(signal.SIGTERM, _stop)
    indexer = Indexer(broker.connect, broker.names)
    server = create_server(
        create(setting, broker, indexer),
        host=setting.host,
        port=setting.port,
        threads=8,
        connection_limit=500,
        channel_timeout=20,  # seconds that a connection without a request stays
        cleanup_interval=5,
        asyncore_use_poll=True,
        max_request_body_size=2 * FORM,
        ident=None,
        clear_untrusted_proxy_headers=True,
    )
    indexer.start()
    port = server.getsockname()[1] if isinstance(server, BaseWSGIServer) else setting.port
    say(f"http://{_shown(setting.host)}:{port}/")
    try:
        server.run()  # until SIGINT or SIGTERM
    finally:
        server.close()
        indexer.stop()
    say("stopped")


def metrics(broker: Broker) -> bytes:
    """Return the metrics, once the journal is read. Raises `StreamUnavailable`."""
    indexer = Indexer(broker.connect, broker.names)
    indexed(indexer)
    return exposition(Overview(Operations(broker, indexer)))


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _stop(*signal: Any) -> None:
    raise SystemExit(0)

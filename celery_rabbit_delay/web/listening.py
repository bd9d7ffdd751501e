"""The page's HTTP server. Connections that send no request keep nobody out."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from waitress.channel import HTTPChannel
from waitress.server import BaseWSGIServer, MultiSocketServer, create_server

from .forms import FORM

#: The number of requests that are handled in parallel.
_THREADS = 8

#: Connections that are kept. If there are more, those are closed that have waited longest for a request or a reader.
MOST = 200

#: Seconds within which a connection must have sent its next request, and seconds between two looks at that.
SILENCE, _LOOK = 20, 5


class Channel(HTTPChannel):
    """A connection of a client. Whoever connects while there are too many closes the one that has waited longest."""

    is_given_up = False

    def __init__(self, server: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(server, *args, **kwargs)
        waiting = [channel for channel in server.active_channels.values() if channel.is_waiting and channel is not self]
        if len(server.active_channels) > MOST and waiting:
            min(waiting, key=lambda channel: channel.last_activity).give_up()

    @property
    def is_waiting(self) -> bool:
        """Whether the connection has no request that is being handled."""
        return not self.requests and not self.is_given_up

    def give_up(self) -> None:
        """Have the connection closed."""
        self.is_given_up = self.will_close = True
        with suppress(OSError):
            assert self.socket is not None
            self.socket.shutdown(socket.SHUT_RDWR)  # the server looks at it at once, even if its client reads nothing

    def handle_read(self) -> None:
        """Receive. A part of a request is no activity: whoever sends a byte now and then would never have to end."""
        before = self.last_activity
        super().handle_read()
        if self.request is not None:
            self.last_activity = before


def listen(site: Callable[..., Any], host: str, port: int) -> MultiSocketServer | BaseWSGIServer:
    """Return the server of a site. Raises `OSError`."""
    server = create_server(
        site,
        host=host,
        port=port,
        threads=_THREADS,
        connection_limit=2 * MOST,
        channel_timeout=SILENCE,
        cleanup_interval=_LOOK,
        asyncore_use_poll=True,
        max_request_body_size=2 * FORM,
        ident=None,
        clear_untrusted_proxy_headers=True,
    )
    listening: Any = (server.map or {}).values() if isinstance(server, MultiSocketServer) else [server]
    for one in listening:
        if isinstance(one, BaseWSGIServer):
            one.channel_class = Channel
    return server

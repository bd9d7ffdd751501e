"""A TCP proxy before the broker: records what a client sends, and cuts or stalls the connection where a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Proxy:
    """`sent` is all that clients have sent; `cut_after(data)` is asked before each piece of it is passed on.

    While `flowing` is cleared, nothing is passed on in either direction; after `silence`, nothing of some connections.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.sent = bytearray()
        self.cut_after: Callable[[bytes], bool] = lambda data: False
        self.flowing = threading.Event()
        self.flowing.set()
        self.connections: list[socket.socket] = []
        self.first: dict[socket.socket, bytes] = {}  # what each client has said first
        self.silenced: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections.append(client)
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # the broker is down
                    client.close()
                    continue
                for sock in (client, server):  # as py-amqp and RabbitMQ: two small writes else take 40 ms
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, sending: bool) -> None:
        client = source if sending else target
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if sending:
                    self.sent += data
                    self.first[client] = (self.first.get(client, b"") + data)[:2000]
                    if self.cut_after(data):
                        source.shutdown(socket.SHUT_RDWR)  # the client hears no more; the broker gets this last piece
                self.flowing.wait()
                while client in self.silenced:
                    time.sleep(0.05)
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def url(self, url: str) -> str:
        """Return the URL of the broker, by way of this proxy."""
        return url.replace(str(self.target), str(self.port))

    def silence(self, name: str) -> int:
        """Pass on nothing more of the connections that have this name now, and close none; return how many."""
        named = {client for client, first in self.first.items() if name.encode() in first}
        self.silenced |= named
        return len(named)

    def cut(self) -> None:
        """Cut all connections that there are."""
        connections, self.connections = self.connections, []
        for client in connections:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.flowing.set()
        self.silenced.clear()
        self.listener.close()


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    proxying = Proxy(port)
    try:
        yield proxying
    finally:
        proxying.close()

"""The page's server, with clients that hold connections open and send no request."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from celery_rabbit_delay.web import listening
from tests.kit.wait import wait_until


def hello(environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]


@contextmanager
def served() -> Iterator[int]:
    """Yield the port of a server."""
    server: Any = listening.listen(hello, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.effective_port
    finally:
        server.task_dispatcher.shutdown()
        for one in [*server.active_channels.values(), server]:  # without sockets, its loop ends
            one.close()
        thread.join()


def connect(stack: ExitStack, port: int, sends: bytes = b"GET / HTTP/1.1\r\n") -> socket.socket:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
    client.sendall(sends)
    return client


def ask(port: int) -> bytes:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    client.request("GET", "/")
    answer = client.getresponse().read()
    client.close()
    return answer


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("sends", [b"", b"GET / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n1"])
def test_connections_that_send_no_request_keep_nobody_out(sends: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MOST", 50)
    monkeypatch.setattr(listening, "SILENCE", 3600)  # a busy machine may need longer than that is
    with served() as port, ExitStack() as stack:
        held = [connect(stack, port, sends) for _ in range(2 * listening.MOST + 100)]
        assert ask(port) == b"hello"
        wait_until(lambda: sum(map(is_closed, held)) > listening.MOST, "the first ones are closed")
        assert not is_closed(held[-1])


def test_a_connection_that_is_used_outlives_those_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MOST", 5)
    monkeypatch.setattr(listening, "SILENCE", 3600)
    with served() as port, ExitStack() as stack:
        used = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for _ in range(20):
            connect(stack, port)
            used.request("GET", "/")
            assert used.getresponse().read() == b"hello"
        used.close()


def test_a_request_has_to_come_in_time_even_if_a_part_of_it_comes_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "SILENCE", 1)
    monkeypatch.setattr(listening, "_LOOK", 0)
    with served() as port, ExitStack() as stack:
        client = connect(stack, port)
        began = time.monotonic()

        def is_given_up() -> bool:
            try:
                client.sendall(b"x")
            except ConnectionError:
                return True
            return is_closed(client)

        wait_until(is_given_up, "the connection is closed")
        assert time.monotonic() - began > 1

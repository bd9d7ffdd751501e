"""The client of the management API, with good and bad servers."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kombu
import pytest
import trustme

from celery_rabbit_delay.cli.target import MANAGEMENT_CERT, management_of
from celery_rabbit_delay.delay.core.errors import NotPermitted, UnsupportedConfiguration
from celery_rabbit_delay.operate import Management, management

QUEUES = [{"name": "q", "messages": 3}]


class Api(HTTPServer):
    """Knows a queue, and notes what it is asked: paths and credentials."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Api)
        self.server.asked.append((self.path, self.headers["Authorization"]))
        body = json.dumps(QUEUES).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Api]:
    with Api() as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(*answers: bytes) -> Iterator[int]:
    """Yield the port of a server that answers requests with some bytes, each on its own connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                client, _ = server.accept()
                with client:
                    client.recv(65536)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


def test_only_some_columns_of_the_queues_of_one_virtual_host_are_asked_for() -> None:
    with serving() as server:
        api = Management(f"http://me:s3cr%2Fet@127.0.0.1:{server.server_port}/proxy/", "shop/1")
        assert api.queues() == {"q": QUEUES[0]}
    [(path, credentials)] = server.asked
    assert urlsplit(path).path == "/proxy/api/queues/shop%2F1"
    [columns] = parse_qs(urlsplit(path).query)["columns"]
    assert {"name", "messages_ready", "messages_dlx"} < set(columns.split(","))
    assert credentials == "Basic bWU6czNjci9ldA=="  # me:s3cr/et


@pytest.mark.parametrize("file", ["ca.pem", None])
def test_a_server_of_another_authority_is_an_error_and_is_told_no_password(
    file: str | None, tls: ssl.SSLContext, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with serving(tls) as server:
        place = f"localhost:{server.server_port}"
        api = Management(f"https://me:secret@{place}", "/", None if file is None else str(tmp_path / file))
        with pytest.raises(UnsupportedConfiguration, match=rf"answers at {place} .*certificate verify failed"):
            api.queues()
    assert server.asked == []


@pytest.mark.parametrize("content", [None, "no certificate", ""])
def test_a_file_without_an_authority_is_an_error_that_names_it(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UnsupportedConfiguration, match=r"ca.pem' holds no certificate authority"):
        Management("https://localhost", "/", str(path))


def test_a_certificate_without_its_key_is_an_error_that_names_its_file(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv(MANAGEMENT_CERT, str(tmp_path / "ca.pem"))
    with (
        kombu.Connection("memory://") as connection,
        pytest.raises(UnsupportedConfiguration, match=r"ca.pem' holds no certificate with its key"),
    ):
        management_of("https://localhost", connection)


CUT = b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n[{"name": "q"'


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (CUT, r"IncompleteRead\(13 bytes read, 987 more expected\)"),
        (b"AMQP\x00\x00\x09\x01", r"AMQP"),
        (b"", "closed connection without response"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "Expecting value"),
        (b"HTTP/1.1 200 OK\r\n" + 200 * b"a: b\r\n" + b"\r\n", "got more than 100 headers"),
    ],
)
def test_a_server_that_is_no_management_api_is_an_error_that_names_its_place(answer: bytes, says: str) -> None:
    with answering(answer) as port:
        api = Management(f"http://me:secret@127.0.0.1:{port}", "/")
        with pytest.raises(UnsupportedConfiguration, match=rf"no management API answers at 127.0.0.1:{port} .*{says}"):
            api.snapshot()


FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"


def test_a_request_that_fails_is_sent_again_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(FAILED, FAILED, b"HTTP/1.1 200 OK\r\n\r\n[]") as port:
        assert Management(f"http://me:secret@127.0.0.1:{port}", "/").queues() == {}
    monkeypatch.setattr(management, "ANSWER_WITHIN", 0)
    with answering(FAILED) as port:
        says = r"has failed \(HTTP Error 500: Internal Server Error\): try again"
        with pytest.raises(UnsupportedConfiguration, match=says):
            Management(f"http://me:secret@127.0.0.1:{port}", "/").queues()


@pytest.mark.parametrize("status", [400, 404, 405])
def test_only_a_refusal_is_one(status: int) -> None:
    with answering(f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode()) as port:
        api = Management(f"http://me:secret@127.0.0.1:{port}", "/")
        with pytest.raises(UnsupportedConfiguration, match=rf"has failed \(HTTP Error {status}: No\)"):
            api.queues()


def test_a_server_that_refuses_the_user_says_what_it_wants() -> None:
    with answering(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as port:
        api = Management(f"http://me:secret@127.0.0.1:{port}", "/")
        with pytest.raises(NotPermitted, match="it requires a user with the tag 'management'"):
            api.queues()


@pytest.mark.parametrize(
    "url",
    [
        *("localhost:15672", "http://me:s3c/ret@localhost", "http://me:12/34@localhost", "http://me:12?s3@h"),
        *("ftp://h", "http://h:port", "http://"),
    ],
)
def test_a_url_that_cannot_be_read_is_an_error_without_its_password(url: str) -> None:
    with pytest.raises(UnsupportedConfiguration, match=r"the management API cannot be read: .*as / as %2F$") as failed:
        Management(url, "/")
    assert not [part for part in ("s3", "12", "34") if part in str(failed.value)]

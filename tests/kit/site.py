"""The page as a process of its own, and what a client without a browser asks of it."""

from __future__ import annotations

import http.cookiejar
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.kit import background, forks
from tests.kit.wait import wait_until


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


class Answer:
    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.headers, self.text = status, headers, body.decode()


class Site:
    def __init__(self, process: Any, log: Path) -> None:
        self.process = process
        self.log = log
        self.url = ""
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies, _NoRedirect)

    def output(self) -> str:
        return self.log.read_text()

    def ask(self, path: str, fields: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        """Send a GET, or a POST with fields. Redirects are not followed."""
        data = None if fields is None else urlencode(fields, doseq=True).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, data, named)
        try:
            with self._opener.open(request, timeout=60) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as exc:
            with exc:
                return Answer(exc.code, exc.headers, exc.read())

    def token(self, path: str = "/") -> str:
        found = re.search(r'name="token" value="([^"]+)"', self.ask(path).text)
        assert found
        return found[1]

    def post(self, path: str, page: str = "/", **fields: Any) -> str:
        """Send a form with the token of a page; return what the next page says."""
        answer = self.ask(path, {"token": self.token(page), "back": page, **fields})
        assert answer.status == 303, answer.text
        return self.ask(answer.headers["Location"]).text

    def numbers(self, path: str = "/") -> list[int]:
        """Return the numbers of the rows of the table."""
        return [int(number) for number in re.findall(r'id="row-(\d+)"', self.ask(path).text)]

    def metric(self, name: str) -> float:
        [value] = re.findall(rf"^celery_rabbit_delay_{re.escape(name)} (\S+)$", self.ask("/metrics").text, re.MULTILINE)
        return float(value)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return int(self.process.wait(60))


@contextmanager
def serving(command: list[str], directory: Path, **environment: str) -> Iterator[Site]:
    """Run the command for the page, on any port; yield once it has printed its address."""
    log = directory / f"page-{len(list(directory.glob('page-*.log')))}.log"
    variables = {**os.environ, **environment, "TMPDIR": str(directory)}
    process = forks.start([*command, "--port", "0"], log, log, directory, variables)
    site = Site(process, log)
    try:
        wait_until(lambda: "http://" in site.output() or process.poll() is not None, "the page says where it is")
        assert process.poll() is None, site.output()
        found = re.search(r"http://(\S+):(\d+)/", site.output())
        assert found
        site.url = f"http://127.0.0.1:{found[2]}"
        yield site
    finally:
        process.send_signal(signal.SIGTERM)  # so that it cleans up, and coverage is written
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        background.kill(process)

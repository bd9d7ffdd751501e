"""A client of RabbitMQ's management API, which shows bindings, and messages between queues.

https://www.rabbitmq.com/docs/management#http-api
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from ..delay.amqp.connecting import Patience
from ..delay.amqp.limited import ANSWER_WITHIN
from ..delay.core.errors import NotPermitted, UnsupportedConfiguration
from ..delay.core.topology import Binding

#: The columns to fetch of each queue; all columns would be some kilobytes.
_COLUMNS = (
    "name",
    "state",
    "arguments",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "messages",
    "messages_ready",
    "messages_unacknowledged",
    "messages_dlx",
    "messages_delayed",
    "message_bytes_ready",
    "message_bytes_dlx",
)


#: What the API shows of queues or exchanges, by their names.
Rows = Mapping[str, Mapping[str, Any]]


class Snapshot(NamedTuple):
    """What the API shows at a moment. Counts of messages are some seconds old."""

    queues: Rows
    bindings: set[Binding]


class Management:
    """The API at `http://user:password@host:15672`, for one virtual host.

    Raises `UnsupportedConfiguration` if no API answers, `NotPermitted` if it refuses a request.
    """

    def __init__(self, url: str, vhost: str, ca: str | None = None, cert: str | None = None) -> None:
        """Trust the certificate authorities of the file `ca`, or by default those of Python.

        `cert` is a file with a client certificate and its key.
        """
        try:
            parts = urlsplit(url)
            understood = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            understood &= "@" not in parts.path + parts.query + parts.fragment  # parts of an unescaped password
        except ValueError:
            understood = False
        if not understood:
            raise UnsupportedConfiguration(
                "the URL of the management API cannot be read: use one such as http://user:password@host:15672, and "
                "percent-encode special characters in user and password, such as / as %2F"
            )
        try:
            self._tls = ssl.create_default_context(cafile=ca) if parts.scheme == "https" else None
        except (OSError, ValueError) as exc:
            raise UnsupportedConfiguration(f"the file {ca!r} holds no certificate authority: {exc}") from exc
        try:
            if self._tls and cert:
                self._tls.load_cert_chain(cert)
        except (OSError, ValueError) as exc:
            raise UnsupportedConfiguration(f"the file {cert!r} holds no certificate with its key: {exc}") from exc
        self._place = parts.netloc.rpartition("@")[2]
        self._base = f"{parts.scheme}://{self._place}{parts.path.rstrip('/')}/api"
        self._credentials = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._vhost = quote(vhost, safe="")

    def snapshot(self) -> Snapshot:
        """Return all queues, and all bindings except those of the default exchange."""
        bindings = {
            Binding(row["source"], row["destination"], row["destination_type"], row["routing_key"])
            for row in self._get(f"/bindings/{self._vhost}")
            if row["source"]
        }
        return Snapshot(self.queues(), bindings)

    def queues(self) -> Rows:
        """Return the columns of each queue."""
        rows = self._get(f"/queues/{self._vhost}?columns={','.join(_COLUMNS)}")
        return {row["name"]: row for row in rows}

    def _answer(self, request: Request) -> Any:
        with urlopen(request, timeout=30, context=self._tls) as response:
            return json.load(response)

    def _get(self, path: str) -> Any:
        request = Request(self._base + path)
        request.add_header("Authorization", "Basic " + base64.b64encode(self._credentials.encode()).decode())
        tries = Patience(ANSWER_WITHIN)
        try:
            while True:
                try:
                    return self._answer(request)
                except HTTPError as exc:
                    exc.close()
                    # RabbitMQ fails now and then, as while a queue is being deleted.
                    if exc.code < 500 or not tries.pause():
                        raise
        except HTTPError as exc:
            if exc.code not in (401, 403):
                raise UnsupportedConfiguration(
                    f"the management API at {self._place} has failed ({exc}): try again, and see the log of RabbitMQ "
                    "if that does not help"
                ) from exc
            raise NotPermitted(
                f"the management API at {self._place} refused it ({exc}): it requires a user with the tag "
                "'management' and permissions on the virtual host"
            ) from exc
        except (URLError, HTTPException, OSError, ValueError) as exc:
            raise UnsupportedConfiguration(
                f"no management API answers at {self._place} ({exc}): is the plug-in rabbitmq_management enabled?"
            ) from exc

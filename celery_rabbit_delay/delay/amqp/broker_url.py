"""The URL schemes of the transport, the broker URLs that it replaces, and the parameters of TLS in them.

Importing this module registers `rabbit-delay://` and `rabbit-delays://` (TLS) with Kombu.
"""

from __future__ import annotations

import os
from ssl import CERT_NONE
from typing import Any

from kombu.connection import resolve_aliases
from kombu.transport import TRANSPORT_ALIASES

from ..core.errors import UnsupportedConfiguration

TRANSPORT_ALIASES["rabbit-delay"] = "celery_rabbit_delay.transport:Transport"
TRANSPORT_ALIASES["rabbit-delays"] = "celery_rabbit_delay.transport:SSLTransport"
# The scheme that a connection shows in logs and to tools such as Flower, which look for "amqp".
resolve_aliases["rabbit-delay"] = "amqp"
resolve_aliases["rabbit-delays"] = "amqps"

#: The parameters of TLS that py-amqp takes, and what Kombu has in front of them in a URL.
_TLS = ("ca_certs", "certfile", "keyfile", "cert_reqs", "server_hostname", "ciphers")
_IN_URL = "ssl_"

#: The transports that this package replaces, by their names in a URL or in `broker_transport`.
TRANSPORTS = {
    "amqp": "rabbit-delay",
    "pyamqp": "rabbit-delay",
    "amqps": "rabbit-delays",
    "rabbit-delay": "rabbit-delay",
    "rabbit-delays": "rabbit-delays",
}


def delay_url(url: Any) -> Any:
    """Return a broker URL, a `;` list or a list of them, with our schemes. Raises `UnsupportedConfiguration`."""
    if isinstance(url, (list, tuple)):
        return [delay_url(one) for one in url]
    if not isinstance(url, str):
        return url
    if ";" in url:
        return ";".join(map(delay_url, url.split(";")))
    scheme, separator, rest = url.partition("://")
    return delay_transport(scheme) + separator + rest if separator else url


def delay_transport(name: Any) -> str:
    """Return the name of our transport that replaces another one. Raises `UnsupportedConfiguration`."""
    try:
        return TRANSPORTS[str(name).lower()]
    except KeyError:
        raise UnsupportedConfiguration(
            f"the broker's transport is {name!r}, but only RabbitMQ over AMQP can delay tasks: use a broker_url that "
            "begins with amqp:// or amqps://, or do not call install()"
        ) from None


def tls_of(ssl: Any) -> Any:
    """Return what py-amqp takes as `ssl`, of what Kombu has: it does not know the names that Kombu has in URLs.

    A URL that names certificates also has the broker's name checked. Raises `UnsupportedConfiguration`.
    """
    if not isinstance(ssl, dict) or not any(name.startswith(_IN_URL) for name in ssl):
        return ssl
    found = {name.removeprefix(_IN_URL): value for name, value in ssl.items()}
    if unknown := found.keys() - set(_TLS):
        known = ", ".join(f"{_IN_URL}{name}" for name in _TLS)
        raise UnsupportedConfiguration(f"the broker URL has {_IN_URL}{min(unknown)}: for TLS it may have {known}")
    for name in ("ca_certs", "certfile", "keyfile"):
        if name in found and not os.access(found[name], os.R_OK):
            raise UnsupportedConfiguration(
                f"the broker URL has {_IN_URL}{name}: the file {found[name]!r} cannot be read"
            )
    is_verified = found.get("cert_reqs") != CERT_NONE
    return {"server_hostname": None, **found} if is_verified else found  # Kombu takes None for the host of the URL

"""What `guard` decides by: which host names and passwords are right, and the headers of responses. No I/O."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

#: The policy for browsers: load nothing from other sites, run only the page's own script, do not allow frames.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

#: A Host header: an IPv6 address in brackets, or a name or IPv4 address, and perhaps a port.
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:]+))(?::[0-9]*)?", re.ASCII)

#: The limit of wrong passwords per address, the seconds that they count, and the number of addresses to remember.
_TRIES, _SECONDS, _ADDRESSES = 10, 60, 10_000


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_known(header: str, listening: str, names: Collection[str]) -> bool:
    """Return whether a Host header names this page. Other names may be an attack by DNS rebinding.

    IP addresses are safe. If the page listens on a loopback address, only loopback addresses are known.
    """
    parts = _HOST.fullmatch(header)
    if parts is None:
        return False
    host = (parts[1] or parts[2]).lower().rstrip(".")
    if host in {name.lower().strip("[]") for name in names} or host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(listening)


def same(given: str, expected: str) -> bool:
    """Return whether two secrets are equal, in constant time."""
    digests = [hashlib.sha256(secret.encode(errors="replace")).digest() for secret in (given, expected)]
    return hmac.compare_digest(*digests)


class Passwords:
    """Checks passwords, and blocks an address for a while after many wrong ones."""

    def __init__(self, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._password = password
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def is_blocked(self, address: str) -> bool:
        """Return whether an address is blocked."""
        moment = self._clock()
        recent = [at for at in self._wrong.get(address, ()) if moment - at < _SECONDS]
        return len(recent) >= _TRIES

    def accept(self, address: str, given: str) -> bool:
        """Return whether a password is right, unless its address is blocked."""
        if self.is_blocked(address):
            return False
        if same(given, self._password):
            self._wrong.pop(address, None)
            return True
        moment = self._clock()
        recent = [at for at in self._wrong.pop(address, ()) if moment - at < _SECONDS]
        self._wrong[address] = [*recent, moment]
        while len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)
        return False

"""Who may use the page: names that it answers to, passwords, tokens of forms. Pure but for what it remembers."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Collection

#: What a browser may do with a page: nothing is loaded from elsewhere, and nothing in it runs or is framed.
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

#: Wrong passwords from one address in so many seconds, and addresses that are remembered.
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
    """Return whether a Host header names this page: else another site's name may have been led here (DNS rebinding).

    An address cannot be led elsewhere; where only this machine is listened to, it must be one of the loopback.
    """
    host = header.rpartition("]")[0] + "]" if header.startswith("[") else header.partition(":")[0]
    host = host.lower().rstrip(".")
    if host in {name.lower() for name in names} or host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or not is_loopback(listening)


def same(given: str, expected: str) -> bool:
    """Return whether two secrets are the same, in a time that does not tell where they differ."""
    digests = [hashlib.sha256(secret.encode(errors="replace")).digest() for secret in (given, expected)]
    return hmac.compare_digest(*digests)


class Door:
    """Checks passwords, and for a while none of an address that sent many wrong ones."""

    def __init__(self, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._password = password
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def is_closed(self, address: str) -> bool:
        """Return whether an address has to wait."""
        moment = self._clock()
        recent = [at for at in self._wrong.get(address, ()) if moment - at < _SECONDS]
        return len(recent) >= _TRIES

    def opens(self, address: str, given: str) -> bool:
        """Return whether the password of an address is right."""
        if self.is_closed(address):
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

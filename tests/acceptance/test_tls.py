"""A worker whose broker speaks TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.kit.broker import QUICK
from tests.kit.node import Node, free_port

from .conftest import Shop

pytestmark = pytest.mark.more


@pytest.fixture
def tls_broker(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the URL of a private node's TLS listener, and the `broker_use_ssl` that verifies it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    port = free_port()
    node = Node()
    # In the node's own directory, which is all that a RabbitMQ in a root directory of its own can see.
    files = {name: str(node.data / f"{name}.pem") for name in ("cacertfile", "certfile", "keyfile")}
    authority.cert_pem.write_to_path(files["cacertfile"])
    certificate.cert_chain_pems[0].write_to_path(files["certfile"])
    certificate.private_key_pem.write_to_path(files["keyfile"])
    node.conf = f"listeners.ssl.default = 127.0.0.1:{port}"
    node.conf += "".join(f"\nssl_options.{name} = {path}" for name, path in files.items())
    with node:
        verify = {"ca_certs": files["cacertfile"], "cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}
        yield f"amqps://guest:guest@127.0.0.1:{port}//", verify


def test_delayed_and_waiting_tasks_run_over_verified_tls(
    tls_broker: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, verify = tls_broker
    shop = Shop(None, tmp_path, QUICK, {"broker_url": url, "broker_use_ssl": verify})
    try:
        # What waits in the queue may come in one TLS record with the answer to the worker's basic.consume.
        for n in range(8):
            shop.send("note", f"waiting {n}")
        shop.worker("--without-mingle", "--without-gossip", "--without-heartbeat")
        shop.wait_for(8)
        shop.send("note", "delayed", countdown=0.5)
        shop.wait_for(1, "delayed")
    finally:
        shop.close()

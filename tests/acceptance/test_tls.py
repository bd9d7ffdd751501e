"""A broker that speaks TLS and asks for client certificates: a worker, and the commands of the page."""

from __future__ import annotations

import os
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme

from tests.kit.broker import QUICK
from tests.kit.node import Node, free_port
from tests.kit.pages import commands

from .conftest import ROOT, Shop

pytestmark = pytest.mark.more

SERVER_FILES = ("cacertfile", "certfile", "keyfile")


class TlsBroker(NamedTuple):
    url: str
    management_port: int
    #: Has the files of a client.
    directory: Path


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """Yield a private node that only those with a client certificate reach, who are the user `shop`."""
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    client = authority.issue_cert("shop.example.com", common_name="shop")
    directory = tmp_path_factory.mktemp("client")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    client.cert_chain_pems[0].write_to_path(str(directory / "client.pem"))
    client.private_key_pem.write_to_path(str(directory / "client.key"))
    client.private_key_and_cert_chain_pem.write_to_path(str(directory / "client-and-key.pem"))
    port, management_port = free_port(), free_port()
    node = Node(plugins=("rabbitmq_management", "rabbitmq_auth_mechanism_ssl"))
    # In the node's own directory, which is all that a RabbitMQ in a root directory of its own can see.
    files = {name: str(node.data / f"{name}.pem") for name in SERVER_FILES}
    authority.cert_pem.write_to_path(files["cacertfile"])
    server.cert_chain_pems[0].write_to_path(files["certfile"])
    server.private_key_pem.write_to_path(files["keyfile"])
    lines = [f"listeners.ssl.default = 127.0.0.1:{port}", f"management.ssl.port = {management_port}"]
    for options in ("ssl_options", "management.ssl"):
        lines += [f"{options}.{name} = {path}" for name, path in files.items()]
        lines += [f"{options}.verify = verify_peer", f"{options}.fail_if_no_peer_cert = true"]
    lines += ["auth_mechanisms.1 = PLAIN", "auth_mechanisms.2 = EXTERNAL", "ssl_cert_login_from = common_name"]
    node.conf = "\n".join(lines)
    with node:
        node.api("PUT", "/users/shop", {"password": "password", "tags": "monitoring"})
        node.api("PUT", "/permissions/%2F/shop", {"configure": ".*", "write": ".*", "read": ".*"})
        yield TlsBroker(f"amqps://localhost:{port}//", management_port, directory)


def test_delayed_and_waiting_tasks_run_over_tls_with_a_client_certificate(
    tls_broker: TlsBroker, tmp_path: Path
) -> None:
    files = {"ca_certs": "ca.pem", "certfile": "client.pem", "keyfile": "client.key"}
    tls: dict[str, Any] = {name: str(tls_broker.directory / file) for name, file in files.items()}
    tls |= {"cert_reqs": ssl.CERT_REQUIRED, "server_hostname": "localhost"}
    conf = {"broker_url": tls_broker.url, "broker_use_ssl": tls, "broker_login_method": "EXTERNAL"}
    with closing(Shop(None, tmp_path, QUICK, conf)) as shop:
        # What waits in the queue may come in one TLS record with the answer to the worker's basic.consume.
        for n in range(8):
            shop.send("note", f"waiting {n}")
        shop.worker("--without-mingle", "--without-gossip", "--without-heartbeat")
        shop.wait_for(8)
        shop.send("note", "delayed", countdown=0.5)
        shop.wait_for(1, "delayed")


def test_the_commands_of_the_page_on_tls_work_with_and_without_an_app(tls_broker: TlsBroker) -> None:
    documented = "amqps://localhost:5671//"
    program = (ROOT / "examples" / "tls.py").read_text()
    (tls_broker.directory / "tls.py").write_text(program.replace(documented, tls_broker.url))
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    seen = []
    for command, _ in commands("how-to/tls.md"):
        command = command.replace(documented, tls_broker.url).replace(":15671", f":{tls_broker.management_port}")
        program, *arguments = shlex.split(command)
        if program == "export":
            environment |= dict(argument.split("=") for argument in arguments)
            continue
        found = shutil.which(program, path=environment["PATH"])
        assert found
        done = subprocess.run(
            [found, *arguments], cwd=tls_broker.directory, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        seen.append(done.stdout)
    assert "28 levels exist" in seen[0]
    assert seen[1] == seen[2]  # with an app, and without
    assert "checks passed" in seen[3]

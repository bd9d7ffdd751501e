"""A private RabbitMQ node: its own name, ports and data, gone when it stops.

Only environment variables set it up (https://www.rabbitmq.com/docs/configure#supported-environment-variables),
so any RabbitMQ will do. `RABBITMQ=4.3` chooses one by its name for tools/get-rabbitmq.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.kit import background

GET_RABBITMQ = Path(__file__).parents[2] / "tools" / "get-rabbitmq"


@functools.cache
def find_server(name: str | None = None) -> Path:
    """Return the `rabbitmq-server` to run: what tools/get-rabbitmq gives for a name, or for that in `RABBITMQ`."""
    name = os.environ.get("RABBITMQ", "") if name is None else name
    answer = subprocess.run([GET_RABBITMQ, name], capture_output=True, text=True)
    if answer.returncode:
        raise NodeFailed(answer.stderr[-3000:].strip())
    return Path(answer.stdout.strip())


def find_release(release: str) -> Path:
    """Return the server of a release, such as "4.0": an image, if `RABBITMQ` names one."""
    is_image = os.environ.get("RABBITMQ", "").startswith("docker:")
    return find_server(f"docker:{release}" if is_image else release)


_reservations: list[socket.socket] = []


def free_port() -> int:
    """Return a port for a node.

    It is none of those that the system gives to clients: one might sit on it while the node is down. Nor has another
    process chosen it for a node that does not listen yet.
    """
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if reserve(port):
                return port


def reserve(port: int) -> bool:
    """Keep a port from other processes that ask here, until this one ends; return False if another has it."""
    if sys.platform != "linux":
        return True
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0celery-rabbit-delay-port-{port}")  # a name without a file
    except OSError:
        reservation.close()
        return False
    _reservations.append(reservation)
    return True


def speaks_amqp(port: int) -> bool:
    """Return whether a port answers the protocol header (AMQP 0-9-1, 4.2.2): that it is open is not enough."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
            sock.sendall(b"AMQP\x00\x00\x09\x01")
            return sock.recv(1) == b"\x01"
    except OSError:
        return False


#: Seconds of RabbitMQ's own retry interval.
DEFAULT_AGAIN = 180


def dead_letters_again(seconds: int) -> str:
    """Return an advanced.config that says how soon dead-lettering is tried again (docs/operations.md, Restarts)."""
    return f"[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {seconds * 1000}}}]}}]."


class NodeFailed(RuntimeError):
    pass


class Node:
    """One broker process. `with Node() as node: node.url()`; `kill()` and `start()` again for a crash.

    `plugins=("rabbitmq_management",)` adds the HTTP API on `management_port`, `conf` more lines of rabbitmq.conf,
    `advanced` an advanced.config.
    """

    def __init__(
        self, server: Path | None = None, plugins: tuple[str, ...] = (), conf: str = "", advanced: str = "[]."
    ) -> None:
        self.server = server or find_server()
        self.plugins = plugins
        self.conf = conf
        self.advanced = advanced
        self.cookie: str | None = None  # of a cluster
        self.port, self.dist_port, self.epmd_port, self.management_port = (free_port() for _ in range(4))
        self.name = f"delay-{self.port}@localhost"
        self.data = Path(tempfile.mkdtemp(prefix="celery-rabbit-delay-node-"))
        self.process: background.Process | None = None

    def describe(self) -> dict[str, Any]:
        """Return what another process needs to `attach`, as JSON has it."""
        assert self.process is not None
        return {**vars(self), "server": str(self.server), "data": str(self.data), "process": self.process.pid}

    @classmethod
    def attach(cls, description: dict[str, Any]) -> Node:
        """Return a node that another process has started. This one may use and remove it."""
        node = cls.__new__(cls)
        vars(node).update(description)
        node.server, node.data = Path(description["server"]), Path(description["data"])
        node.process = background.OfAnother(description["process"])
        return node

    def __enter__(self) -> Node:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    def url(self, vhost: str = "/") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    @property
    def log(self) -> Path:
        return self.data / "node.log"

    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "TMPDIR")}
        return kept | {
            "HOME": str(self.data),  # the Erlang cookie
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.dist_port),
            "RABBITMQ_MNESIA_BASE": str(self.data / "data"),
            "RABBITMQ_LOG_BASE": str(self.data / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.data / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(self.data / "pid"),
            "RABBITMQ_CONF_ENV_FILE": str(self.data / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(self.data / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.data / "advanced.config"),
            "RABBITMQ_CONFIG_FILES": str(self.data / "no-such-file"),  # conf.d: official images turn statistics off
        }

    def start(self, timeout: float = 180) -> None:
        """Start the node and wait until it has started and speaks AMQP. Raises `NodeFailed` with the log's end."""
        self.data.mkdir(exist_ok=True)
        (self.data / "enabled_plugins").write_text("[{}].\n".format(",".join(self.plugins)))
        # The default watermark of free disk space would block publishers on a laptop's nearly full disk.
        lines = ["disk_free_limit.absolute = 50MB", self.conf]
        if "rabbitmq_management" in self.plugins:
            lines.append(f"management.tcp.port = {self.management_port}")
        (self.data / "rabbitmq.conf").write_text("\n".join([*lines, ""]))
        if self.advanced:
            (self.data / "advanced.config").write_text(self.advanced + "\n")
        cookie = self.data / ".erlang.cookie"
        if self.cookie and not cookie.exists():
            cookie.write_text(self.cookie)
            cookie.chmod(0o400)
        before = self._starts()
        self.process = background.start([str(self.server)], self.log, self.data, self.environment())
        deadline = time.monotonic() + timeout
        while self._starts() == before or not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise NodeFailed(f"{self.server} did not start:\n{self.log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)

    def has_registered(self, queue: str) -> bool:
        """Return whether the node has written down that it has a quorum queue.

        RabbitMQ does so up to two seconds after it has said that the queue exists, in files of Ra and of Mnesia. Before
        4.3, a queue of a node that is killed in between is gone, or never elects a leader again.
        """

        def is_in(*files: str) -> bool:
            return any(queue.encode() in file.read_bytes() for name in files for file in self.data.rglob(name))

        has_mnesia = any(self.data.rglob("LATEST.LOG"))
        in_mnesia = not has_mnesia or is_in("LATEST.LOG", "rabbit_durable_queue.DC?")
        return in_mnesia and is_in("names.dets") and is_in("meta.dets")

    def _starts(self) -> int:
        """Return how often the node has started completely. It speaks AMQP a little earlier.

        In a cluster, a virtual host that is made in between stays down on the node that is starting.
        """
        return self.log.read_bytes().count(b"Server startup complete") if self.log.exists() else 0

    def is_ready(self) -> bool:
        return speaks_amqp(self.port) and ("rabbitmq_management" not in self.plugins or self.manages())

    def manages(self) -> bool:
        """Return whether the HTTP API answers; it opens its port before it can."""
        with contextlib.suppress(OSError):
            return bool(self.api("GET", "/overview"))
        return False

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the HTTP API, with JSON in and out. Raises `urllib.error.HTTPError`, an `OSError`."""
        try:
            return self._request(method, path, body)
        except urllib.error.HTTPError as exc:
            if method != "GET" or exc.code != 500:
                raise
            # 3.10 fails to list queues while one of them goes.
            time.sleep(0.2)
            return self._request(method, path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.management_port}/api{path}", method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=120) as response:
                text = response.read()
        except urllib.error.HTTPError as exc:
            exc.close()
            raise
        return json.loads(text) if text else None

    def ctl(self, *arguments: str) -> str:
        """Return what `rabbitmqctl` prints. Raises `NodeFailed`."""
        program = self.server.with_name("rabbitmqctl")
        command = [str(program)]
        if (self.data / "ctl").exists():  # in a container: see tools/get-rabbitmq
            command = [str(self.data / "ctl")]
        elif not program.exists() and self.process is not None:  # in the root directory of the node's own
            inside = ["sh", "-c", 'cd / && exec /usr/lib/rabbitmq/bin/rabbitmqctl "$@"', "rabbitmqctl"]
            command = ["nsenter", "--target", str(self.process.pid), "--mount", "--root", *inside]
        answer = subprocess.run(
            [*command, "--node", self.name, *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        if answer.returncode:
            raise NodeFailed(answer.stdout + answer.stderr)
        return answer.stdout

    def suspend(self, suspended: bool) -> None:
        """Send SIGSTOP or SIGCONT: to the others of a cluster, a node that the network has lost."""
        assert self.process is not None
        program = self.data / ("suspend" if suspended else "resume")
        if program.exists():  # in a container
            subprocess.run([program], capture_output=True, check=True)
            return
        os.killpg(self.process.pid, signal.SIGSTOP if suspended else signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, as a crash would: nothing is flushed, `start()` recovers from the disk."""
        if self.process is not None:
            background.kill(self.process)
            self.process = None
            kill = self.data / "kill"  # left by a container, which outlives its client: see tools/get-rabbitmq
            if kill.exists():
                subprocess.run([kill], capture_output=True)

    def stop(self, timeout: float = 20) -> None:
        """Send SIGTERM, then SIGKILL, to the whole process group, so that nothing is left running."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        self.kill()

    def remove(self) -> None:
        self.kill()
        kill_epmd(self.epmd_port)
        shutil.rmtree(self.data, ignore_errors=True)


def start_all(nodes: list[Node]) -> None:
    """Start nodes at the same time: those of a cluster wait for each other."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(Node.start, nodes))


@contextlib.contextmanager
def cluster(amount: int, conf: str = "", **options: Any) -> Iterator[list[Node]]:
    """Yield so many nodes that know each other. Whoever has no majority stops, as quorum queues would have it."""
    nodes = [Node(conf=conf, **options) for _ in range(amount)]
    cookie = secrets.token_hex(16)
    peers = [f"cluster_formation.classic_config.nodes.{n} = {node.name}" for n, node in enumerate(nodes, start=1)]
    lines = ["cluster_formation.peer_discovery_backend = classic_config", *peers]
    lines += ["cluster_partition_handling = pause_minority", "net_ticktime = 5"]
    for node in nodes:
        node.cookie, node.epmd_port = cookie, nodes[0].epmd_port
        node.conf = "\n".join([conf, *lines])
    try:
        start_all(nodes)
        yield nodes
    finally:
        for node in nodes:
            node.kill()
        for node in nodes:
            node.remove()


def is_whole(node: Node) -> bool:
    """Return whether a node sees all others of its cluster."""
    try:
        status = json.loads(node.ctl("cluster_status", "--formatter", "json"))
    except NodeFailed:
        return False
    return len(status["running_nodes"]) == len(status["disk_nodes"])


def kill_epmd(port: int) -> None:
    """Ask Erlang's port mapper to leave: it detaches itself, and ours has a port of its own.

    It refuses (KILL_REQ) until it has noticed that the node is gone, so ask until nobody answers.
    """
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                sock.sendall(b"\x00\x01k")
                sock.recv(2)
        except ConnectionRefusedError:
            return
        except OSError:
            pass
        time.sleep(0.02)


@contextlib.contextmanager
def alarm(node: Node) -> Iterator[None]:
    """Have a node block its publishers (https://www.rabbitmq.com/docs/memory)."""
    node.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        yield
    finally:
        node.ctl("set_vm_memory_high_watermark", "0.4")

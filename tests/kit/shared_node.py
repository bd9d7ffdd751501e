"""One node for all processes of a run of tests: the first that needs it starts it, the last removes it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit.node import Node

#: The node that this process has started and perhaps another one will stop.
_started: list[Node] = []


@contextmanager
def shared_node(directory: Path, plugins: tuple[str, ...]) -> Iterator[Node]:
    """Yield the node of the processes that share a directory."""
    file = directory / "shared-node.json"
    with _locked(directory):
        if file.exists():
            about = json.loads(file.read_text())
            node = Node.attach(about["node"])
        else:
            node = Node(plugins=plugins)
            try:
                node.start()
            except BaseException:
                node.remove()
                raise
            _started.append(node)
            about = {"node": node.describe(), "users": 0}
        _write(file, about, 1)
    try:
        yield node
    finally:
        with _locked(directory):
            if not _write(file, json.loads(file.read_text()), -1):
                file.unlink()
                node.remove()


def _write(file: Path, about: dict[str, Any], more: int) -> int:
    """Add to the number of the processes that use the node, and return it."""
    users: int = about["users"] + more
    file.write_text(json.dumps({**about, "users": users}))
    return users


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "shared-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""A warm delayed task passes few functions of the package on its way out, so that whoever reads along stays with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import celery_rabbit_delay
from celery_rabbit_delay.amqp.transport import Channel
from tests.kit.broker import Vhost

from .conftest import MakeApp

PACKAGE = str(Path(celery_rabbit_delay.__file__).parent)


def test_a_warm_task_passes_few_functions_between_kombu_and_the_confirm(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("celery")
    app = make_app({"tick": 0.125, "max_delay": 86_400})
    for _ in range(3):
        app.send_task("t", countdown=3600)
    visited: set[tuple[str, str, int]] = set()
    publish = Channel.basic_publish

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            visited.add((code.co_filename.removeprefix(PACKAGE), code.co_name, code.co_firstlineno))

    def traced(*args: Any, **kwargs: Any) -> None:
        sys.setprofile(note)
        try:
            publish(*args, **kwargs)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Channel, "basic_publish", traced)
    app.send_task("t", countdown=3600)
    assert 20 < len(visited) <= 63, "\n".join(map(str, sorted(visited)))
    assert len({file for file, *_ in visited}) <= 15, "\n".join(map(str, sorted(visited)))

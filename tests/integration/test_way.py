"""A warm delayed task passes few functions of the package on its way out, so that whoever reads along stays with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import celery_rabbit_delay
from celery_rabbit_delay.delay.amqp.transport import Channel
from tests.kit.broker import Vhost

from .conftest import MakeApp

PACKAGE = str(Path(celery_rabbit_delay.__file__).parent)


#: The functions of the package on the way of a warm task that is recorded, the files that they are in, and the lines
#: that are run. Lower them with what the way loses. To inline a function wins nothing: its lines stay.
MOST = 51, 17, 206


class Way:
    """What a call passes of the package."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, None] = {}
        self.lines: set[tuple[str, int]] = set()

    @property
    def is_new(self) -> bool:
        return not {"_find_way"}.isdisjoint(code.co_name for code in self.functions)

    def note(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return None
        self.functions[frame.f_code] = None
        if event == "line":
            self.lines.add((file, frame.f_lineno))
        return self.note


def test_a_warm_task_that_is_recorded_passes_few_functions_between_kombu_and_the_confirm(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    vhost.declare("celery")
    app = make_app({"tick": 0.125, "max_delay": 86_400})
    for _ in range(3):
        app.send_task("t", countdown=3600)
    ways: list[Way] = []
    publish = Channel.basic_publish

    def traced(*args: Any, **kwargs: Any) -> None:
        ways.append(Way())
        before = sys.gettrace()  # that of coverage
        sys.settrace(ways[-1].note)
        try:
            publish(*args, **kwargs)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(Channel, "basic_publish", traced)
    # Of a task that took longer to get there, as on a busy machine, fewer ticks are left, and its way is not known yet.
    while len(ways) < 5 or (len(ways) < 50 and ways[-1].is_new):
        app.send_task("t", countdown=3600)
    assert len(list(celery_rabbit_delay.scheduled(app))) == 3 + len(ways), "the record is a part of the way"
    way = min(ways, key=lambda one: len(one.lines))
    passed = [f"{code.co_filename.removeprefix(PACKAGE)} {code.co_name}" for code in way.functions]
    functions, files, lines = MOST
    assert 20 < len(way.functions) <= functions, passed
    assert len({code.co_filename for code in way.functions}) <= files, passed
    assert len(way.lines) <= lines, f"{len(way.lines)} lines"

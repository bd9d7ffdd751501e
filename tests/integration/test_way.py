"""A warm delayed task passes few functions of the package on its way out, so that whoever reads along stays with it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import celery_rabbit_delay
from celery_rabbit_delay.amqp.transport import Channel
from tests.kit.broker import Vhost

from .conftest import MakeApp

PACKAGE = str(Path(celery_rabbit_delay.__file__).parent)


#: The functions of the package on the way of a warm task that is recorded, the files that they are in, and the lines
#: that are run. Lower them with what the way loses. To inline a function wins nothing: its lines stay.
FUNCTIONS, FILES, LINES = 70, 15, 290


@pytest.mark.parametrize("confirm", [True, False])
def test_a_warm_task_that_is_recorded_passes_few_functions_between_kombu_and_the_confirm(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, confirm: bool
) -> None:
    vhost.declare("celery")
    app = make_app({"confirm": confirm, "tick": 0.125, "max_delay": 86400})
    for _ in range(3):
        app.send_task("t", countdown=3600)
    functions: dict[CodeType, None] = {}
    lines: set[tuple[str, int]] = set()
    publish = Channel.basic_publish

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE):
            return None
        functions[frame.f_code] = None
        if event == "line":
            lines.add((file, frame.f_lineno))
        return note

    def traced(*args: Any, **kwargs: Any) -> None:
        before = sys.gettrace()  # that of coverage
        sys.settrace(note)
        try:
            publish(*args, **kwargs)
        finally:
            sys.settrace(before)

    monkeypatch.setattr(Channel, "basic_publish", traced)
    app.send_task("t", countdown=3600)
    way = [f"{code.co_filename.removeprefix(PACKAGE)} {code.co_name}" for code in functions]
    assert len(list(celery_rabbit_delay.scheduled(app))) == 4, "the record is a part of the way"
    assert len(functions) <= FUNCTIONS, way
    assert len({code.co_filename for code in functions}) <= FILES, way
    assert len(lines) <= LINES, f"{len(lines)} lines"

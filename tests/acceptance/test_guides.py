"""Whoever does what the tutorial and the how-tos say sees what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.broker import Vhost
from testkit.reader import ROOT, Reader, commands
from testkit.wait import wait_until


@pytest.fixture
def reader(vhost: Vhost, tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(vhost, tmp_path)
    yield reader
    reader.close()


def test_the_tutorial_from_start_to_end(reader: Reader) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    reader.directory = reader.examples.parent / "empty"
    reader.directory.mkdir()
    (reader.directory / "shop.py").write_text(reader.with_broker(program))
    called = [command for command, _ in commands("tutorial.md") if " call " in command]
    printed = re.findall(r"^    \[.*\] (.*)$", text, re.MULTILINE)
    assert len(called) == 5
    assert len(printed) == 6
    reader.follow(
        "tutorial.md",
        before={called[1]: lambda: reader.sees(printed[0])},
        then={
            called[1]: lambda: reader.stop("celery -A shop worker"),
            "celery -A shop delay run-now f07e16f4-9fe0-4ed0-9e8d-d46362d5cf6a": lambda: (
                reader.sees("How was order 43?", *printed[1:], "How was order 45?"),
                reader.stop("celery -A shop worker"),
            ),
        },
    )
    assert "How was order 44?" not in reader.terminals()
    assert reader.vhost.names("queues") == ["celery"]

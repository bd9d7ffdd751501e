"""The benchmarks' contenders work with every Kombu and RabbitMQ; how fast is for `make bench` to say."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from benchmarks import rows
from benchmarks.contenders import Contender, MessageTTL, Native, Ours, QueuePerDelay
from tests.broker import Broker

CONTENDERS = [Contender, Ours, QueuePerDelay, MessageTTL]
if tuple(map(int, version("kombu").split(".")[:2])) >= (5, 5):
    CONTENDERS.append(Native)


@pytest.mark.parametrize("make", CONTENDERS)
@pytest.mark.parametrize("confirm", [False, True])
def test_a_contender_delivers_what_it_is_given(broker: Broker, make: type[Contender], confirm: bool) -> None:
    assert rows.transit(broker.node, make, 20, [1], confirm=confirm) > 0

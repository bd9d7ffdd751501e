"""Streams that are read."""

from __future__ import annotations

import itertools
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import RecoverableConnectionError

from celery_rabbit_delay import Options, StreamUnavailable
from celery_rabbit_delay.amqp.confirms import ConfirmedChannel
from celery_rabbit_delay.amqp.follower import Extent, Follower
from celery_rabbit_delay.amqp.stream_consumer import Place, StreamMessage, StreamReplaced
from celery_rabbit_delay.amqp.stream_writer import StreamWriter, paused_of
from celery_rabbit_delay.core import streams
from celery_rabbit_delay.core.topology import Stream


class Client:
    """In place of a `kombu.Connection`."""


class Stored(Follower):
    """Follows streams that are lists of bodies, over connections that break."""

    def __init__(self, **bodies: list[bytes]) -> None:
        super().__init__(SimpleNamespace(transport=SimpleNamespace(delay_options=Options())))
        self.bodies = bodies
        self.begun: list[int | str] = []
        self.breaks_after = 99
        self.breaks_at_the_end = False

    def _connect(self) -> Any:
        return SimpleNamespace(within=lambda seconds: nullcontext(), drain_events=self._break_off)

    def _break_off(self, timeout: float | None = None) -> None:
        raise (TimeoutError if timeout == 0 else RecoverableConnectionError)("it broke off")

    def _consume(self, stream: Any, offset: Any, callback: Any) -> Any:
        self.begun.append(offset)
        first = 0 if offset == "first" else offset
        for number, body in enumerate(self.bodies[stream.name][first : first + self.breaks_after], start=first):
            callback(number, body)
        return SimpleNamespace(basic_cancel=self._end, is_open=False), "tag"

    def go_on(self) -> None:
        """Follow the stream after what is done with."""
        done = self._done.get("s")
        self._begin(STREAM, done and Place.of(done))

    def _end(self, tag: str) -> None:
        if self.breaks_at_the_end:
            raise RecoverableConnectionError("lost while the consumer ended")


STREAM = Stream("s", "@.s", 1, 1)


def test_a_read_that_breaks_off_is_resumed_for_as_long_as_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two messages come in a minute, and in the end none."""
    now, found = 0.0, list[int]()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", sleep)
    follower = Stored(s=[b"%d" % number for number in range(6)])
    follower.breaks_after = 3  # that at the place, and two more

    def note(message: StreamMessage) -> int:
        nonlocal now
        now += 30
        return message.offset

    with pytest.raises(StreamUnavailable, match="it broke off"):
        found.extend(map(note, follower.read(STREAM, Extent(9, 8))))
    assert found == list(range(6))
    assert follower.begun[:4] == ["first", 2, 4, 5]
    assert set(follower.begun[4:]) == {5}
    assert 180 + 15 <= now <= 180 + 16


def test_an_error_after_the_last_message_of_a_stream_begins_nothing_again() -> None:
    follower = Stored(s=[b"a", b"b"])
    follower.breaks_at_the_end = True
    assert [message.body for message in follower.read(STREAM, Extent(2, 1))] == [b"a", b"b"]
    assert follower.begun == ["first"]


def test_a_stream_is_read_again_from_what_was_done_with_and_from_its_beginning_if_it_is_another_one() -> None:
    follower = Stored(s=[b"a", b"b", b"c"])
    follower.go_on()
    assert [follower.receive(), follower.receive()] == [("s", 0, b"a"), ("s", 1, b"b")]
    follower.close()  # nobody asked for the third, so the second may not be done with
    follower.go_on()
    assert follower.receive() == ("s", 1, b"b")
    follower.close()
    follower.bodies["s"] = [b"x", b"y"]
    with pytest.raises(StreamReplaced):
        follower.go_on()
    follower.go_on()
    assert follower.receive() == ("s", 0, b"x")


def test_what_comes_of_another_stream_meanwhile_is_not_lost() -> None:
    follower = Stored(s=[b"a"], t=[b"b"])
    other = Stream("t", "@.t", 1, 1)
    follower.go_on()
    assert [one.body for one in follower._until(other, lambda one: one.body == b"b", 1)] == [b"a", b"b"]


def test_a_stream_that_appears_is_followed_and_looked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = 0.0, list[float]()
    follower, late = Stored(s=[b"a"], t=[b"b"]), Stream("t", "@.t", 1, 1)
    there = {STREAM}

    def extents(self: Any, wanted: Any) -> dict[Stream, Extent]:
        looks.append(now)
        return {stream: Extent(1, 0) for stream in wanted if stream in there}

    monkeypatch.setattr(Follower, "extents", extents)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    follower.follow({STREAM: None, late: None})
    assert (follower.receive(), dict(follower.ends)) == (("s", 0, b"a"), {"s": 0})
    for now in map(float, range(1, 200)):  # noqa: B007
        follower.receive()
    assert [after - before for before, after in itertools.pairwise(looks)] == [6, 11, 21, 41, 61]
    there.add(late)
    follower.look_soon()
    assert (follower.receive(), dict(follower.ends)) == (("t", 0, b"b"), {"s": 0, "t": 0})
    assert looks[-1] == now, "it is looked for at once if somebody knows that it is there"
    now += 100
    follower.receive()
    assert looks[-1] == now - 100, "and no more when none is lacking"


def test_a_stream_that_is_only_just_coming_up_is_tried_again_soon_and_a_broken_one_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    options = Options()
    client = Client()
    connection: Any = SimpleNamespace(client=client)
    journal = StreamWriter(connection, ConfirmedChannel(connection), options.cascade, options)
    stream = streams.journal_for(options.cascade, 60)
    attempts = []
    for _ in range(3):
        journal.pause(stream, StreamUnavailable("it has no leader"))
        attempts.append(paused_of[client][stream.name])
    assert attempts == [1, 60, 60]
    assert len(caplog.records) == 1

"""The choice of messages that a consumer does not receive."""

from __future__ import annotations

import itertools
import pickle
import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import kombu
import pytest
from amqp.exceptions import ResourceError
from celery.utils.collections import LimitedSet

from celery_rabbit_delay import NotPermitted, StreamUnavailable
from celery_rabbit_delay.delay.amqp import limited
from celery_rabbit_delay.delay.core.headers import HEADER, read_state
from celery_rabbit_delay.delay.core.options import OPTIONS, Options
from celery_rabbit_delay.schedule import interceptor as receiving
from celery_rabbit_delay.schedule.amqp import stream_consumer
from celery_rabbit_delay.schedule.amqp.follower import Follower
from celery_rabbit_delay.schedule.amqp.stream_consumer import StreamMessage
from celery_rabbit_delay.schedule.app import revoking
from celery_rabbit_delay.schedule.core import changes
from celery_rabbit_delay.schedule.interceptor import ScheduleInterceptor


class Client:
    """A `kombu.Connection`, of which only the identity is of interest."""


def connected(client: Client) -> Any:
    """Return an `amqp.Connection`."""
    receiver = kombu.Connection("rabbit-delay://", transport_options={OPTIONS: Options(schedule=True).to_dict()})
    following: Any = receiving.Following(receiver)
    following.poll = lambda: None
    options = receiver.transport.delay_options
    return SimpleNamespace(client=client, known=receiving.known_to[client], options=options, following=following)


def is_dropped(connection: Any, message: Any) -> bool:
    return ScheduleInterceptor.drops(connection, message, read_state(message.headers or {}))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names of the streams that are followed, which a test adds."""
    followed = set[str]()
    monkeypatch.setattr(Follower, "streams", followed)
    monkeypatch.setattr(Follower, "close", lambda self: followed.clear())
    return followed


def received(properties: Any = None, root: str = "p", number: int | None = None, **headers: Any) -> Any:
    """Return a message that has waited, with more headers."""
    ours = {"prefix": root, "exchange": "", "routing_key": "q", "due": 0, **({} if number is None else {"n": number})}
    return SimpleNamespace(headers={HEADER: ours, **headers}, properties=properties or {}, body=b"")


def test_a_stream_that_could_not_be_read_is_tried_again_when_a_message_comes_later(
    followed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, now = Client(), 0.0
    connection = connected(client)
    answers: list[Exception | None] = [StreamUnavailable("its node is down"), NotPermitted("no"), None]
    tried: list[float] = []

    def catch_up(self: Any, stream: Any, *args: Any, **limits: Any) -> Iterator[Any]:
        tried.append(now)
        if (answer := answers.pop(0)) is not None:
            raise answer
        followed.add(stream.name)
        return iter(())

    monkeypatch.setattr(Follower, "catch_up", catch_up)
    monkeypatch.setattr(Follower, "receive", lambda self: None)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for seconds in range(1000):
        now = float(seconds)
        assert not is_dropped(connection, received(number=1))
    assert tried == [0, 1, 301]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), ResourceError("no leader")])
def test_a_stream_that_cannot_be_created_keeps_no_message_from_its_consumer(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Follower, "catch_up", lambda *_, **limits: iter(()))
    monkeypatch.setattr(receiving, "make_streams", Mock(side_effect=error))
    assert not is_dropped(connected(Client()), received(root=Options().cascade.root, number=1))
    assert str(error) in caplog.text


@pytest.mark.parametrize("takes", [0.01, stream_consumer.BUSY])  # it is refused; nobody answers
def test_a_stream_that_fails_is_tried_soon_and_less_and_less_often_and_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, takes: float
) -> None:
    connection = connected(Client())
    now, tried = 1000.0, list[float]()

    def catch_up(self: Any, stream: Any, *args: Any, **limits: Any) -> None:
        nonlocal now
        tried.append(now)
        now += takes
        raise StreamUnavailable("it has no replica on this node")

    monkeypatch.setattr(Follower, "catch_up", catch_up)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    message = received(number=1)
    while now < 1200:
        assert not is_dropped(connection, message)
        now += 0.1
    pauses = [later - earlier - takes for earlier, later in itertools.pairwise(tried)]
    assert all(later > earlier - 0.15 for earlier, later in itertools.pairwise(pauses))
    # What is cancelled as soon as the stream is back, and due 2 s later, is known in time more often than not.
    assert pauses[:2] == pytest.approx([max(0.5, takes)] * 2, abs=0.15)
    assert pauses[-1] == pytest.approx(limited.PAUSE, abs=0.15)
    assert len(tried) * takes <= 200 / 5 + takes
    assert [record.levelname for record in caplog.records if "of late may run" in record.msg] == ["WARNING"]


def test_what_is_lost_while_another_stream_cannot_be_read_is_read_again(
    followed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, read = connected(Client()), list[str]()
    known = receiving.known_to[connection.client]
    bodies = iter([*changes.cancelled(["a", "b"])])

    def catch_up(self: Any, stream: Any, *args: Any, **limits: Any) -> Iterator[StreamMessage]:
        read.append(stream.name.partition(".")[0])
        if read[-1] == "other":
            self.close()
            raise StreamUnavailable("it has no leader")
        followed.add(stream.name)
        yield from (StreamMessage(stream.name, 0, body) for body in bodies)

    monkeypatch.setattr(Follower, "catch_up", catch_up)
    message = received(root=Options(prefix="other").cascade.root, number=1)
    for _ in range(2):
        assert not is_dropped(connection, message)
    assert read == [Options().prefix, "other", Options().prefix]
    assert known.changes.cancels("a")


def test_a_worker_says_that_it_has_forgotten_what_was_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(changes, "KEPT", 10)
    known = revoking.WorkerChanges(time.time)
    for message in changes.cancelled(map(str, range(20))):
        known.apply(message)
    assert caplog.messages == []
    for number in range(20, 60):
        for message in changes.cancelled([str(number)]):
            known.apply(message)
    assert [message for message in caplog.messages if "tasks were cancelled: this worker forgets those" in message] == [
        caplog.messages[0]
    ]


def test_a_worker_that_connects_again_revokes_only_what_was_cancelled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Celery remembers 50,000 ids, also those of tasks that are not delayed."""
    revoked: list[str] = []
    monkeypatch.setattr(revoking, "discard", revoked.append)
    known = revoking.WorkerChanges(time.time)
    stream = [*changes.cancelled(["before", str(uuid.UUID(int=1))])]
    for message in stream:
        known.apply(message)
    known.running = True
    for message in [*stream, *changes.cancelled(["meanwhile"])]:
        known.apply(message)
    assert revoked == ["meanwhile"]


@pytest.mark.parametrize(
    ("headers", "dropped"), [({"eta": None}, False), ({"eta": "2030-01-01"}, True), ({"retries": 1}, True)]
)
def test_a_task_without_our_header_is_looked_up_if_it_may_have_waited(
    headers: Any, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an orphan that was sent on, was sent without this package, or is a retry."""
    read: list[Any] = []
    monkeypatch.setattr(receiving.Following, "catch_up", lambda self, stream, *args, **kwargs: read.append(stream))
    client = Client()
    connection = connected(client)
    receiving.known_to[client].on_cancelled = lambda id_: False
    for change in changes.cancelled(["a"]):
        receiving.known_to[client].changes.apply(change)
    message = SimpleNamespace(headers={"task": "t", "id": "a", **headers}, properties={}, body=b"")
    assert is_dropped(connection, message) is dropped
    assert bool(read) is dropped


def test_a_worker_that_starts_asks_a_stream_that_was_silent_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer it would run what was cancelled."""
    connection: Any = kombu.Connection("rabbit-delay://", transport_options={OPTIONS: Options(schedule=True).to_dict()})
    asked = list[float]()
    following = SimpleNamespace(catch_up=lambda stream, apply, patience: asked.append(patience))
    connected = SimpleNamespace(interceptor=SimpleNamespace(following=following))
    monkeypatch.setattr(type(connection), "connection", connected)
    monkeypatch.setattr(revoking, "make_streams", lambda *_: None)
    timer = SimpleNamespace(call_repeatedly=lambda *_: None)
    revoking.FollowChanges(SimpleNamespace()).start(SimpleNamespace(connection=connection, timer=timer, hub=True))
    assert asked[0] > stream_consumer.PATIENCE, "a silence lasts as long"


def test_celery_forgets_what_is_restored_also_what_statedb_had(monkeypatch: pytest.MonkeyPatch) -> None:
    revoked = LimitedSet(data=["of statedb", "stays"])
    monkeypatch.setattr(revoking, "state", SimpleNamespace(revoked=revoked))
    known = revoking.WorkerChanges(time.time)
    for change in [
        *changes.cancelled(["of statedb", "stays"]),
        *changes.restored(["of statedb"]),
    ]:
        known.apply(change)
    assert set(revoked) == {"stays"}
    known.running = True
    for change in [*changes.cancelled(["w"]), *changes.restored(["w", "stays"])]:
        known.apply(change)
    assert set(revoked) == set()
    assert not {"w", "stays"} & revoked.cancelled.keys()


AHEAD = {f"another {n}": time.monotonic() + 90 * 86400 for n in range(3)}


@pytest.mark.parametrize(
    "revoked", [LimitedSet(maxlen=3, data=AHEAD), LimitedSet(maxlen=1), LimitedSet(expires=0.001, minlen=0)]
)
def test_a_worker_does_not_forget_a_cancelled_id_whatever_celerys_set_can_hold(
    revoked: LimitedSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revoking, "state", SimpleNamespace(revoked=revoked))
    monkeypatch.setattr(revoking, "KEPT", 3)
    for id_ in ("0", "1", "2", "3"):
        revoking.discard(id_)
    revoked.purge(time.monotonic() + 3600)
    revoked.clear()
    assert [id_ for id_ in ("0", "1", "2", "3") if id_ in revoked] == ["1", "2", "3"]
    stored = pickle.loads(pickle.dumps(revoked))
    assert type(stored) is LimitedSet  # the file of --statedb, which a worker without the package may read

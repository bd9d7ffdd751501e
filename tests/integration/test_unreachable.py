"""A broker that cannot be reached is an error of the connection, after as many tries as publishing has, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu.pools
import pytest
from amqp.exceptions import AccessRefused, NotAllowed
from celery import Celery
from kombu.exceptions import OperationalError

import celery_rabbit_delay
from celery_rabbit_delay import install
from tests.kit.broker import QUICK, Vhost
from tests.kit.commands import running
from tests.kit.node import free_port
from tests.kit.proxy import Proxy, proxy
from tests.kit.wait import wait_until

CALLS: dict[str, Callable[[Celery], Any]] = {
    "find": lambda app: celery_rabbit_delay.find(app, "x"),
    "scheduled": lambda app: list(celery_rabbit_delay.scheduled(app)),
    "reschedule": lambda app: celery_rabbit_delay.reschedule(app, "x", countdown=9),
    "cancel": lambda app: celery_rabbit_delay.cancel(app, "x"),
}


@pytest.fixture
def refusing() -> Iterator[Proxy]:
    """Yield a port that accepts connections and closes them at once."""
    with proxy(free_port()) as one:
        yield one


def url_of(refusing: Proxy) -> str:
    return f"amqp://guest:secret@127.0.0.1:{refusing.port}//"


MakeApp = Callable[..., Celery]


@pytest.fixture
def make_app() -> Iterator[MakeApp]:
    def make(url: str, *, plain: bool = False) -> Celery:
        app = Celery("shop", broker=url, set_as_current=False)
        app.conf.task_publish_retry_policy = {"max_retries": 2, "interval_start": 0.01, "interval_step": 0.01}
        if not plain:
            install(app, **QUICK)
        return app

    yield make
    kombu.pools.reset()


@pytest.mark.parametrize("call", CALLS)
def test_each_call_tries_as_often_as_publishing_and_says_nothing_of_streams(
    refusing: Proxy, make_app: MakeApp, call: str
) -> None:
    with pytest.raises(OperationalError) as raised:
        CALLS[call](make_app(url_of(refusing)))
    assert len(refusing.connections) == 3
    assert "stream" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_revoke_does_not_try_longer_than_celery(
    refusing: Proxy, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []
    for plain in (True, False):
        app = make_app(url_of(refusing), plain=plain)
        app.conf.broker_connection_timeout = 1
        with pytest.raises(OperationalError):
            app.control.revoke("x")
        tries.append(len(refusing.connections) - sum(tries))
    assert tries[1] <= tries[0]
    assert "only the running workers know of it" not in caplog.text


def test_a_list_whose_broker_goes_away_while_it_is_read_is_an_error_of_the_connection(
    vhost: Vhost, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(vhost.url("amqp"))
    app.send_task("t", countdown=100)
    with proxy(vhost.broker.node.port) as through:
        through.cut_after = lambda data: b"changes" in data  # when the stream is asked for
        behind = make_app(through.url(vhost.url("amqp")))
        monkeypatch.setattr("celery_rabbit_delay.schedule.amqp.stream_consumer.PATIENCE", 1)
        behind.amqp.delay_options = celery_rabbit_delay.Options(**QUICK, confirm_timeout=1)
        with pytest.raises(celery_rabbit_delay.StreamUnavailable) as raised:
            celery_rabbit_delay.find(behind, "x")
    assert "the connection is lost again and again" in str(raised.value)
    assert "delete" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "plain"), [("password", AccessRefused), ("virtual host", NotAllowed), ("TLS", OperationalError)]
)
def test_a_refused_login_is_an_error_of_the_connection_and_for_revoke_celerys_own(
    vhost: Vhost, make_app: MakeApp, wrong: str, plain: type[Exception]
) -> None:
    url = vhost.url("amqp")
    if wrong == "password":
        url = url.replace("guest:guest", "guest:secret")
    elif wrong == "virtual host":
        url = f"{url.rpartition('/')[0]}/gone"
    else:
        url = url.replace("amqp:", "amqps:")
    app = make_app(url)
    for call in CALLS.values():
        with pytest.raises(OperationalError, match="no connection to amqp") as raised:
            call(app)
        assert "stream" not in str(raised.value)
        assert "secret" not in str(raised.value)
    app.conf.broker_connection_timeout = 1
    with pytest.raises(plain):
        app.control.revoke("x")


def test_a_command_whose_broker_falls_silent_ends_and_says_so(vhost: Vhost) -> None:
    with proxy(vhost.broker.node.port) as between:
        url = between.url(vhost.url("amqp"))
        with running(url, "--confirm-timeout", "2", "status", "--watch") as watching:
            wait_until(lambda: "\n" in watching.out, "it has shown something")
            between.flowing.clear()
            watching.process.wait(60)
            ended = watching.wait()
    assert (ended.code, "RabbitMQ has not answered in time" in ended.err) == (1, True), ended.err

"""Celery apps that publish, without workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu.pools
import pytest
from celery import Celery

from celery_rabbit_delay import install
from tests.kit.broker import Vhost, quick

MakeApp = Callable[..., Celery]


def nothing() -> None:
    pass


@pytest.fixture
def make_app(vhost: Vhost) -> Iterator[MakeApp]:
    apps = []

    def make(options: Any = None, **conf: Any) -> Celery:
        app = Celery("shop", set_as_current=False)
        app.conf.update({"broker_url": vhost.url("amqp"), "result_backend": "cache+memory://", **conf})
        install(app, **quick(options or {}))
        app.task(name="t", shared=False)(nothing)
        if "schedule" not in (options or {}):
            vhost.make_streams(options or {})
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()
    kombu.pools.reset()


class Followed:
    """The channels on which this process consumes streams."""

    def __init__(self) -> None:
        self.channels: list[Any] = []

    def forget(self) -> None:
        """Let nothing come on them any more, as after a node has forgotten the consumers of its streams."""
        for channel in self.channels:
            channel.callbacks.update(dict.fromkeys(channel.callbacks, lambda message: None))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    """Return the channels on which streams are consumed from then on."""
    from celery_rabbit_delay.schedule.amqp import stream_consumer  # the delay alone has none

    followed, consume = Followed(), stream_consumer.StreamConsumer._consume

    def noting(*args: Any) -> tuple[Any, str]:
        channel, tag = consume(*args)
        followed.channels.append(channel)
        return channel, tag

    monkeypatch.setattr(stream_consumer.StreamConsumer, "_consume", noting)
    return followed

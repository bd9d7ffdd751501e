"""Celery apps that publish, without workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kombu.pools
import pytest
from celery import Celery

from celery_rabbit_delay import install
from tests.kit.broker import QUICK, Vhost

MakeApp = Callable[..., Celery]


def nothing() -> None:
    pass


@pytest.fixture
def make_app(vhost: Vhost) -> Iterator[MakeApp]:
    apps = []

    def make(options: Any = None, **conf: Any) -> Celery:
        app = Celery("shop", set_as_current=False)
        app.conf.update({"broker_url": vhost.url("amqp"), "result_backend": "cache+memory://", **conf})
        install(app, **QUICK | (options or {}))
        app.task(name="t", shared=False)(nothing)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()
    kombu.pools.reset()

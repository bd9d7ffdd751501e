"""Lets an older RabbitMQ seem to be one whose quorum queues hold messages until a delivery time, as those of 4.4 do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kombu
import pytest

from celery_rabbit_delay.delay.amqp import declare
from celery_rabbit_delay.delay.amqp.confirms import Confirm, ConfirmedChannel
from celery_rabbit_delay.delay.core import options
from celery_rabbit_delay.delay.core.errors import NotRouted
from celery_rabbit_delay.delay.core.headers import X_DELIVERY_TIME
from celery_rabbit_delay.delay.core.topology import Binding


@contextmanager
def held_here(url: str) -> Iterator[None]:
    """Hold what this process publishes until its delivery time. What is not due when the block ends is dropped."""
    waiting: list[tuple[int, Any]] = []
    bound: set[tuple[str, str]] = set()  # exchanges and keys
    lock, is_over, now = threading.Lock(), threading.Event(), time.time
    send, bind = ConfirmedChannel.send, declare.bind

    def hold(channel: ConfirmedChannel, outgoing: Any, answered: Any = None) -> Confirm:
        until = outgoing.message.properties.get("application_headers", {}).get(X_DELIVERY_TIME)
        if until is None or until <= now() * 1000:
            return send(channel, outgoing, answered)
        confirm = Confirm((outgoing.exchange, outgoing.key), answered)
        if confirm.target in bound:
            with lock:
                waiting.append((until, outgoing))
            confirm.answer(None)
        else:  # it is mandatory
            confirm.answer(NotRouted("this process has not bound its outbox"))
        return confirm

    def note(channel: Any, binding: Binding, nowait: bool = False) -> None:
        bind(channel, binding, nowait)
        bound.add((binding.source, binding.routing_key))

    def pass_on() -> None:
        with kombu.Connection(url) as connection:
            while not is_over.wait(0.001):
                moment = int(now() * 1000)
                with lock:
                    due = sorted((one for one in waiting if one[0] <= moment), key=lambda one: one[0])
                    waiting[:] = [one for one in waiting if one[0] > moment]
                for _, (message, exchange, key) in due:
                    connection.default_channel.basic_publish(message, exchange, key)

    thread = threading.Thread(target=pass_on)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(options, "HOLDS_MESSAGES", (3, 10))
        patched.setattr(ConfirmedChannel, "send", hold)
        patched.setattr(declare, "bind", note)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

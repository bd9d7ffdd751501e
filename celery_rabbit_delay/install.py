"""The one call that fits the transport into a Celery app.

A broker URL decides Kombu's transport, at the first connection and again at every failover. So that the URL in the
app's configuration can stay as the user wrote it, `app.amqp`, which makes the app's connections, rewrites the schemes
of the URLs that it is given.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import kombu
from celery import Celery
from celery.utils.time import LocalTimezone
from kombu.common import Broadcast
from kombu.utils.imports import symbol_by_name

from .exceptions import InvalidOption, NotPermitted, UnsupportedConfiguration
from .options import OPTIONS, Options
from .routing_key import Destination

logger = logging.getLogger(__name__)

#: Transports that we take over, by the name that a URL or `broker_transport` gives them, and ours in their place.
TRANSPORTS = {
    "amqp": "rabbit-delay",
    "pyamqp": "rabbit-delay",
    "amqps": "rabbit-delays",
    "rabbit-delay": "rabbit-delay",
    "rabbit-delays": "rabbit-delays",
}


def install(app: Celery, **options: Any) -> None:
    """Makes an app's delayed tasks wait in RabbitMQ. Call it once, anywhere before the app publishes or consumes.

    Options are the fields of `Options`. Calling it again with the same options does nothing.

    Raises `InvalidOption` for an option it does not know, a bad value, or other options than the first time, and
    `UnsupportedConfiguration` for a broker other than RabbitMQ over AMQP 0-9-1 and for `task_protocol = 1`. If the
    app's configuration is still to be loaded, the latter may come when the app first connects.
    """
    wanted = Options.of(options)
    make = app.amqp_cls
    if isinstance(make, partial) and make.func is _make_amqp:
        if make.keywords["options"] != wanted:
            raise InvalidOption(f"{app} is already installed with {make.keywords['options']}: install it once")
        return
    # Reading app.conf would load the configuration, too early for a config_from_object() that is still to come.
    settings = app.conf if app.configured else app._preconf
    check_protocol(settings.get("task_protocol"))
    our_url(os.environ.get("CELERY_BROKER_URL") or settings.get("broker_url"))
    app.amqp_cls = partial(_make_amqp, base=make, options=wanted)  # picklable, as the app is
    if "amqp" in app.__dict__:  # used before: keep its queues and routes, forget its plain connections
        fit(app.amqp, wanted)
        app.amqp._producer_pool = None
        app._pool = None


def _make_amqp(app: Celery, *, base: Any, options: Options) -> Any:
    amqp = symbol_by_name(base)(app=app)
    fit(amqp, options)
    return amqp


def fit(amqp: Any, options: Options) -> None:
    """Gives an app's AMQP object, of whatever class, our connections and consumers."""
    amqp.__class__ = type("DelayedAMQP", (DelayedAMQP, type(amqp)), {"delay_options": options})


def destinations_of(queue: kombu.Queue) -> Iterator[Destination]:
    """Where messages for a queue may be sent to: the queue itself, and its exchange.

    Nobody else may bind to an exclusive queue, and the name of a broadcast queue is another one each time.
    """
    if not queue.exclusive and not isinstance(queue, Broadcast):
        yield Destination("", (queue.name,))
        if queue.exchange.name and not queue.binding_arguments:
            yield Destination(queue.exchange.name, (queue.name,))


class DelayedConsumer(kombu.Consumer):  # type: ignore[misc]
    """Leads what still waits for a queue to it again, in case it was deleted and is now declared anew."""

    def declare(self) -> None:
        super().declare()
        for queue in self.queues:
            self._rebind(queue)

    def add_queue(self, queue: kombu.Queue) -> kombu.Queue:
        added = super().add_queue(queue)
        self._rebind(added)
        return added

    def _rebind(self, queue: kombu.Queue) -> None:
        delayed = self.channel.connection.delayed()
        if delayed.options.declare == "passive":
            return
        try:
            for destination in destinations_of(queue):
                delayed.rebind(destination)
        except NotPermitted as exc:  # no reason not to consume
            logger.warning("Delayed tasks that waited for %r before it was deleted become orphans: %s", queue.name, exc)


class DelayedAMQP:
    """Mixed into an app's AMQP class."""

    Consumer = DelayedConsumer

    app: Celery
    queues: Any
    delay_options: Options

    def Connection(self, hostname: Any = None, *args: Any, **kwargs: Any) -> kombu.Connection:  # noqa: N802
        """A `kombu.Connection` with our transport. Raises `UnsupportedConfiguration`, `InvalidOption`."""
        check_protocol(self.app.conf.task_protocol)
        url = our_url(hostname)
        transport = kwargs.pop("transport", None)
        if transport or not isinstance(url, str) or "://" not in url:
            transport = our_transport(transport or "amqp")
        options = self.delay_options
        if options.timezone is None:
            zone = self.app.timezone
            options = replace(options, timezone="local" if isinstance(zone, LocalTimezone) else zone)
        transport_options = {**(kwargs.pop("transport_options", None) or {})}
        if OPTIONS in transport_options:
            raise InvalidOption(
                f"broker_transport_options[{OPTIONS!r}] has no effect beside install(): give it the options"
            )
        transport_options[OPTIONS] = options.plain()
        connection = kombu.Connection(url, *args, transport=transport, transport_options=transport_options, **kwargs)
        connection.uses_quorum_queues = self._uses_quorum_queues
        return connection

    def _uses_quorum_queues(self) -> bool:
        return any((q.queue_arguments or {}).get("x-queue-type") == "quorum" for q in self.queues.values())


def our_url(url: Any) -> Any:
    """A broker URL, a `;` list or a list of them, with our schemes. Raises `UnsupportedConfiguration`."""
    if isinstance(url, (list, tuple)):
        return [our_url(one) for one in url]
    if not isinstance(url, str):
        return url
    if ";" in url:
        return ";".join(map(our_url, url.split(";")))
    scheme, separator, rest = url.partition("://")
    return our_transport(scheme) + separator + rest if separator else url


def our_transport(name: Any) -> str:
    try:
        return TRANSPORTS[str(name).lower()]
    except KeyError:
        raise UnsupportedConfiguration(
            f"the broker's transport is {name!r}, but only RabbitMQ over AMQP can delay tasks: use a broker_url that "
            "begins with amqp:// or amqps://, or leave install() out"
        ) from None


def check_protocol(task_protocol: Any) -> None:
    if task_protocol == 1:
        raise UnsupportedConfiguration(
            "task_protocol = 1 hides a task's eta in its body, where the transport cannot see it: "
            "use task_protocol = 2, Celery's default since 4.0"
        )

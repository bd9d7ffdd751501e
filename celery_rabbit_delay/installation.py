"""`install`, which gives an app our transport, or with `CELERY_RABBIT_DELAY=off` does not; and what `revoke` does.

The broker URL decides Kombu's transport, at the first connection and at every failover. To leave the URL in the app's
configuration unchanged, `app.amqp`, which makes the app's connections, rewrites the schemes of the URLs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cached_property, lru_cache, partial
from typing import Any
from uuid import UUID
from weakref import WeakMethod, WeakSet

import kombu
from celery import Celery
from celery.signals import after_setup_logger, worker_init
from kombu.utils.imports import symbol_by_name

from . import upstream
from .delay.amqp.broker_url import delay_transport, delay_url
from .delay.amqp.transport import uses_quorum_queues
from .delay.app.apps import GIVEN, SWITCH, is_installed, is_switched_off
from .delay.app.signals import connect
from .delay.app.worker import FollowPool, LimitLoop
from .delay.core.errors import InvalidOption, UnsupportedConfiguration
from .delay.core.options import OPTIONS, Options, options_with

logger = logging.getLogger(__name__)

_told: WeakSet[Celery] = WeakSet()


def install(app: Celery, **options: Any) -> None:
    """Make an app's delayed tasks wait in RabbitMQ. Call it once, before the app publishes or consumes.

    The keyword arguments are the fields of `Options`; durations are in seconds. Those that are missing come from the
    setting `rabbit_delay` of the app's configuration, a mapping. It does not contact the broker. Calling it again with
    the same options does nothing.

    An app whose broker is `memory://` does not change, so that test suites can call it, too; nor, with
    `task_always_eager`, one with another broker than RabbitMQ. With `CELERY_RABBIT_DELAY=off` in the environment no app
    changes.

    Raises `InvalidOption` for an unknown option, a bad value, or other options than in the first call, and
    `UnsupportedConfiguration` for a broker other than RabbitMQ over AMQP 0-9-1 and for `task_protocol = 1`. If the
    app's configuration is not loaded yet, the app's first connection may raise these errors instead.
    """
    wanted = Options.parse(options)
    if is_switched_off():
        app.delay_options_given = options  # a beat shares the queue of those that are not switched off
        _say_it_is_off()
        after_setup_logger.connect(_say_it_is_off, weak=False)  # a worker, or a beat, may log to a file
        return
    make = app.amqp_cls
    if is_installed(app):
        if (known := Options.parse(make.keywords[GIVEN])) != wanted:
            different = wanted.differences(known)
            raise InvalidOption(f"{app} is installed already, and this call has {different}: install it once")
        return
    # Reading app.conf would load the configuration, too early for a later config_from_object().
    settings = upstream.settings_so_far(app)
    check_protocol(settings.get("task_protocol"))
    options_with(settings, options)
    url = os.environ.get("CELERY_BROKER_URL") or settings.get("broker_url")
    try:
        delay_url(url)
    except UnsupportedConfiguration:
        if not needs_no_broker(settings, url):
            raise
        _say_there_is_no_broker(app)
    connect()
    worker_init.connect(_plug_in, weak=False)
    app.steps["consumer"].update([LimitLoop, FollowPool])
    app.amqp_cls = partial(_make_amqp, base=make, **{GIVEN: options})  # picklable, as the app is
    app.control_cls = partial(_make_control, base=app.control_cls)
    if "control" in app.__dict__:
        upstream.mix_in(app.control, DelayedControl)
    if "amqp" in app.__dict__:  # the app was used before: keep its queues and routes, drop its plain connections
        upgrade_amqp(app.amqp, options)
        upstream.forget_connections(app)


def _make_amqp(app: Celery, *, base: Any, delay_options_given: dict[str, Any]) -> Any:
    amqp = symbol_by_name(base)(app=app)
    upgrade_amqp(amqp, delay_options_given)
    return amqp


def _make_control(app: Celery, *, base: Any) -> Any:
    control = symbol_by_name(base)(app=app)
    upstream.mix_in(control, DelayedControl)
    return control


def _plug_in(sender: Any, **signal: Any) -> None:
    """Let a worker follow what is cancelled and paused, if its app has the schedule. For `worker_init`."""
    if is_installed(sender.app) and sender.app.amqp.delay_options.schedule:
        from .schedule.app.revoking import FollowChanges

        sender.app.steps["consumer"].add(FollowChanges)


class DelayedControl:
    """A mixin for an app's remote control class."""

    app: Celery

    def broadcast(self, command: str, arguments: Any = None, destination: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Send a command to workers. With the schedule, also store a `revoke`; without, say once what it does not do.

        Ids may be of the class `uuid.UUID`.
        """
        if isinstance(arguments, Mapping) and "task_id" in arguments:
            arguments = {**arguments, "task_id": as_text(arguments["task_id"])}
        answer = super().broadcast(command, arguments, destination, *args, **kwargs)  # type: ignore[misc]
        if command in _CANCELS and destination is None and not kwargs.get("pattern"):
            if not self.app.amqp.delay_options.schedule:
                if not needs_no_broker(self.app.conf, self.app.conf.broker_url):
                    _say_what_revoke_does()
            else:
                from .schedule.app.revoking import store_revoke

                store_revoke(self.app, command, {**(arguments or {}), **kwargs})
        return answer


#: The commands of Celery's remote control that cancel tasks.
_CANCELS = ("revoke", "terminate", "revoke_by_stamped_headers")


@lru_cache
def _say_what_revoke_does() -> None:
    """Warn, once."""
    logger.warning(
        "A revoke is kept in the memory of the workers that run now: a task that waits in RabbitMQ runs if all of them "
        "restart before it is due. To keep it in RabbitMQ, add schedule=True to install(app)"
    )


def as_text(ids: Any) -> Any:
    """Return the ids of tasks, one or several, with each `uuid.UUID` as the text that Celery writes for it."""
    if isinstance(ids, (list, tuple, set, frozenset)):
        return [as_text(id_) for id_ in ids]
    return str(ids) if isinstance(ids, UUID) else ids


def upgrade_amqp(amqp: Any, given: dict[str, Any]) -> None:
    """Give an app's AMQP object, whose class may be customized, our connections and consumers, with some options."""
    upstream.mix_in(amqp, DelayedAMQP, given_options=given)


class DelayedAMQP:
    """A mixin for an app's AMQP class."""

    app: Celery
    queues: Any
    given_options: dict[str, Any]

    @property
    def Consumer(self) -> type[kombu.Consumer]:  # noqa: N802
        """The class of the consumers of the app's workers. Raises `InvalidOption`."""
        if self.delay_options.schedule:
            from .schedule.app.pausing import PausingConsumer as Consumer
        else:
            from .delay.app.consumers import DelayedConsumer as Consumer
        return Consumer

    @cached_property
    def delay_options(self) -> Options:
        """The app's options. Raises `InvalidOption`."""
        return options_with(self.app.conf, self.given_options)

    def Connection(self, hostname: Any = None, *args: Any, **kwargs: Any) -> kombu.Connection:  # noqa: N802
        """Return a `kombu.Connection` with our transport, or a plain one where there is no broker.

        Raises `UnsupportedConfiguration`, `InvalidOption`.
        """
        check_protocol(self.app.conf.task_protocol)
        transport = kwargs.pop("transport", None)
        try:
            url = delay_url(hostname)
            first = url[0] if isinstance(url, (list, tuple)) and url else url
            if transport or not isinstance(first, str) or "://" not in first:
                ours = delay_transport(transport or "amqp")
            else:
                ours = None  # Kombu goes by the scheme, which says whether to use TLS
        except UnsupportedConfiguration:
            if not needs_no_broker(self.app.conf, hostname, transport):
                raise
            _say_there_is_no_broker(self.app)
            return super().Connection(hostname, *args, transport=transport, **kwargs)  # type: ignore[misc]
        transport_options = {**(kwargs.pop("transport_options", None) or {})}
        if OPTIONS in transport_options:
            raise InvalidOption(
                f"broker_transport_options[{OPTIONS!r}] has no effect together with install(): pass the options to "
                f"install(), or set {OPTIONS}"
            )
        transport_options[OPTIONS] = self.delay_options.to_dict()
        connection: kombu.Connection = super().Connection(  # type: ignore[misc]
            url, *args, transport=ours, transport_options=transport_options, **kwargs
        )
        uses = WeakMethod(self._uses_quorum_queues)  # or the app, which holds the connection, would never be collected
        uses_quorum_queues[connection] = lambda: (known := uses()) is not None and known()
        return connection

    def _uses_quorum_queues(self) -> bool:
        return any((q.queue_arguments or {}).get("x-queue-type") == "quorum" for q in self.queues.values())


def needs_no_broker(settings: Any, url: Any, transport: Any = None) -> bool:
    """Return whether an app may keep a broker that cannot delay tasks, because it belongs to a test suite."""
    name = transport or (url.partition("://")[0] if isinstance(url, str) else "")
    return str(name).lower() == "memory" or bool(settings.get("task_always_eager"))


def _say_it_is_off(**signal: Any) -> None:
    logger.warning("%s=off: Celery runs all delayed tasks; celery-rabbit-delay does nothing", SWITCH)


def _say_there_is_no_broker(app: Celery) -> None:
    if app not in _told:
        _told.add(app)
        logger.info("%s has no broker: Celery runs its delayed tasks; celery-rabbit-delay does nothing", app)


def check_protocol(task_protocol: Any) -> None:
    """Raise `UnsupportedConfiguration` for the task protocol that hides the eta."""
    if task_protocol == 1:
        raise UnsupportedConfiguration(
            "task_protocol = 1 hides a task's eta in its body, where the transport cannot see it: "
            "use task_protocol = 2, Celery's default since 4.0"
        )

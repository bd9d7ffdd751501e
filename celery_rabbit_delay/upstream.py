"""The private parts of Celery, Kombu and py-amqp that this package relies on, each in a function of its own.

`make upstream` runs the tests against their newest releases, to learn early when one of them changes. This module
imports nothing of the package, so that every other one may use it.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import amqp
    import kombu

_CLOSE = (20, 40)  # of a channel
_BASIC = 60


def settings_so_far(app: Any) -> Any:
    """Return a Celery app's settings without loading its configuration, which the app may still set."""
    return app.conf if app.configured else app._preconf


def queues_routed_to(app: Any) -> set[str]:
    """Return the names of queues that `task_routes` and the tasks of a Celery app name.

    Those that a function chooses are not known (celery.app.routes.MapRoute).
    """
    maps = [router for router in app.amqp.routes if hasattr(router, "patterns")]
    routes = [route for router in maps for route in (*router.map.values(), *router.patterns.values())]
    routes += [{"queue": getattr(task, "queue", None)} for task in app.tasks.values()]
    queues = [route if isinstance(route, str) else route.get("queue") for route in routes]
    return {str(getattr(queue, "name", queue)) for queue in queues if queue}


def forget_connections(app: Any) -> None:
    """Make a Celery app open new connections. Connections of its pools that are in use stay open."""
    app.amqp._producer_pool = None
    app._pool = None


def mix_in(instance: Any, mixin: type, **attributes: Any) -> None:
    """Change an object's class to a subclass of a mixin and of its present class."""
    instance.__class__ = type(mixin.__name__, (mixin, type(instance)), attributes)


def clear_eta(request: Any) -> None:
    """Make Celery's worker run a task at once (celery.worker.strategy reads it after the signal `task_received`)."""
    request._eta = None


def queue_of_tag(consumer: Any, tag: Any) -> str | None:
    """Return the name of the queue that a `kombu.Consumer` consumes from under a consumer tag."""
    name = next((queue for queue, known in consumer._active_tags.items() if known == tag), None)
    return name[0] if isinstance(name, tuple) else name


def consume_also(consumer: Any, queue: Any) -> None:
    """Begin a further consumer of a queue that a `kombu.Consumer` consumes from. It ends with the others."""
    if consumer.consuming_from(queue):
        tag = f"{consumer.tag_prefix}{next(consumer._tags)}"
        consumer._active_tags[queue.name, tag] = tag
        queue.consume(tag, consumer._receive_callback, no_ack=consumer.no_ack, nowait=False)


def cancel_also(consumer: Any, queue: Any) -> None:
    """End the further consumers of a queue, by its name."""
    for key, tag in list(consumer._active_tags.items()):
        if isinstance(key, tuple) and key[0] == getattr(queue, "name", queue):
            del consumer._active_tags[key]
            consumer.channel.basic_cancel(tag)


def serialize(message: Any) -> tuple[bytes, bytes]:
    """Return the properties and the body of an `amqp.Message` as they are sent (amqp.method_framing.frame_writer)."""
    body = message.body
    if isinstance(body, str):
        body = body.encode(message.properties.setdefault("content_encoding", "utf-8"))
    return message._serialize_properties(), bytes(body)


def deserialize(message: Any, properties: bytes) -> None:
    """Give an `amqp.Message` the properties that were serialized."""
    message._load_properties(_BASIC, properties, 0)


def arguments_of(connection: kombu.Connection) -> dict[str, Any]:
    """Return the arguments that make a copy of a `kombu.Connection`."""
    return dict(connection._info(resolve=False))


def close_without_waiting(channel: Any) -> None:
    """Send `channel.close` on an `amqp.Channel`; its number is free again when the broker answers."""
    if channel.is_open and not channel.is_closing:
        channel.is_closing = True
        channel.send_method(_CLOSE, "BsBB", (0, "", 0, 0))


def on_refused(channel: Any, call: Callable[[Exception], None]) -> None:
    """Call a function with the error for which the broker closes an `amqp.Channel`, instead of raising it at a read."""

    def on_close(code: int, text: str, *method: int) -> None:
        try:
            channel._on_close(code, text, *method)
        except channel.connection.channel_errors as exc:
            call(exc)

    channel._callbacks[_CLOSE] = on_close


def schedule_again(scheduler: Any, entry: Any, seconds: float) -> None:
    """Make a `celery.beat.Scheduler`, which has taken an entry out of its schedule, run it in some seconds."""
    heappush(scheduler._heap, (scheduler._when(entry, seconds), 5, entry))


def unschedule(scheduler: Any, name: str | None = None) -> None:
    """Make a `celery.beat.Scheduler` forget when an entry is due, or when each is.

    Its heap becomes another list: a tick that is going on adds the entry that has run to the one before.
    """
    scheduler._heap = [event for event in scheduler._heap or () if name not in (None, event[2].name)]
    heapify(scheduler._heap)


def stop_waiting(connection: amqp.Connection) -> None:
    """Make an `amqp.Connection` close its socket without waiting for the other side, as TLS would."""
    if connection._transport is not None and connection._transport.sock is not None:
        with suppress(OSError):
            connection._transport.sock.settimeout(0)


def is_ended(connection: amqp.Connection) -> bool:
    """Return whether the other side has closed the socket of an `amqp.Connection`, whatever was not read yet.

    False where that cannot be seen: on Windows, and with eventlet, which takes `poll` away.
    """
    transport = connection._transport
    if transport is None or transport.sock is None or transport.sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        return False
    return _tells(transport.sock, getattr(select, "POLLRDHUP", 0))  # of errors the system always tells


def has_input(connection: amqp.Connection) -> bool:
    """Return whether there is something to read from the socket of an `amqp.Connection`, such as its end.

    True where that cannot be seen, as above, with TLS, whose buffers may hold more, and of a closed one, where a read
    raises the right error.
    """
    sock = connection.transport.sock
    if sock is None or sock.fileno() < 0:
        return True
    return not hasattr(select, "poll") or hasattr(sock, "pending") or _tells(sock, select.POLLIN)


def _tells(sock: Any, event: int) -> bool:
    poll = select.poll()
    poll.register(sock, event)
    return bool(poll.poll(0))


def close_socket(connection: amqp.Connection) -> None:
    """Close this process's copy of an `amqp.Connection`'s socket without shutting it down for others."""
    if connection._transport is not None and connection._transport.sock is not None:
        connection._transport.sock.close()
        connection._transport.sock = None

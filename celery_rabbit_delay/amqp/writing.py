"""Sends many messages through an AMQP connection with few system calls."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from amqp.serialization import dumps

from .. import upstream
from ..core import frames

#: The number of bytes to gather before sending.
_MOST_BYTES = 64 * 1024


class MessageWriter:
    """Sends messages through an `amqp.Connection` without reading from it first, which py-amqp would do.

    A message and its record then share one packet, for the broker as well.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._transport = connection.transport
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, channel: Any, message: Any, exchange: str, key: str, timeout: float | None) -> None:
        """Add a mandatory message for an `amqp.Channel`. Raises the same errors as `flush`."""
        arguments = _publish_arguments(exchange, key)
        properties, body = upstream.serialize(message)
        data = frames.publish(channel.channel_id, arguments, properties, body, self._connection.frame_max)
        self._parts.append(data)
        self._size += len(data)
        self._connection.bytes_sent += 1  # py-amqp sends a heartbeat when nothing else was sent
        if self._size >= _MOST_BYTES:
            self.flush(timeout)

    def flush(self, timeout: float | None) -> None:
        """Send all added messages within `timeout` seconds. Raises `amqp.RecoverableConnectionError`, `OSError`."""
        data = b"".join(self._parts)
        self.discard()
        lock = self._connection.write_lock
        if not lock.acquire(timeout=-1 if timeout is None else timeout):  # another thread waits for the broker
            raise RecoverableConnectionError("basic_publish: timed out")
        try:
            sent = upstream.send_at_once(self._transport, data)
            if sent < len(data):
                with self._transport.having_timeout(timeout):
                    self._transport.write(data[sent:])
        except TimeoutError as exc:  # py-amqp's error for this case: a partial frame may have been sent
            raise RecoverableConnectionError("basic_publish: timed out") from exc
        finally:
            lock.release()

    def discard(self) -> None:
        """Drop all messages that are not sent yet."""
        self._parts.clear()
        self._size = 0


@lru_cache(maxsize=1024)
def _publish_arguments(exchange: str, key: str) -> bytes:
    arguments: bytes = dumps("Bssbb", (0, exchange, key, True, False))
    return arguments

"""Connects to a broker, or says which one does not answer."""

from __future__ import annotations

import kombu
from amqp.exceptions import AMQPError
from kombu.exceptions import OperationalError


def ensure_connection(connection: kombu.Connection) -> None:
    """Connect. Raises `kombu.exceptions.OperationalError`, which names the broker, and not the password."""
    try:
        connection.ensure_connection(max_retries=1)
    except (OperationalError, AMQPError, OSError) as exc:
        raise OperationalError(f"no connection to {connection.as_uri()}: {str(exc) or type(exc).__name__}") from exc

"""Celery's `countdown` and `eta`, kept by RabbitMQ instead of by the worker.

    celery_rabbit_delay.install(app)

Importing the package registers the URL schemes `rabbit-delay://` and `rabbit-delays://` (TLS) with Kombu.
"""

from celery.signals import task_received, worker_init
from kombu.connection import resolve_aliases
from kombu.transport import TRANSPORT_ALIASES

from .batching import batch
from .exceptions import (
    BatchFailed,
    CascadeConflict,
    CascadeMissing,
    DelayError,
    DestinationNotFound,
    InvalidDelay,
    InvalidDestination,
    InvalidOption,
    NotPermitted,
    NotRouted,
    UnsupportedConfiguration,
)
from .install import install
from .options import Options
from .worker import join_neighbours, run_what_is_due

__all__ = [
    "BatchFailed",
    "CascadeConflict",
    "CascadeMissing",
    "DelayError",
    "DestinationNotFound",
    "InvalidDelay",
    "InvalidDestination",
    "InvalidOption",
    "NotPermitted",
    "NotRouted",
    "Options",
    "UnsupportedConfiguration",
    "batch",
    "install",
]

TRANSPORT_ALIASES["rabbit-delay"] = "celery_rabbit_delay.transport:Transport"
TRANSPORT_ALIASES["rabbit-delays"] = "celery_rabbit_delay.transport:SSLTransport"
# How a connection shows itself in logs and to tools such as Flower, which look for "amqp".
resolve_aliases["rabbit-delay"] = "amqp"
resolve_aliases["rabbit-delays"] = "amqps"

worker_init.connect(join_neighbours, weak=False)
task_received.connect(run_what_is_due, weak=False)

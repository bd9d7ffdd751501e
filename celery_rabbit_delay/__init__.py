"""Celery's `countdown` and `eta`, kept by RabbitMQ instead of by the worker.

    celery_rabbit_delay.install(app)

Importing the package registers the URL schemes `rabbit-delay://` and `rabbit-delays://` (TLS) with Kombu. It does not
import Celery until `install` or `batch` is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .delay.amqp import broker_url as _broker_url  # noqa: F401  registers them
from .delay.core.errors import (
    CascadeConflict,
    CascadeMissing,
    DelayError,
    DestinationNotFound,
    InvalidDelay,
    InvalidDestination,
    InvalidOption,
    LimitReached,
    MessageRefused,
    NotPermitted,
    NotRouted,
    UnsupportedConfiguration,
)

if TYPE_CHECKING:
    from .cli.page import page
    from .delay.amqp.batch import BatchFailed
    from .delay.app.apps import batch
    from .delay.core.options import Options
    from .installation import install
    from .periodic.core.errors import EntryConflict, InvalidEntry
    from .schedule.amqp.waiting_tasks import Scheduled
    from .schedule.app.api import cancel, find, pause, paused, reschedule, restore, resume, scheduled
    from .schedule.core.errors import DifferentMessages, NotWaiting, StreamUnavailable, TooLate

    __version__: str

__all__ = [
    "BatchFailed",
    "CascadeConflict",
    "CascadeMissing",
    "DelayError",
    "DestinationNotFound",
    "DifferentMessages",
    "EntryConflict",
    "InvalidDelay",
    "InvalidDestination",
    "InvalidEntry",
    "InvalidOption",
    "LimitReached",
    "MessageRefused",
    "NotPermitted",
    "NotRouted",
    "NotWaiting",
    "Options",
    "Scheduled",
    "StreamUnavailable",
    "TooLate",
    "UnsupportedConfiguration",
    "batch",
    "cancel",
    "find",
    "install",
    "page",
    "pause",
    "paused",
    "reschedule",
    "restore",
    "resume",
    "scheduled",
]

_WHERE = {
    "BatchFailed": ".delay.amqp.batch",
    "Options": ".delay.core.options",
    "Scheduled": ".schedule.amqp.waiting_tasks",
    "batch": ".delay.app.apps",
    "install": ".installation",
    "page": ".cli.page",
    **dict.fromkeys(("EntryConflict", "InvalidEntry"), ".periodic.core.errors"),
    **dict.fromkeys(("DifferentMessages", "NotWaiting", "StreamUnavailable", "TooLate"), ".schedule.core.errors"),
    **dict.fromkeys(
        ("cancel", "find", "pause", "paused", "reschedule", "restore", "resume", "scheduled"), ".schedule.app.api"
    ),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("celery-rabbit-delay")
    elif name in _WHERE:
        value = getattr(import_module(_WHERE[name], __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])

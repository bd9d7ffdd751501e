"""Celery's `countdown` and `eta`, kept by RabbitMQ instead of by the worker.

    celery_rabbit_delay.install(app)

Importing the package registers the URL schemes `rabbit-delay://` and `rabbit-delays://` (TLS) with Kombu. It does not
import Celery until `install` or `batch` is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .amqp import schemes as _schemes  # noqa: F401  registers them
from .core.errors import (
    CascadeConflict,
    CascadeMissing,
    DelayError,
    DestinationNotFound,
    DifferentMessages,
    EntryConflict,
    InvalidDelay,
    InvalidDestination,
    InvalidEntry,
    InvalidOption,
    LayoutMismatch,
    LimitReached,
    MessageRefused,
    NotPermitted,
    NotRouted,
    NotWaiting,
    StreamUnavailable,
    TooLate,
    UnsupportedConfiguration,
)

if TYPE_CHECKING:
    from .amqp.batch import BatchFailed
    from .amqp.schedule import Scheduled
    from .app.api import cancel, find, pause, paused, reschedule, restore, resume, scheduled
    from .app.batches import batch
    from .app.install import install
    from .cli.page import page
    from .core.options import Options

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
    "LayoutMismatch",
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
    "BatchFailed": ".amqp.batch",
    "Options": ".core.options",
    "Scheduled": ".amqp.schedule",
    "batch": ".app.batches",
    "cancel": ".app.api",
    "find": ".app.api",
    "install": ".app.install",
    "page": ".cli.page",
    "pause": ".app.api",
    "paused": ".app.api",
    "reschedule": ".app.api",
    "restore": ".app.api",
    "resume": ".app.api",
    "scheduled": ".app.api",
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

"""Periodic tasks: a beat that several processes share, and entries that are written at run time.

The public functions are those of `api`. Importing the package does not import Celery's beat until one is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import add, change, disable, enable, entries, remove, run_now
    from .beat_status import PeriodicTask

__all__ = ["PeriodicTask", "add", "change", "disable", "enable", "entries", "remove", "run_now"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".beat_status" if name == "PeriodicTask" else ".api", __name__), name)

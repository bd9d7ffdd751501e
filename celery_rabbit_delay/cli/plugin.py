"""The plug-in that Celery loads: the command `celery delay`, and signal handlers for workers with our URL scheme."""

from __future__ import annotations

from ..app.signals import connect
from .groups import delay

__all__ = ["delay"]

connect()

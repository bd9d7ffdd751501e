"""What Celery loads for its commands: `celery delay`, and the signals of a worker whose URL names our transport."""

from __future__ import annotations

from ..app.signals import connect
from .groups import delay

__all__ = ["delay"]

connect()

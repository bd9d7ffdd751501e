"""What Celery loads for each of its commands: `celery delay`, and what a worker needs whose URL alone names our transport."""

from __future__ import annotations

from ..app.signals import connect
from .groups import delay

__all__ = ["delay"]

connect()

"""`celery -A shop delay COMMAND`, and `celery-rabbit-delay --broker URL COMMAND` where there is no app.

Every `celery` command imports this package, so its modules import the dependencies of a command inside that command.
"""

from .groups import delay, main

__all__ = ["delay", "main"]

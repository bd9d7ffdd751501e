"""`celery -A shop delay COMMAND`, and `celery-rabbit-delay --broker URL COMMAND` where there is no app.

Every `celery` command imports this package, `plugin` and `output`. All else is imported when one of our commands runs.
"""


def main() -> None:
    """Run `celery-rabbit-delay`."""
    from .groups import standalone

    standalone(prog_name="celery-rabbit-delay")

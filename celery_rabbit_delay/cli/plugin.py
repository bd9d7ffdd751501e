"""The plug-in that Celery loads: the command `celery delay`, and signal handlers for workers with our URL scheme."""

from __future__ import annotations

import click

from ..delay.app.signals import connect
from .output import Group, version_option


class _Delay(Group):
    """A group whose commands are imported when one of them is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from .groups import standalone

        return standalone.list_commands(ctx)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from .groups import standalone

        return standalone.get_command(ctx, name)


delay = version_option(_Delay("delay", help="Manage the queues of delayed tasks, and the tasks that wait in them."))
connect()

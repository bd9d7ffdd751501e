"""`page`: the web page of an app, for another web application to serve."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from ..delay.app.apps import SWITCH, is_switched_off
from ..delay.core.errors import UnsupportedConfiguration
from .target import AppTarget
from .web import broker_of

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

    from ..web.operations import Broker


def page(
    app: Any,
    secret: str,
    *,
    read_only: bool = False,
    any_queue: bool = False,
    management_url: str | None = None,
) -> WSGIApplication:
    """Return the web page of a Celery app as a WSGI application (PEP 3333), to be mounted at any path.

    Whoever can reach that path can see and change what waits: the application that mounts it has to check the login.
    The page logs what was done by the `REMOTE_USER` of the request, at INFO. `secret` signs its cookie, and is the same
    in all processes. The other arguments are those of the command `web`.

    The first request raises `UnsupportedConfiguration` if `install` was not called, or if the extra `web` is missing.
    """

    def broker() -> Broker:
        try:
            return broker_of(AppTarget(app), management_url, any_queue)
        except click.ClickException as exc:
            raise UnsupportedConfiguration(exc.message) from exc

    if is_switched_off():
        return _off
    try:
        from ..web.mounted import MountedPage
        from ..web.setting import Setting
    except ModuleNotFoundError as exc:
        raise UnsupportedConfiguration("the page needs more: pip install 'celery-rabbit-delay[web]'") from exc
    setting = Setting(read_only=read_only, secret=secret, is_mounted=True)
    return MountedPage(setting, broker)


def _off(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    """Answer a request while the package is switched off."""
    start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
    return [f"{SWITCH}=off: there is no page of delayed tasks".encode()]

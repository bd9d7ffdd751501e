"""The Flask application of the page. Its data come from the index and the operations."""

from __future__ import annotations

import secrets
from datetime import timezone
from typing import Any

from flask import Flask

from ..delay.core import headers as headers_
from ..schedule.amqp.waiting_tasks import utc_ms
from ..text import counted, span
from . import forms, plot, search
from .actions import add_actions
from .guard import add_guard, token
from .indexer import Indexer
from .operations import Broker, Operations
from .overview import Overview
from .printing import printable
from .setting import Setting
from .views import add_views


def create(setting: Setting, broker: Broker, indexer: Indexer) -> Flask:
    """Return the application."""
    site = Flask(__name__, static_url_path="/static")
    site.config.update(
        SECRET_KEY=setting.secret or secrets.token_bytes(32),
        SESSION_COOKIE_NAME=f"celery-rabbit-delay-{setting.port}",  # a cookie is for all ports of a host
        SESSION_COOKIE_SAMESITE="Strict",
        SESSION_COOKIE_HTTPONLY=True,
        MAX_CONTENT_LENGTH=forms.FORM,
        MAX_FORM_MEMORY_SIZE=forms.FORM,
        MAX_FORM_PARTS=forms.SELECTED + 20,
    )
    operations = Operations(broker, indexer)
    overview = Overview(operations)
    add_guard(site, setting)
    _filters(site)
    add_views(site, operations, overview)
    add_actions(site, operations, overview)

    @site.context_processor
    def common() -> dict[str, Any]:
        return {
            "setting": setting,
            "broker": broker.name,
            "token": token,
            "now": utc_ms(),
            "zone": forms.zone(),
            "progress": indexer.progress,
            "delays": forms.DELAYS,
        }

    return site


def _filters(site: Flask) -> None:
    site.jinja_env.filters["moment"] = lambda value, *format_: plot.text(value, forms.zone(), *format_)
    site.jinja_env.filters["until"] = lambda value: plot.until(value - utc_ms())
    site.jinja_env.filters["printable"] = printable
    site.jinja_env.filters["counted"] = counted
    site.jinja_env.filters["iso"] = lambda value: plot.text(value, timezone.utc, "%Y-%m-%dT%H:%M:%SZ")
    site.jinja_env.filters["local"] = lambda value: plot.text(value, forms.zone(), "%Y-%m-%dT%H:%M:%S")
    site.jinja_env.filters["duration"] = span
    site.jinja_env.filters["milliseconds"] = headers_.milliseconds
    site.jinja_env.globals["none"] = search.NONE
    site.jinja_env.trim_blocks = site.jinja_env.lstrip_blocks = True

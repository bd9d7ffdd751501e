"""Access to the page, request by request: logins, passwords, and the tokens of its forms."""

from __future__ import annotations

import secrets
from typing import Any

from flask import Flask, Response, abort, flash, redirect, render_template, request, session, url_for
from werkzeug.exceptions import HTTPException

from . import safety
from .setting import Setting


def add_guard(site: Flask, setting: Setting) -> None:
    """Reject requests without permission, and requests forged by other sites."""
    passwords = safety.Passwords(setting.password)

    @site.before_request
    def check() -> Response | None:
        host = request.headers.get("Host", "")
        if not (setting.is_mounted or safety.is_known(host, setting.host, setting.names)):
            abort(421, "This page does not answer to this host name: allow it with --allow-host.")
        is_open = not setting.password or request.endpoint in ("static", "login", "enter")
        if not is_open and not session.get("entered"):
            given = _basic() if request.endpoint == "metrics" else None
            if given is None and request.method == "GET" and request.endpoint != "metrics":
                return redirect(url_for("login"), 303)  # type: ignore[return-value]
            if given is None:
                abort(401, "Log in first, or send the password.")
            if not passwords.accept(request.remote_addr or "", given):
                abort(401, "The password is wrong.")
        if request.method == "POST":
            _check_post(setting)
        return None

    @site.after_request
    def protect(response: Response) -> Response:
        response.headers.update(safety.HEADERS)
        if request.endpoint == "static":
            response.headers["Cache-Control"] = "no-cache"
        return response

    @site.errorhandler(HTTPException)
    def error(exc: HTTPException) -> Any:
        if request.endpoint == "metrics":
            return exc.get_response()
        return render_template("error.html", title=exc.name, says=exc.description), exc.code or 500

    @site.get("/login")
    def login() -> str:
        return render_template("login.html")

    @site.post("/login")
    def enter() -> Any:
        address = request.remote_addr or ""
        if passwords.is_blocked(address):
            abort(429, "Too many wrong passwords: wait for a minute.")
        if not setting.password or not passwords.accept(address, request.form.get("password", "")):
            flash("The password is wrong.", "bad")
            return redirect(url_for("login"), 303)
        session.clear()
        session["entered"] = True
        return redirect(url_for("schedule"), 303)

    @site.post("/logout")
    def logout() -> Any:
        session.clear()
        return redirect(url_for("login"), 303)


def _check_post(setting: Setting) -> None:
    expected = session.get("token")
    if not expected or not safety.same(request.form.get("token", ""), expected):
        abort(403, "This form is out of date: go back, reload the page, and try again.")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        abort(403, "Another site sent this form.")
    if setting.read_only and request.endpoint not in ("enter", "logout"):
        abort(403, "This page was started with --read-only.")


def token() -> str:
    """Return the token that shows that a form comes from this page."""
    if "token" not in session:
        session["token"] = secrets.token_urlsafe(24)
    return str(session["token"])


def _basic() -> str | None:
    """Return the password of an Authorization header with any user name; None without one that can be read."""
    try:
        given = request.authorization
    except ValueError:  # it is not ASCII
        return None
    return given.password if given and given.type == "basic" else None

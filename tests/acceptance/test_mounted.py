"""The page within a Django project, which checks the login."""

from __future__ import annotations

import http.cookiejar
import os
import re
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import ROOT
from tests.kit import background
from tests.kit.broker import Vhost
from tests.kit.node import free_port
from tests.kit.wait import wait_until

pytest.importorskip("django")

SERVE = """
import os

from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", run_syncdb=True, verbosity=0)
User.objects.create_superuser("ada", password="sesame")
User.objects.create_user("eve", password="sesame")
import shop.celery
for number in range(3):
    result = shop.celery.app.send_task("shop.tasks.ask_for_review", (4711 + number,), countdown=3600)
print("asks", result.id, flush=True)
call_command("runserver", os.environ["PORT"], use_reloader=False)
"""


class Browser:
    """A client with cookies, which follows redirects."""

    def __init__(self, port: int) -> None:
        self.host = f"http://127.0.0.1:{port}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    def ask(self, path: str, fields: Mapping[str, Any] | None = None) -> tuple[str, str]:
        """Return the URL in the end and the page; of an error, its page."""
        data = None if fields is None else urllib.parse.urlencode(fields, doseq=True).encode()
        request = urllib.request.Request(self.host + path, data, {"Referer": self.host + path})
        try:
            with self._opener.open(request, timeout=60) as answer:
                return answer.url.removeprefix(self.host), answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return str(exc.code), exc.read().decode()
        except OSError as exc:
            return "", str(exc)


@pytest.fixture
def shop(vhost: Vhost, tmp_path: Path) -> Iterator[tuple[Browser, str]]:
    """Run the Django shop of the examples with a user of the staff and another one; yield a browser and a task's id."""
    directory = tmp_path / "django_shop"
    shutil.copytree(ROOT / "examples" / "django_shop", directory)
    settings = directory / "shop" / "settings.py"
    text = settings.read_text().replace("amqp://guest:guest@localhost//", vhost.url("amqp"))
    quick = 'PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]'
    settings.write_text(f"{text}\n{quick}\n")
    port, log = free_port(), tmp_path / "django.log"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "PORT": str(port)}
    process = background.start([sys.executable, "manage.py", "shell", "--command", SERVE], log, directory, environment)
    browser = Browser(port)
    try:
        wait_until(lambda: browser.ask("/admin/login/")[0] != "" or process.poll() is not None, "Django serves")
        assert process.poll() is None, log.read_text()
        yield browser, re.findall(r"^asks (\S+)$", log.read_text(), re.MULTILINE)[0]
    finally:
        background.kill(process)


def log_in(browser: Browser, name: str) -> None:
    _, page = browser.ask("/admin/login/")
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert found
    browser.ask("/admin/login/", {"csrfmiddlewaretoken": found[1], "username": name, "password": "sesame"})


def test_a_django_project_serves_the_page_to_its_staff_alone(vhost: Vhost, shop: tuple[Browser, str]) -> None:
    browser, id_ = shop
    for _ in range(2):  # nobody, then somebody who is not of the staff
        url, page = browser.ask("/delays/")
        assert url.startswith("/admin/login/")
        assert id_ not in page
        log_in(browser, "eve")
    browser = Browser(int(browser.host.rpartition(":")[2]))
    log_in(browser, "ada")
    wait_until(lambda: id_ in browser.ask("/delays/")[1], "the page shows the task")
    page = browser.ask("/delays/")[1]
    for path in re.findall(r'(?:href|src|action)="(/[^"]*)"', page):
        assert path.startswith("/delays/"), path
    assert browser.ask("/delays/static/page.css")[0] == "/delays/static/page.css"
    [number] = re.findall(r'id="row-(\d+)"', browser.ask(f"/delays/?q={id_}")[1])
    fields = {"number": number, "token": re.findall(r'name="token" value="([^"]+)"', page)[0]}
    back = re.findall(r'name="back" value="([^"]+)"', page)[0]
    assert browser.ask("/delays/cancel", {**fields, "token": "forged"})[0] == "403"
    url, page = browser.ask("/delays/cancel", {**fields, "back": back})
    assert url.startswith("/delays/")
    assert "1 cancelled" in page
    assert id_ in browser.ask("/delays/?state=cancelled")[1]

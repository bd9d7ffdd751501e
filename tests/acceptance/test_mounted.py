"""The page within a Django project, which checks the login."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT
from tests.kit import background
from tests.kit.broker import DEFAULTS, Vhost
from tests.kit.node import free_port
from tests.kit.site import Site
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


@pytest.fixture
def shop(vhost: Vhost, tmp_path: Path) -> Iterator[tuple[Site, str]]:
    """Run the Django shop of the examples with a user of the staff and another one; yield a client and a task's id."""
    directory = tmp_path / "django_shop"
    shutil.copytree(ROOT / "examples" / "django_shop", directory)
    settings = directory / "shop" / "settings.py"
    text = settings.read_text().replace("amqp://guest:guest@localhost//", vhost.url("amqp"))
    quick = 'PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]'
    settings.write_text(f"{text}\n{quick}\n")
    vhost.make_streams(DEFAULTS)
    port, log = free_port(), tmp_path / "django.log"
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "PORT": str(port)}
    process = background.start([sys.executable, "manage.py", "shell", "--command", SERVE], log, directory, environment)
    try:
        wait_until(lambda: "Quit the server" in log.read_text() or process.poll() is not None, "Django serves")
        assert process.poll() is None, log.read_text()
        yield client(port), re.findall(r"^asks (\S+)$", log.read_text(), re.MULTILINE)[0]
    finally:
        background.kill(process)


def client(port: int) -> Site:
    site = Site(None, Path())  # it is no process of ours
    site.url = f"http://127.0.0.1:{port}"
    return site


def log_in(site: Site, name: str) -> None:
    found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', site.ask("/admin/login/").text)
    assert found
    site.ask("/admin/login/", {"csrfmiddlewaretoken": found[1], "username": name, "password": "sesame"})


def test_a_django_project_serves_the_page_to_its_staff_alone(vhost: Vhost, shop: tuple[Site, str]) -> None:
    site, id_ = shop
    for _ in range(2):  # nobody, then somebody who is not of the staff
        assert site.ask("/delays/").headers["Location"].startswith("/admin/login/")
        log_in(site, "eve")
    site = client(int(site.url.rpartition(":")[2]))
    log_in(site, "ada")
    wait_until(lambda: id_ in site.ask("/delays/").text, "the page shows the task")
    page = site.ask("/delays/").text
    for path in re.findall(r'(?:href|src|action)="(/[^"]*)"', page):
        assert path.startswith("/delays/"), path
    assert site.ask("/delays/static/page.css").status == 200
    [number] = site.numbers(f"/delays/?q={id_}")
    assert site.ask("/delays/cancel", {"number": number, "token": "forged"}).status == 403
    back = re.findall(r'name="back" value="([^"]+)"', page)[0]
    answer = site.ask("/delays/cancel", {"token": site.token("/delays/"), "back": back, "number": number})
    assert (answer.status, answer.headers["Location"][:8]) == (303, "/delays/")
    assert "1 cancelled" in site.ask(answer.headers["Location"]).text
    assert id_ in site.ask("/delays/?state=cancelled").text

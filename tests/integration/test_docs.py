"""Every documented snippet and command runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import kombu
import kombu.pools
import pytest
from celery import Celery

import celery_rabbit_delay
from celery_rabbit_delay import Options
from tests.kit.broker import DEFAULTS, Vhost
from tests.kit.pages import commands
from tests.kit.reader import UUID
from tests.kit.wait import wait_until

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES]
URL = "guest:guest@localhost//"
#: Subcommands of `rabbitmqctl` that know no virtual host.
OF_A_NODE = ("await_startup", "cluster_status", "enable_feature_flag", "list_feature_flags", "status")
#: What is shown of a program in examples/ is run with it, by tests/acceptance/test_guides.py.
SNIPPET = re.compile(r"```python\n(?!# examples/)(.*?)```", re.DOTALL)


def snippets() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(ROOT)} {number}", code)
        for path in DOCUMENTS
        for number, code in enumerate(SNIPPET.findall(path.read_text()), start=1)
    ]


@pytest.mark.parametrize(("name", "code"), snippets(), ids=[name for name, _ in snippets()])
def test_a_documented_snippet_runs_as_it_stands_but_for_the_broker(vhost: Vhost, name: str, code: str) -> None:
    assert URL in code
    # In a process of its own: Celery gives the tasks of one app to all others.
    program = code.replace(URL, vhost.url("").removeprefix("://"))
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "countdown" in code or "x-delay" in code:
        wait_until(vhost.waiting, "its tasks wait")


def run_all(vhost: Vhost, page: str, ids: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Run the commands of a page in order, some with these `ids`; return the name and the exit code of each of ours."""
    url = vhost.url("amqp")
    environment = {**os.environ, "CELERY_BROKER_URL": url}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    here = f"http://guest:guest@127.0.0.1:{vhost.broker.node.management_port}"
    codes = []
    for command, _ in commands(page):
        command = command.replace("http://guest:guest@localhost:15672", here)
        if ids:
            command = re.sub(UUID, " ".join(ids), command)
        if command.startswith("rabbitmqctl "):
            of_a_vhost = [] if command.split()[1] in OF_A_NODE else ["--vhost", vhost.name]
            vhost.broker.node.ctl(*shlex.split(command)[1:], *of_a_vhost)
            continue
        done = subprocess.run(
            shlex.split(command.replace(f"amqp://{URL}", url)),
            cwd=ROOT / "examples" / "quickstart",
            env=environment,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, command
        codes.append((command.split(" delay ")[-1].split(" --")[0], done.returncode))
    return codes


@pytest.mark.long
def test_the_commands_of_the_page_on_operations_work_one_after_the_other(vhost: Vhost) -> None:
    codes = run_all(vhost, "operations.md")
    # Before it is created, something is missing.
    assert [code for code in codes if code[1]] == [("status", 3), ("celery-rabbit-delay", 3)]
    assert len(codes) > 8


@pytest.mark.long
def test_the_commands_of_the_pages_on_deployment_and_leaving_work_one_after_the_other(vhost: Vhost) -> None:
    deployed = run_all(vhost, "deployment.md")
    assert deployed == [(name, 0) for name in ("setup", "verify", "status", "verify")]
    left = run_all(vhost, "how-to/leave.md")
    assert left == [("status", 0), ("celery-rabbit-delay", 0)]
    assert not [name for name in vhost.names("exchanges") if name.startswith("celery-rabbit-delay.")]


@pytest.mark.long
def test_the_commands_of_the_pages_that_a_team_asks_for_work(vhost: Vhost) -> None:
    pages = ("production.md", "runbook.md", "sizing.md", "how-to/two-apps.md")
    codes = [one for page in pages for one in run_all(vhost, page)]
    assert len(codes) > len(pages)
    assert not any(code for _, code in codes), codes


def test_one_person_is_erased_as_the_page_says_and_all_others_still_wait(vhost: Vhost) -> None:
    before, after = (Celery(broker=vhost.url("amqp"), set_as_current=False) for _ in range(2))
    celery_rabbit_delay.install(before, schedule=True)
    celery_rabbit_delay.install(after, prefix="celery-rabbit-delay.2", schedule=True)
    for prefix in (Options.prefix, "celery-rabbit-delay.2"):
        vhost.make_streams({**DEFAULTS, "prefix": prefix})
    try:
        after.send_task("remind", ("customer 7",), countdown=3000)
        # 3,600 s is a round delay, in an outbox
        sent = [before.send_task("remind", ("customer 42",), countdown=delay).id for delay in (3000, 3600)]
        codes = run_all(vhost, "stored-data.md", tuple(sent))
        assert len(codes) == 3
        assert not any(code for _, code in codes), codes
        [left] = celery_rabbit_delay.scheduled(after)
        assert left.args == "('customer 7',)"
        assert sum(vhost.waiting().values()) == 1
        assert not [name for name in vhost.names("queues") if name.startswith("celery-rabbit-delay.v3")]
        with kombu.Connection(vhost.url("amqp")) as connection:
            [stream] = [name for name in vhost.names("queues") if name.endswith(".journal.3600")]
            channel = connection.channel()
            channel.basic_qos(0, 10, False)
            found: list[bytes] = []
            channel.basic_consume(
                stream,
                arguments={"x-stream-offset": "first"},
                callback=lambda message: found.append(bytes(message.body)),
            )
            wait_until(lambda: connection.drain_events(timeout=10) or found, "the record is read")
            assert b"customer 7" in b"".join(found)
            assert b"customer 42" not in b"".join(found)
    finally:
        before.close()
        after.close()
        kombu.pools.reset()


def test_the_api_page_has_every_public_name_and_every_option() -> None:
    api = (DOCS / "api.md").read_text()
    documented = re.findall(r"^\.\. auto\w+:: celery_rabbit_delay\.(\w+)$", api, re.MULTILINE)
    assert sorted(documented) == sorted(celery_rabbit_delay.__all__)
    [options] = re.findall(r"celery_rabbit_delay\.Options\n +:members: (.*?)\n\n", api, re.DOTALL)
    assert re.split(r",\s+", options) == [field.name for field in fields(Options)]


@pytest.mark.parametrize("name", celery_rabbit_delay.__all__)
def test_public_names_say_what_they_are(name: str) -> None:
    text = getattr(celery_rabbit_delay, name).__doc__
    assert text
    assert re.match(r"[A-Z].*[.:]", text)

"""Measures the page with many waiting messages: `python -m evidence.benchmarks.page`.

It also fills in docs/contributing/web.md.

The records are written to the journal's streams directly, without the messages that they are about: the page reads
nothing else, and a million delayed messages would measure the broker. Two real tasks are among them, one of which is
cancelled and one moved, in a real browser.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import kombu
import psutil
from amqp import Message
from celery import Celery

import celery_rabbit_delay
from celery_rabbit_delay import Options, operate, upstream
from celery_rabbit_delay.amqp.confirms import ConfirmedChannel, Outgoing
from celery_rabbit_delay.core import headers, journal, streams
from tests.kit import browser, meter, page
from tests.kit.commands import PROGRAM
from tests.kit.node import Node
from tests.kit.site import Site, serving
from tests.kit.wait import wait_until

RESULTS = Path(__file__).with_name("page.json")
DOCUMENT = Path(__file__).parents[2] / "docs" / "contributing" / "web.md"

_KINDS = [f"shop.{what}_{whom}" for what in ("send", "make", "charge", "remind") for whom in ("mail", "order", "stock")]
_QUEUES = ["celery", "mail", "reports", "slow"]
_PACK = 100


#: What is the same in all records, and as long as what takes its place in each.
_ID, _ARGUMENT, _CUSTOMER, _NUMBER = "00000000-0000-4000-8000-000000000000", "777777", "c-88888", 1 << 51
_DUE = 1_999_999_999_500


def records(amount: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield messages of the journal, about tasks due in 1 to 50 days, each with the routing key of its stream."""
    dice = random.Random(seed)
    cascade = Options().cascade
    templates = [_template(kind, queue, dice.randrange(20)) for kind in _KINDS for queue in _QUEUES for _ in range(9)]
    for _ in range(amount // _PACK):
        moment = time.time_ns() // 1_000_000
        delay = dice.uniform(1, 50) * 86_400
        due = moment + int(delay * 1000)
        pack = [_record(dice, due + dice.randrange(3_600_000), dice.choice(templates)) for _ in range(_PACK)]
        yield streams.journal_for(cascade, delay).routing_key, journal.pack_records(pack, moment)


def _template(kind: str, queue: str, number: int) -> journal.Record:
    eta = headers.moment(_DUE)
    of_task: dict[str, Any] = {
        "lang": "py",
        "task": kind,
        "id": _ID,
        "eta": eta.isoformat(),
        "expires": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": _ID,
        "parent_id": None,
        "argsrepr": f"({_ARGUMENT},)",
        "kwargsrepr": f"{{'customer': '{_CUSTOMER}', 'template': 'welcome-{number}'}}",
        "origin": "gen1@host",
        "ignore_result": False,
        "stamps": {},
    }
    message = Message(
        b"[[777777], {}, {}]",
        application_headers=headers.wrap(of_task, Options().cascade.root, "", queue, eta, _NUMBER),
        content_type="application/json",
        content_encoding="utf-8",
        correlation_id=_ID,
        delivery_mode=2,
    )
    return journal.Record(_DUE, _NUMBER, _ID, "", *upstream.serialize(message))


def _record(dice: random.Random, due: int, template: journal.Record) -> journal.Record:
    """Return a copy of a template with an id, a due time and arguments of its own."""
    due = due // 1000 * 1000 + 500
    id_ = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    number = dice.getrandbits(streams.NUMBER_BITS - 1) | _NUMBER
    properties = template.properties
    for old, new in (
        (_ID.encode(), id_.encode()),
        (headers.moment(_DUE).isoformat().encode(), headers.moment(due).isoformat().encode()),
        (_DUE.to_bytes(8, "big"), due.to_bytes(8, "big")),
        (_NUMBER.to_bytes(8, "big"), number.to_bytes(8, "big")),
        (_ARGUMENT.encode(), b"%06d" % dice.randrange(10**6)),
        (_CUSTOMER.encode(), b"c-%05d" % dice.randrange(50_000)),
    ):
        properties = properties.replace(old, new)
    return journal.Record(due, number, id_, "", properties, template.body)


def write(url: str, amount: int, seed: int) -> None:
    with kombu.Connection(url.replace("amqp://", "rabbit-delay://")) as connection:
        channel = ConfirmedChannel(connection.connection)
        ingest = Options().cascade.ingest
        for number, (key, body) in enumerate(records(amount, seed)):
            sent = channel.send(Outgoing(Message(body, delivery_mode=2), ingest, key))
            if number % 50 == 0:
                channel.wait(sent)
        while channel.unanswered:
            connection.drain_events()


class Memory:
    """The most that a process has held, as far as it was looked at."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.most = 0

    def now(self) -> float:
        """Return the resident megabytes."""
        resident: float = self._process.memory_info().rss / 1e6
        self.most = max(self.most, int(resident))
        return resident


def ready(site: Site, memory: Memory) -> float:
    """Return the seconds until the index has all of the journal."""
    began = time.monotonic()
    while 'class="pill good">live' not in site.ask("/").text:
        memory.now()
        time.sleep(0.5)
    return time.monotonic() - began


def median(site: Site, path: str, repeats: int = 9) -> float:
    """Return the milliseconds of a page. Some of its numbers are asked for anew in between, as for a viewer."""
    taken = []
    for _ in range(repeats):
        began = time.monotonic()
        assert site.ask(path).status == 200
        taken.append((time.monotonic() - began) * 1000)
        time.sleep(0.3)
    return statistics.median(taken)


def in_the_browser(site: Site, directory: Path, cancelled: str, moved: str) -> dict[str, float]:
    """Return the seconds from a click to what it has done, as somebody sees it."""
    seconds = {}
    with browser.browsing(directory) as chrome:

        def shows(what: str) -> None:
            wait_until(lambda: what in chrome.execute_script("return document.body.innerText"), what)

        chrome.get(site.url)
        shows("Next ›")
        for name, id_, button, answer in (
            ("cancel", cancelled, "/cancel", "1 cancelled"),
            ("move", moved, "/reschedule", "1 moved to"),
        ):
            chrome.get(f"{site.url}/?q={id_}")
            shows("1 found")
            chrome.find_element("css selector", "#rows tbody input").click()
            chrome.execute_script("document.querySelector('#acts [name=delay]').value = 'in 1 week'")
            began = time.monotonic()
            chrome.find_element("css selector", f'#acts button[formaction="{button}"]').click()
            if name == "cancel":
                chrome.switch_to.alert.accept()
            shows(answer)
            seconds[name] = time.monotonic() - began
        chrome.get(f"{site.url}/?q={cancelled}")
        shows("0 found")
        chrome.get(f"{site.url}/?q={moved}")
        shows("in 6 d 23 h")
    return seconds


def measure(amount: int, directory: Path) -> dict[str, Any]:
    with Node(plugins=("rabbitmq_management",)) as node:
        app = Celery("shop", broker=node.url(), set_as_current=False)
        celery_rabbit_delay.install(app, journal=1)
        with app.connection_for_write() as connection:
            kombu.Queue("celery")(connection.default_channel).declare()
            operate.setup(connection, operate.cascades(connection, False), [])
        mine = [app.send_task("shop.mine", (name,), countdown=3 * 86_400).id for name in ("cancelled", "moved")]
        print("writing", flush=True)
        began = time.monotonic()
        with ProcessPoolExecutor(2) as pool:
            for done in [pool.submit(write, node.url(), amount // 2, seed) for seed in (1, 2)]:
                done.result()
        print(f"{amount:,} records in {time.monotonic() - began:.0f} s", flush=True)
        index = directory / "index.sqlite"
        command = [str(PROGRAM), "--broker", node.url(), "--queue", "celery", "web", "--index", str(index)]
        results: dict[str, Any] = {"about": meter.about(node), "amount": amount}
        with serving(command, directory) as site:
            memory = Memory(site.process.pid)
            results["seconds to index"] = ready(site, memory)
            results["seconds of CPU to index"] = meter.cpu(site.process.pid)
            print("indexed", results["seconds to index"], flush=True)
            wait_until(lambda: f"{amount + 2:,} waiting" in site.ask("/").text, "all are counted")
            used = meter.cpu(site.process.pid)
            time.sleep(20)
            results["percent of a CPU, idle"] = (meter.cpu(site.process.pid) - used) / 20 * 100
            searches = {
                "the first page": "/",
                "an id": f"/?q={mine[0]}",
                "an argument of one task": "/?q=%27moved%27",
                "an argument that twenty have": "/?q=c-04242",
                "an argument that many have": "/?q=welcome-7%27",
                "a text that no task has": "/?q=no+such+thing",
                "a task": "/?task=shop.send_mail",
                "a queue, and an argument": "/?queue=mail&q=c-0777",
                "the plot of a month": "/?range=month",
            }
            results["milliseconds"] = {name: median(site, path) for name, path in searches.items()}
            memory.now()
            results["browser"] = in_the_browser(site, directory, *mine)
            results["megabytes"], results["most megabytes"] = memory.now(), memory.most
            site.stop()
        results["megabytes on disk"] = sum(file.stat().st_size for file in directory.glob("index.sqlite*")) / 1e6
        with serving(command, directory) as site:
            results["seconds to go on"] = ready(site, Memory(site.process.pid))
        app.close()
        return results


def table() -> str:
    results = json.loads(RESULTS.read_text())
    lines = [
        [
            "indexed for the first time",
            f"{results['seconds to index']:.0f} s, {results['seconds of CPU to index']:.0f} s of CPU",
        ],
        ["ready after a restart", f"{results['seconds to go on']:.1f} s"],
        ["memory of the server, at most", f"{results['most megabytes']} MB"],
        ["the index on disk", f"{results['megabytes on disk']:.0f} MB"],
        ["CPU while nothing happens", f"{results['percent of a CPU, idle']:.1f} % of one"],
        *([f"the page: {name}", f"{taken:.0f} ms"] for name, taken in results["milliseconds"].items()),
        ["cancel one, from the click to the answer", f"{results['browser']['cancel']:.1f} s"],
        ["move one, from the click to the answer", f"{results['browser']['move']:.1f} s"],
    ]
    return (
        f"{page.machine('Measured', [results['about']])} The machine was busy with other work as well.\n\n"
        + page.markdown([f"{results['amount']:,} waiting", ""], lines)
    )


def draw() -> None:
    DOCUMENT.write_text(page.fill(DOCUMENT.read_text(), {"page": table}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--amount", type=int, default=1_000_000)
    parser.add_argument("--draw", action="store_true", help="Only fill in docs/contributing/web.md again.")
    arguments = parser.parse_args()
    if not arguments.draw:
        with tempfile.TemporaryDirectory(prefix="celery-rabbit-delay-page-") as directory:
            found = measure(arguments.amount, Path(directory))
        RESULTS.write_text(json.dumps(found, indent=2) + "\n")
        print(json.dumps(found, indent=2))
    draw()

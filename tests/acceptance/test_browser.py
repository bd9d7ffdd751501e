"""The page as somebody uses it: in a real browser, on a real node, with a real worker at the end of it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import celery_rabbit_delay
from celery_rabbit_delay import periodic
from tests.kit import browser
from tests.kit.beats import entry
from tests.kit.broker import DEFAULTS, QUICK
from tests.kit.site import Site, serving
from tests.kit.wait import wait_until

from .conftest import MakeShop, Shop, StartBeat

RECORDED = {**QUICK, "max_delay": 20 * 86_400, "journal": 0}
MARKUP = "<img src=x onerror=\"document.title='broken into'\"><script>document.title='broken into'</script>"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module", autouse=True)
def needs_a_browser() -> None:
    try:
        browser.find()
    except browser.NoBrowser as exc:
        if browser.must_exist():
            pytest.fail(str(exc))
        pytest.skip(str(exc))


@pytest.fixture
def chrome(tmp_path: Path) -> Iterator[Any]:
    with browser.browsing(tmp_path) as chrome:
        yield chrome
        # Neither the policy of the page nor anything else was offended.
        assert [entry["message"] for entry in chrome.get_log("browser")] == []


@contextmanager
def looking(chrome: Any, directory: Path, *arguments: str, **environment: str) -> Iterator[Site]:
    """Serve the page to a browser, which stops asking for what is new before the page is gone.

    The queues of these tasks are chosen where they are sent.
    """
    command = ["celery", "-A", "tests.acceptance.shop", "delay", "web", "--any-queue", *arguments]
    with serving(command, directory, **environment) as site:
        yield site
        chrome.get("about:blank")


def text(chrome: Any, css: str = "body") -> str:
    """Return the visible text, in one call, because the page replaces its parts all the time."""
    return str(chrome.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css))


def amount(chrome: Any, css: str) -> int:
    return int(chrome.execute_script("return document.querySelectorAll(arguments[0]).length", css))


def click(chrome: Any, css: str) -> None:
    wait_until(lambda: amount(chrome, css), f"there is {css}")
    event = "new MouseEvent('click', {bubbles: true, cancelable: true})"  # a link in SVG has no click()
    chrome.execute_script(f"document.querySelector(arguments[0]).dispatchEvent({event})", css)


def shows(chrome: Any, what: str, css: str = "body") -> None:
    wait_until(lambda: what in text(chrome, css), f"{css} shows {what!r}", 30)


def lacks(chrome: Any, what: str, css: str = "body") -> None:
    wait_until(lambda: what not in text(chrome, css), f"{css} no longer shows {what!r}", 30)


def search(chrome: Any, words: str) -> None:
    box = chrome.find_element("css selector", "#q")
    box.clear()
    box.send_keys(words + "\n")
    wait_until(lambda: parse_qs(urlsplit(chrome.current_url).query).get("q") == [words], "it searches")


def press(chrome: Any, *keys: str) -> None:
    """Press keys on the element with the focus, which the page may have replaced."""
    from selenium.webdriver import ActionChains

    ActionChains(chrome).send_keys(*keys).perform()


def confirm(chrome: Any, yes: bool = True) -> None:
    def alert() -> Any:
        from selenium.common.exceptions import NoAlertPresentException

        try:
            return chrome.switch_to.alert
        except NoAlertPresentException:
            return None

    question = wait_until(alert, "it asks whether that is meant")
    question.accept() if yes else question.dismiss()


def fill(shop: Shop, many: int, soonest: float = 1800) -> None:
    """Publish some tasks of a shop, due after `soonest` seconds or later."""
    kinds = {
        "shop.ask_for_review": ("mail", 9),
        "shop.send_reminder": ("mail", 6),
        "shop.expire_cart": ("celery", 7),
        "shop.charge_card": ("payments", 4),
        "shop.sync_stock": ("celery", 2),
        "shop.make_report": ("reports", 1),
    }
    dice = random.Random(7)
    shop.vhost.declare(*{queue for queue, _ in kinds.values()})
    with celery_rabbit_delay.batch(shop.app):
        for _ in range(many):
            [name] = dice.choices(list(kinds), [often for _, often in kinds.values()])
            delay = dice.choice([dice.expovariate(1 / 1500), dice.gauss(2400, 400), dice.uniform(0, 10 * 86_400)])
            customer = {"customer": f"c-{dice.randrange(5000)}", "template": dice.choice(["late", "receipt", "thanks"])}
            shop.app.send_task(
                name,
                (dice.randrange(10_000, 99_999),),
                customer,
                queue=kinds[name][0],
                countdown=delay if delay > soonest else dice.uniform(soonest, 3600),
                retries=dice.choice([0, 0, 0, 0, 0, 1]),
            )


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    return make_shop(RECORDED)


def test_a_schedule_is_looked_through_and_changed(shop: Shop, chrome: Any, tmp_path: Path) -> None:
    fill(shop, 300)
    eta = datetime.now(timezone.utc) + timedelta(seconds=1500)
    ids = {name: shop.send("note", name, eta=eta) for name in ("cancelled", "moved", "alone", "along", "run")}
    hostile = shop.send("note", MARKUP, "\u202e\x1b[2J", "x" * 5000, eta=eta)
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        shows(chrome, "306", "#tiles")
        # The plot: drawn by the server, a bar leads to what is due then.
        wait_until(lambda: amount(chrome, "#plot rect.part") > 20, "the plot has bars")
        click(chrome, '.tabs a[href*="range=month"]')
        shows(chrome, "306 of 306 waiting", "#within")
        chrome.get(f"{site.url}/?range=hour")
        first = wait_until(lambda: text(chrome, "#plot a title") or True, "there is a bar")
        assert first
        click(chrome, "#plot a")
        wait_until(lambda: "since=" in chrome.current_url, "a bar filters")
        assert 0 < amount(chrome, "#rows tbody tr") < 50
        # Times are in the viewer's zone.
        shows(chrome, "Europe/Berlin", "#rows")
        chrome.get(f"{site.url}/?range=month&q=shop+reports")
        wait_until(lambda: text(chrome, "#found").split()[0] == text(chrome, "#within").split()[0], "the plot follows")
        assert "of 306 waiting, filtered" in text(chrome, "#within")
        search(chrome, "make_report")
        assert "shop.make_report" in text(chrome, "#rows")
        assert "shop.sync_stock" not in text(chrome, "#rows")
        # Markup in arguments is text.
        search(chrome, "onerror")
        shows(chrome, "<img src=x onerror=", "#rows")
        click(chrome, "#rows a.open")
        shows(chrome, "<script>", ".task")
        assert "\\u202e" in text(chrome, ".task")
        assert amount(chrome, "main img, main script") == 0
        assert chrome.title.startswith("tests.acceptance.shop.note")
        assert hostile in text(chrome, ".task")
        # Cancel, from the task's page, when it was confirmed.
        chrome.get(f"{site.url}/?q={ids['cancelled']}")
        click(chrome, "#rows a.open")
        click(chrome, "button.danger")
        confirm(chrome, yes=False)
        click(chrome, "button.danger")
        confirm(chrome)
        shows(chrome, "1 cancelled", ".messages")
        # A selection.
        chrome.get(f"{site.url}/?q=%27alon")
        wait_until(lambda: amount(chrome, "#rows tbody tr") == 2, "two are found")
        click(chrome, "#all")
        shows(chrome, "2 selected", "#acts")
        chrome.execute_script("document.querySelector('#acts [name=delay]').value = 'in 1 hour'")
        click(chrome, '#acts button[formaction="/reschedule"]')
        shows(chrome, "2 moved to", ".messages")
        # Live: what is sent now comes into sight without loading the page, and what is selected stays so.
        chrome.get(f"{site.url}/?q=tests.acceptance.shop.note")
        click(chrome, "#rows tbody input")
        chrome.execute_script("window.same = true")
        shop.send("note", "sent meanwhile", countdown=300)
        shows(chrome, "sent meanwhile", "#rows")
        assert chrome.execute_script("return window.same")
        shows(chrome, "1 selected", "#acts")
        # The keyboard: search, rows, select, open.
        body = chrome.find_element("css selector", "body")
        body.send_keys("/")
        assert chrome.switch_to.active_element.get_attribute("id") == "q"
        chrome.switch_to.active_element.send_keys("\ue00c")  # Escape
        search(chrome, "'run'")
        wait_until(lambda: amount(chrome, "#rows tbody tr") == 1, "one is found")
        chrome.execute_script("document.activeElement.blur()")
        body = chrome.find_element("css selector", "body")
        press(chrome, "j", "x")
        shows(chrome, "1 selected", "#acts")
        # Run now, for a worker.
        shop.worker()
        click(chrome, '#acts button[formaction="/run-now"]')
        shows(chrome, "1 due at once", ".messages")
        shop.wait_for(1, "run")
        remaining = {row.id for row in celery_rabbit_delay.scheduled(shop.app)}
        assert ids["cancelled"] not in remaining
        assert {ids["moved"], ids["alone"], ids["along"]} < remaining


def test_enter_in_a_due_time_means_that_time_and_the_place_and_the_focus_stay(
    shop: Shop, chrome: Any, tmp_path: Path
) -> None:
    """With the keyboard alone. There is no worker: what was due at once would be in the queue."""
    now = datetime.now(timezone(timedelta(hours=1)))
    ids = [shop.send("note", name, countdown=1000 + 10 * at) for at, name in enumerate("abcdef")]
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        wait_until(lambda: amount(chrome, "#rows tbody tr") == 6, "all are shown")
        chrome.execute_script("window.same = true")
        # No bar of the plot is a tab stop before the search.
        stops = []
        while chrome.switch_to.active_element.get_attribute("id") != "q":
            press(chrome, "\ue004")  # Tab
            stops.append(chrome.switch_to.active_element.get_attribute("id") or "")
        assert not [stop for stop in stops if stop.startswith("bar-")]
        press(chrome, "\ue00c")  # Escape
        press(chrome, "j", "j", "j", "x")
        shows(chrome, "1 selected", "#acts")
        # Without a due time, Enter says so, and moves nothing.
        eta = chrome.find_element("css selector", "#acts [name=eta]")
        eta.send_keys("\ue007")
        shows(chrome, "choose a delay", ".messages")
        assert [row.id for row in celery_rabbit_delay.scheduled(shop.app)] == ids
        # With one, it means that.
        due = now + timedelta(days=2)
        eta.send_keys(due.strftime("%m%d%Y"), "\ue004", due.strftime("%I%M%p"), "\ue007")
        shows(chrome, "1 moved to", ".messages")
        shows(chrome, "in 1 d 23 h", "#rows tbody tr:last-child")
        assert "due at once" not in text(chrome, ".messages")
        # The page was not loaded again, and the focus is on the row that took the place of the third.
        assert chrome.execute_script("return window.same")
        at = "[...document.querySelectorAll('#rows tbody tr')].findIndex(row => row.contains(document.activeElement))"
        wait_until(lambda: chrome.execute_script(f"return {at}") == 2, "the focus is where it was")
        # Run now asks when several are selected.
        press(chrome, "x", "j", "x")
        shows(chrome, "2 selected", "#acts")
        chrome.find_element("css selector", '#acts button[formaction="/run-now"]').send_keys("\ue007")
        confirm(chrome, yes=False)
        rows = [*celery_rabbit_delay.scheduled(shop.app)]
        assert [row.id for row in rows] == [*ids[:2], *ids[3:], ids[2]]
        assert abs((rows[-1].due - due).total_seconds()) < 60
        chrome.find_element("css selector", '#acts button[formaction="/run-now"]').send_keys("\ue007")
        confirm(chrome)
        shows(chrome, "2 due at once", ".messages")
        # The latest first, over all pages.
        click(chrome, "th.due a")
        wait_until(lambda: "order=latest" in chrome.current_url, "it is ordered")
        shows(chrome, "in 1 d 23 h", "#rows tbody tr:first-child")
        # An id is copied.
        press(chrome, "j", "c")
        box = chrome.find_element("css selector", "#q")
        box.send_keys("\ue009v")  # Control-V
        assert box.get_property("value") == ids[2]


def test_what_is_new_comes_in_place_and_never_under_a_selection_or_a_pointer(
    shop: Shop, chrome: Any, tmp_path: Path
) -> None:
    from selenium.webdriver import ActionChains

    shop.send("note", "first", countdown=1500)
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        shows(chrome, "'first'", "#rows")
        shows(chrome, "live", "#live")
        # What stays is the same row, with what is selected in it.
        chrome.execute_script("window.row = document.querySelector('#rows tbody tr')")
        shop.send("note", "second", countdown=1000)
        shows(chrome, "'second'", "#rows")
        assert chrome.execute_script("return row.isConnected && row.rowIndex") == 2
        code = "document.querySelector('#rows tbody tr:last-child code')"
        chrome.execute_script(f"getSelection().selectAllChildren({code})")
        shows(chrome, "paused: selection", "#live")
        shop.send("note", "third", countdown=900)
        wait_until(lambda: "third" in site.ask("/").text, "the page has it")
        refreshed = "performance.getEntriesByType('resource').length"
        before = chrome.execute_script(f"return {refreshed}")
        assert "first" in chrome.execute_script("return String(getSelection())")
        assert "'third'" not in text(chrome, "#rows")
        chrome.execute_script("getSelection().removeAllRanges()")
        shows(chrome, "'third'", "#rows")
        assert chrome.execute_script(f"return {refreshed}") <= before + 2  # none was asked for meanwhile
        # What moves keeps the focus.
        queues = "[...document.querySelectorAll('#filters a[href*=\"queue=\"]')]"
        chrome.execute_script(f"{queues}[0].focus(); window.link = document.activeElement")
        shop.vhost.declare("other")
        for number in range(4):
            shop.send("note", number, queue="other", countdown=3000)
        wait_until(lambda: chrome.execute_script(f"return {queues}[1] === link"), "another queue has most")
        assert chrome.execute_script("return document.activeElement === link")
        # Rows and filters stay under the pointer.
        for place in ("#rows tbody tr", "#filters [data-key=other]"):
            ActionChains(chrome).move_to_element(chrome.find_element("css selector", place)).perform()
            shows(chrome, "paused: pointer", "#live")
            ActionChains(chrome).move_to_element(chrome.find_element("css selector", ".brand")).perform()
            shows(chrome, "live", "#live")
        # The switch, with the keyboard; the next page keeps it.
        chrome.execute_script("document.getElementById('live').focus()")
        press(chrome, "\ue007")
        assert text(chrome, "#live") == "paused"
        chrome.get(f"{site.url}/?range=day")
        shows(chrome, "paused", "#live")
        chrome.execute_script("document.getElementById('live').focus()")
        press(chrome, " ")
        shows(chrome, "live", "#live")
        # So is a server that is away; and work in progress, here for ever.
        chrome.execute_script("window.fetch = () => Promise.reject(new TypeError('it is away'))")
        click(chrome, "#rows tbody tr input")
        click(chrome, '#acts button[formaction="/run-now"]')
        shows(chrome, "it is unknown whether that was done", ".messages")
        shows(chrome, "no answer", "#live")
        chrome.execute_script("window.fetch = () => new Promise(() => {})")
        click(chrome, '#acts button[formaction="/run-now"]')
        wait_until(lambda: amount(chrome, ".busy [aria-busy=true]") == 1, "its button says so")


@pytest.mark.parametrize("width", [390, 761, 768, 1020, 1024, 1280])
def test_every_width_has_room_for_tasks_and_arguments(shop: Shop, chrome: Any, tmp_path: Path, width: int) -> None:
    fill(shop, 60)
    with looking(chrome, tmp_path, **shop.environment) as site:
        for scheme in ("light", "dark"):
            picture(chrome, site, width, 900, scheme)
        for column in ("task", "arguments"):
            wide = chrome.execute_script(f"return document.querySelector('#rows td.{column}').clientWidth")
            assert wide >= 90, column
        sizes = """return [...document.querySelectorAll('a, button, input, select, summary')]
            .filter((one) => one.checkVisibility({visibilityProperty: true}) && !one.closest('svg, .skip'))
            .map((one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()])
            .filter(([_, {width, height}]) => Math.min(width, height) < 24).map(([html]) => html)"""
        if width == 390:  # a finger needs more than a pointer
            assert chrome.execute_script(sizes) == []
        click(chrome, "#all")
        shows(chrome, "50 selected", "#acts")
        assert chrome.execute_script("return document.querySelector('th.due a').checkVisibility()")
        click(chrome, "th.due a")
        wait_until(lambda: "order=latest" in chrome.current_url, "it is ordered")


def is_no_wider_than(chrome: Any, width: int) -> bool:
    """Return whether nothing of the page is cut off."""
    return bool(chrome.execute_script("return document.documentElement.scrollWidth <= arguments[0]", width))


def picture(chrome: Any, site: Site, width: int, height: int, scheme: str, path: str = "/") -> bytes:
    chrome.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    chrome.get(site.url + path)
    wait_until(lambda: amount(chrome, "#rows tbody tr, .levels .level") >= 4, "there is something to see")
    name = "rabbitmq.shop.example:5672/shop celery-rabbit-delay.v3.125ms"
    chrome.execute_script("document.querySelector('.brand small').textContent = arguments[0]", name)
    taken: bytes = chrome.get_screenshot_as_png()
    assert taken.startswith(b"\x89PNG")
    assert is_no_wider_than(chrome, width)
    return taken


def top(chrome: Any) -> float:
    """Return the distance of the first task from the top of the page, in pixels."""
    return float(chrome.execute_script("return document.querySelector('#rows tbody tr').getBoundingClientRect().top"))


def test_the_page_fits_a_phone_and_a_dark_screen_and_draws_the_picture_of_the_docs(
    make_shop: MakeShop, chrome: Any, tmp_path: Path
) -> None:
    """`make screenshot` names the file; otherwise they are left with the other files of the test."""
    shop = make_shop({**DEFAULTS, "schedule": True, "journal": 60})
    fill(shop, 1500, 65)
    target = Path(os.environ.get("SCREENSHOT") or tmp_path / "web.png")
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        shows(chrome, " of 1,", "#within")
        wait_until(lambda: amount(chrome, "#plot .part") > 60, "the plot has bars")
        shows(chrome, "Europe/Berlin", "#rows")
        picture(chrome, site, 1280, 900, "light")
        assert top(chrome) < 400
        for row in (2, 4):
            click(chrome, f"#rows tbody tr:nth-child({row}) input")
        target.write_bytes(chrome.get_screenshot_as_png())
        grounds = []
        for number, (width, height, scheme, path) in enumerate(
            [(390, 844, "light", "/"), (390, 844, "dark", "/?range=day"), (1280, 900, "dark", "/health")]
        ):
            (tmp_path / f"{number}.png").write_bytes(picture(chrome, site, width, height, scheme, path))
            grounds.append(chrome.execute_script("return getComputedStyle(document.body).backgroundColor"))
            if path != "/health":
                assert top(chrome) < 560
        assert grounds[0] != grounds[1] == grounds[2]


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 900, "light"), (390, 844, "dark")])
def test_all_that_match_are_cancelled_at_once_and_then_listed(
    shop: Shop, chrome: Any, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    fill(shop, 400)
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        shows(chrome, "400 found", "#found")
        picture(chrome, site, width, height, scheme, "/?task=shop.expire_cart&range=week")
        wait_until(lambda: amount(chrome, "#rows tbody tr") == 50, "a page of them is there")
        found = int(text(chrome, "#found").split()[0].replace(",", ""))
        assert 50 < found < 200
        click(chrome, "#rows tbody tr input")
        shows(chrome, "1 selected", "#acts")
        click(chrome, "[name=matching]")
        shows(chrome, f"{found} selected", "#acts")
        click(chrome, "#acts .danger")
        confirm(chrome)
        shows(chrome, f"{found} cancelled", ".messages")
        shows(chrome, "No waiting task matches", "#rows")
        click(chrome, "#tiles a[href*='state=cancelled']")
        wait_until(lambda: amount(chrome, "#rows tbody tr") == 50, "the cancelled ones are listed")
        assert amount(chrome, "#rows tbody input") == 50
        shows(chrome, f"{found} found", "#found")
        picture(chrome, site, width, height, scheme, "/health")
        chrome.get(f"{site.url}/?state=cancelled")
        click(chrome, "#rows tbody tr input")
        shows(chrome, "1 selected", "#acts")
        click(chrome, '#acts [formaction="/restore"]')
        shows(chrome, "1 restored", ".messages")
        shows(chrome, f"{found - 1} found", "#found")
        click(chrome, "#all")
        click(chrome, "[name=matching]")
        click(chrome, '#acts [formaction="/restore"]')
        shows(chrome, f"{found - 1} restored", ".messages")
        shows(chrome, "No cancelled task matches", "#rows")


def test_a_queue_is_paused_and_resumed(shop: Shop, chrome: Any, tmp_path: Path) -> None:
    """A paused queue is seen also without waiting tasks; who only looks cannot resume it."""
    shop.send("note", "waits", countdown=300)
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.get(site.url)
        celery_rabbit_delay.pause(shop.app, "reports", any_queue=True)
        shows(chrome, "paused", "#filters")
        assert text(chrome, "#filters [data-key=reports]").split() == ["reports", "0", "paused", "resume"]
        click(chrome, '#filters button[value="celery"]')
        confirm(chrome, yes=False)
        chrome.execute_script("document.querySelector('[form=pausing][name=until]').value = '2030-01-31T12:00'")
        click(chrome, '#filters button[value="celery"]')
        confirm(chrome)
        shows(chrome, "1 paused", ".messages")
        shows(chrome, "paused until 31 Jan 12:00", "#filters [data-key=celery]")
        end = datetime(2030, 1, 31, 11, tzinfo=timezone.utc)
        assert celery_rabbit_delay.paused(shop.app, any_queue=True) == {"celery": end, "reports": None}
        click(chrome, '#filters [data-key=reports] button[formaction="/resume"]')
        shows(chrome, "1 resumed", ".messages")
        lacks(chrome, "reports", "#filters")
        assert set(celery_rabbit_delay.paused(shop.app, any_queue=True)) == {"celery"}
    with looking(chrome, tmp_path, "--read-only", **shop.environment) as site:
        chrome.get(site.url)
        shows(chrome, "paused", "#filters")
        assert amount(chrome, "#filters button") == 0


def test_a_periodic_entry_is_written_on_a_phone_with_the_keyboard(
    make_shop: MakeShop, start_beat: StartBeat, chrome: Any, tmp_path: Path
) -> None:
    from selenium.webdriver import Keys

    def put(name: str, value: str) -> None:
        field = chrome.find_element("css selector", f".entry [name={name}]")
        field.clear()
        field.send_keys(value + Keys.ENTER)

    def fits() -> bool:
        return is_no_wider_than(chrome, 390)

    hourly = {f"hourly {number}": entry("tests.acceptance.shop.note", 3600, "hourly") for number in range(120)}
    shop = make_shop(RECORDED, beat_schedule=hourly)
    start_beat(shop).wait_until_active()
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    with looking(chrome, tmp_path, **shop.environment) as site:
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        chrome.get(f"{site.url}/health")
        shows(chrome, "every 3600 s", "#beat")
        shows(chrome, "100 of 120, the next first", "#beat")
        assert fits()
        # An entry keeps the focus where another one is the next.
        has_moved = chrome.execute_script(
            """const rows = document.querySelectorAll("#beat tbody tr"), button = rows[1].querySelector("button");
            button.focus();
            const fresh = new DOMParser().parseFromString(document.documentElement.outerHTML, "text/html");
            fresh.querySelector("#beat tbody").prepend(fresh.querySelectorAll("#beat tbody tr")[1]);
            replace(fresh);
            return rows[1] === document.querySelector("#beat tbody tr") && document.activeElement === button"""
        )
        assert has_moved
        click(chrome, "#beat .head a")
        shows(chrome, "Add a periodic entry")
        assert fits()
        chrome.find_element("css selector", ".entry [name=name]").click()
        press(chrome, "report", Keys.TAB, "tests.acceptance.shop.note", Keys.TAB, "daily", Keys.TAB, '["r"', Keys.ENTER)
        shows(chrome, "cannot read positional arguments", ".entry")
        put("args", '["r"]')
        shows(chrome, "cannot read the schedule 'daily'", ".entry")
        assert fits()
        assert chrome.execute_script("return document.querySelector('.entry [name=disabled]').clientWidth") > 20
        chrome.find_element("css selector", ".entry [name=disabled]").send_keys(Keys.SPACE)
        put("schedule", "crontab 30 4 * * *")
        shows(chrome, "1 periodic entry written: report", ".messages")
        chrome.find_element("css selector", "#beat [name=entry]").send_keys("report", Keys.ENTER)
        shows(chrome, "crontab 30 4 * * *", "#beat")
        shows(chrome, "disabled", "#beat tbody")
        shows(chrome, "1 of 1 found", "#beat")
        click(chrome, '#beat a[href*="name=report"]')
        shows(chrome, "Change a periodic entry")
        periodic.change(shop.app, "report", schedule=60)
        put("schedule", "every 90 s")
        shows(chrome, "was changed meanwhile", ".entry")
        click(chrome, ".entry .message a")
        lacks(chrome, "was changed meanwhile")
        put("schedule", "every 90 s")
        shows(chrome, "1 periodic entry written", ".messages")
    entries = periodic.entries(shop.app)
    written = {one.entry: one.definition for one in entries if one.is_written and not one.is_enabled}
    sent = {"task": "tests.acceptance.shop.note", "args": ["r"], "kwargs": {}, "options": {}}
    assert written == {"report": {**sent, "schedule": "every 90 s"}}

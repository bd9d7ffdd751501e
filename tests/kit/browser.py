"""A real browser: headless Chromium, driven by its own driver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOL = Path(__file__).parents[2] / "tools" / "get-chromium"


class NoBrowser(RuntimeError):
    pass


def find() -> tuple[str, str]:
    """Return the paths of a browser and its driver, installed if need be. Raises `NoBrowser`."""
    done = subprocess.run([str(TOOL)], capture_output=True, text=True)
    if done.returncode:
        raise NoBrowser(done.stderr.strip())
    browser, driver = done.stdout.splitlines()
    return browser, driver


def must_exist() -> bool:
    """Return whether to fail without a browser: where CI checks what is sent in, nothing may be left out."""
    return os.environ.get("CI", "").lower() in ("1", "true")


@contextmanager
def browsing(directory: Path, width: int = 1280, height: int = 1000, zone: str = "Europe/Berlin") -> Iterator[Any]:
    """Yield a browser with a profile of its own in a directory, which looks for nothing on the network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    browser, driver = find()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in (
        "--headless=new",
        "--no-sandbox",  # needs user namespaces, which root in a container may lack
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        f"--user-data-dir={directory / 'profile'}",
        f"--window-size={width},{height}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        chrome.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})
        yield chrome
    finally:
        chrome.quit()

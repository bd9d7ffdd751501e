"""The settings of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Setting(NamedTuple):
    """The address of the page, and its permissions."""

    host: str = "127.0.0.1"
    port: int = 5566
    names: tuple[str, ...] = ()  # additional names for the Host header
    password: str = ""  # "": no password is needed
    read_only: bool = False
    secret: str = ""  # signs the cookie; "": a random one
    links: Mapping[str, str] = {}  # pages of others about a task, by their names; in a URL, {id} stands for its id
    is_mounted: bool = False  # whether another application serves the page, and checks the login and the host name


def check_links(links: Mapping[str, str]) -> Mapping[str, str]:
    """Return links to pages about a task, if each leads to one. Raises `ValueError`."""
    for name, url in links.items():
        if not name or "{id}" not in url or not url.startswith(("https://", "http://", "/")):
            raise ValueError(f"the link {name!r} to {url!r}: use a name and a URL such as https://flower/task/{{id}}")
    return links

"""The settings of the page: its address, its password, and what it may do."""

from __future__ import annotations

from typing import NamedTuple


class Setting(NamedTuple):
    """The address of the page, and its permissions."""

    host: str = "127.0.0.1"
    port: int = 5566
    names: tuple[str, ...] = ()  # additional names for the Host header
    password: str = ""  # "": no password is needed
    read_only: bool = False
    secret: str = ""  # signs the cookie; "": a random one
    is_mounted: bool = False  # whether another application serves the page, and checks the login and the host name

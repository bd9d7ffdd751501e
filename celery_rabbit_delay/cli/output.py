"""What commands print, and how they end."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar

import click

T = TypeVar("T")

#: The exit code of a command that worked but found problems.
EXIT_PROBLEMS = 3

#: The exit code of a command that Ctrl-C has ended, as of any program: 128 and the signal's number.
EXIT_INTERRUPTED = 128 + signal.SIGINT

version_option = click.version_option(package_name="celery-rabbit-delay", prog_name="celery-rabbit-delay")


class Group(click.Group):
    """A group whose commands end with an error if their output cannot be written, and silently if a pipe is closed."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _writing():  # --help
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _writing():
            return super().invoke(ctx)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno == errno.EPIPE or not is_of_output(exc):  # Click ends silently for a closed pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try again as it ends
        raise click.ClickException(f"the output cannot be written: {exc.strerror}") from exc


def is_of_output(exc: OSError) -> bool:
    """Return whether an error was raised by what prints, and not by a connection."""
    return any(frame.f_code is click.echo.__code__ for frame, _ in traceback.walk_tb(exc.__traceback__))


@contextmanager
def until_interrupted(items: Iterable[T]) -> Iterator[tuple[Iterator[T], Callable[[], bool]]]:
    """Yield items that end, after the one in hand, once Ctrl-C was pressed; and a function that returns whether it was.

    A second Ctrl-C raises `KeyboardInterrupt`, as the first does elsewhere, wherever the block is.
    """
    pressed = False

    def press(*args: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def items_until_then() -> Iterator[T]:
        for item in items:
            yield item
            if pressed:
                return

    before = signal.signal(signal.SIGINT, press)
    try:
        yield items_until_then(), lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
        if isinstance(items, Generator):
            items.close()  # while there are connections


def is_terminal() -> bool:
    """Return whether people read the output; others get the data alone, one line each, with times in UTC."""
    return sys.stdout.isatty()


def format_time(moment: datetime) -> str:
    """Return a time, on a terminal in this machine's zone."""
    if is_terminal():
        with suppress(OverflowError):
            return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def fit(line: str) -> str:
    """Return a line of a table; on a terminal not longer than it is wide, or than 80 columns."""
    columns = max(80, shutil.get_terminal_size().columns)
    return line if not is_terminal() or len(line) <= columns else line[: columns - 1] + "…"

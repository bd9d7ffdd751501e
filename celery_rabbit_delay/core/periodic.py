"""Periodic entries that are written while beats run: what is known of them, and what an edit makes of that. Pure.

The active beat alone applies edits, one after another, and leaves the state to the next one with its runs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from .errors import EntryConflict, InvalidEntry

#: The size of a state in bytes of JSON beyond which it takes no further entry: it is stored again with each run.
MOST = 1_000_000

#: What a task is sent with, in JSON: what it is, its type, and an example.
SENT_WITH: dict[str, tuple[str, type, str]] = {
    "args": ("positional arguments", list, "[1, 2]"),
    "kwargs": ("keyword arguments", dict, '{"a": 1}'),
    "options": ("the options of apply_async", dict, '{"queue": "mail"}'),
}

T = TypeVar("T", bound=Any)


def parse_field(field: str, text: str) -> Any:
    """Return what somebody typed as a field of `SENT_WITH`. Raises `InvalidEntry`."""
    what, kind, example = SENT_WITH[field]
    with suppress(ValueError, RecursionError):
        if isinstance(parsed := json.loads(text) if text.strip() else kind(), kind):
            return parsed
    raise InvalidEntry(f"cannot read {what}: use JSON such as {example}")


class Written(NamedTuple):
    """What was written of an entry."""

    version: int  # the number of the edit
    by: str
    at: str  # in ISO 8601
    is_enabled: bool = True
    definition: dict[str, Any] | None = None  # task, schedule, args, kwargs and options; None: as in the code


#: What stands for an entry that nothing was written of.
UNWRITTEN = Written(0, "", "")


class State(NamedTuple):
    """All that was written."""

    version: int = 0  # the number of edits
    last: str = ""  # the id of the last edit
    entries: Mapping[str, Written] = {}


class Edit(NamedTuple):
    """A change of an entry, by somebody who has seen a version of it."""

    id: str
    name: str
    version: int  # 0: nothing was written of it
    by: str
    at: str
    definition: dict[str, Any] | None = None  # None: as it is
    is_enabled: bool | None = None  # None: as it is
    removes: bool = False


def apply(state: State, edit: Edit, in_code: Container[str]) -> State:
    """Return the state after an edit, once; `in_code` has the names of the entries in the code.

    Raises `EntryConflict` if another edit of the entry was first, and `InvalidEntry`.
    """
    if edit.id == state.last:  # it comes again, as the one who applied it has not answered
        return state
    name, before = edit.name, state.entries.get(edit.name, UNWRITTEN)
    if edit.version != before.version:
        what = f"was changed by {before.by} at {before.at}" if before.version else "was removed"
        raise EntryConflict(f"the entry {name!r} {what}: look at it, and try again")
    if not before.version and edit.definition is None and name not in in_code:
        raise InvalidEntry(f"there is no entry {name!r}")
    if edit.removes and before.definition is None:
        raise InvalidEntry(f"the entry {name!r} is in the code: disable it")
    is_enabled = before.is_enabled if edit.is_enabled is None else edit.is_enabled
    definition = edit.definition or before.definition
    entries, version = dict(state.entries), state.version + 1
    entries.pop(name, None)
    if not edit.removes and not (is_enabled and definition is None):
        entries[name] = Written(version, edit.by, edit.at, is_enabled, definition)
    return State(version, edit.id, entries)


def without(state: State, name: str) -> State:
    """Return the state without an entry, which has run for the only time."""
    entries = {other: entry for other, entry in state.entries.items() if other != name}
    return State(state.version + 1, state.last, entries)


def dump(state: State) -> bytes:
    """Return a state as compressed JSON. Raises `InvalidEntry` if it is too large."""
    body = json.dumps(state).encode()
    if len(body) > MOST:
        raise InvalidEntry(f"all entries that are written at run time take more than {MOST:,} bytes: remove some")
    return zlib.compress(body, 1)


def load(body: bytes) -> State:
    """Return the state that `dump` has written. Raises `ValueError` for anything else."""
    with _reading():
        version, last, entries = json.loads(zlib.decompressobj().decompress(body, MOST))
        return _checked(State(version, last, {name: _checked(Written(*one)) for name, one in entries.items()}))


def load_edit(fields: Any) -> Edit:
    """Return the edit with some fields, as JSON has them. Raises `ValueError` for anything else."""
    with _reading():
        return _checked(Edit(*fields))


_TYPES: dict[str, Any] = {
    "version": int,
    "definition": (dict, type(None)),
    "is_enabled": (bool, type(None)),
    "removes": bool,
    "entries": dict,
}


def _checked(one: T) -> T:
    for field, value in one._asdict().items():
        if not isinstance(value, _TYPES.get(field, str)):
            raise ValueError(f"{field} is {value!r}")
        if field == "at":
            datetime.fromisoformat(value)
    return one


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, RecursionError, zlib.error) as exc:
        raise ValueError(str(exc)) from exc

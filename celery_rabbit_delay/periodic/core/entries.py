"""Periodic entries that are written while beats run: what is known of them, and what an edit makes of that. Pure.

The active beat alone applies edits, one after another, and leaves the state to the next one: as a whole from time to
time, and in between the parts that change.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ...delay.core.destination import check_key
from ...delay.core.errors import InvalidDestination
from ...unreadable import reading
from .errors import EntryConflict, InvalidEntry
from .runs import Run

#: The bytes of JSON of all entries beyond which there is no room for another one: RabbitMQ 4 takes 16 MiB in a message.
MOST = 5_000_000

#: What a task is sent with, in JSON: what it is, its type, and an example.
SENT_WITH: dict[str, tuple[str, type, str]] = {
    "args": ("positional arguments", list, "[1, 2]"),
    "kwargs": ("keyword arguments", dict, '{"a": 1}'),
    "options": ("the options of apply_async", dict, '{"queue": "mail"}'),
}

T = TypeVar("T", bound=Any)


def parse_fields(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what somebody typed as fields of an entry, with those of `SENT_WITH` read. Raises `InvalidEntry`."""
    read = {name: _parsed(name, text) for name, text in typed.items() if name in SENT_WITH and text is not None}
    return {**typed, **read}


def _parsed(field: str, text: str) -> Any:
    what, kind, example = SENT_WITH[field]
    with suppress(ValueError, RecursionError):
        if isinstance(parsed := json.loads(text) if text.strip() else kind(), kind):
            return parsed
    raise InvalidEntry(f"cannot read {what}: use JSON such as {example}")


class Written(NamedTuple):
    """What was written of an entry."""

    version: int  # the number of the edit
    is_enabled: bool = True
    definition: dict[str, Any] | None = None  # task, schedule, args, kwargs and options; None: as in the code


#: What stands for an entry that nothing was written of.
UNWRITTEN = Written(0)


class State(NamedTuple):
    """All that a beat leaves to the next one, or what has changed of an entry."""

    version: int = 0  # the number of edits
    last: str = ""  # the id of the last edit
    entries: Mapping[str, Written] = {}  # what was written
    #: Also of entries in the code. What a part has a run of, but no entry, is not written any more.
    runs: Mapping[str, Run] = {}
    is_part: bool = False


class Edit(NamedTuple):
    """A change of an entry, by somebody who has seen a version of it."""

    id: str
    name: str
    version: int  # 0: nothing was written of it
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
    try:
        check_key(name, "name")
    except InvalidDestination as exc:
        raise InvalidEntry(str(exc)) from exc
    if edit.version != before.version:
        what = "was changed" if before.version else "was removed"
        raise EntryConflict(f"the entry {name!r} {what} meanwhile: look at it, and try again")
    if not before.version and edit.definition is None and name not in in_code:
        raise InvalidEntry(f"there is no entry {name!r}")
    if edit.removes and before.definition is None:
        raise InvalidEntry(f"the entry {name!r} is in the code: disable it")
    is_enabled = before.is_enabled if edit.is_enabled is None else edit.is_enabled
    definition = edit.definition or before.definition
    if edit.removes or (is_enabled and definition is None):
        others = {other: entry for other, entry in state.entries.items() if other != name}
        return State(state.version + 1, edit.id, others)
    written = Written(state.version + 1, is_enabled, definition)
    entries = {**state.entries, name: written}
    if (size := len(json.dumps(entries))) > MOST and size > len(json.dumps(state.entries)):
        raise InvalidEntry(f"all entries that are written at run time take more than {MOST:,} bytes: remove some")
    return State(written.version, edit.id, entries)


def part(state: State, name: str, run: Run) -> State:
    """Return what is new of a state if one entry has changed, or has run."""
    entries = {name: state.entries[name]} if name in state.entries else {}
    return state._replace(entries=entries, runs={name: run}, is_part=True)


def merge(states: Iterable[State]) -> State:
    """Return what was written, by several states: the last whole one, and the parts that came after it."""
    entries, last = dict[str, Written](), State()
    for last in sorted(states, key=lambda state: (state.version, state.is_part)):
        for name in list(last.runs if last.is_part else entries):
            entries.pop(name, None)
        entries.update(last.entries)
    return State(last.version, last.last, entries)


def dump(state: State) -> bytes:
    """Return a state as compressed JSON."""
    runs: Any = {name: run.dump() for name, run in state.runs.items()}
    return zlib.compress(json.dumps(state._replace(runs=runs)).encode(), 1)


@reading
def load(body: bytes) -> State:
    """Return the state that `dump` has written. Raises `Unreadable` for anything else."""
    version, last, entries, runs, is_part = json.loads(zlib.decompressobj().decompress(body, 4 * MOST))
    for name in entries:
        check_key(name, "name")
    written = {name: _checked(Written(*one)) for name, one in entries.items()}
    return _checked(State(version, last, written, {name: Run.load(*one) for name, one in runs.items()}, is_part))


@reading
def load_edit(fields: Any) -> Edit:
    """Return the edit with some fields, as JSON has them. Raises `Unreadable` for anything else."""
    return _checked(Edit(*fields))


_TYPES: dict[str, Any] = {
    "version": int,
    "definition": (dict, type(None)),
    "is_enabled": (bool, type(None)),
    "removes": bool,
    "entries": dict,
    "runs": dict,
    "is_part": bool,
}


def _checked(one: T) -> T:
    for field, value in one._asdict().items():
        if not isinstance(value, _TYPES.get(field, str)):
            raise ValueError(f"{field} is {value!r}")
    return one

"""The SQLite file of the index: its tables, connections to it, and its lock against other processes."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..core.errors import DelayError
from ..core.fates import Fate

#: The state of a message. The index has none that was moved.
WAITING, CANCELLED = 0, 1
STATES: Mapping[Fate | None, int] = {Fate.WAITS: WAITING, Fate.CANCELLED: CANCELLED}

VERSION = 5

TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS place (stream TEXT PRIMARY KEY, offset INTEGER NOT NULL, digest BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS message (
    row INTEGER PRIMARY KEY,
    number INTEGER NOT NULL UNIQUE,
    due INTEGER NOT NULL,          -- milliseconds since 1970
    state INTEGER NOT NULL,
    id TEXT NOT NULL,
    task INTEGER NOT NULL,         -- a name
    queue INTEGER NOT NULL,        -- a name
    key TEXT,
    retries INTEGER NOT NULL,
    sent TEXT,                     -- when; NULL: unknown
    marks TEXT,                    -- headers by which it may be cancelled, JSON; NULL: none
    arguments TEXT NOT NULL,       -- as they are searched
    stream INTEGER NOT NULL,       -- a name
    offset INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS message_due ON message (state, due);
CREATE INDEX IF NOT EXISTS message_id ON message (id);
CREATE INDEX IF NOT EXISTS message_key ON message (key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS message_task ON message (task, state, due);
CREATE INDEX IF NOT EXISTS message_queue ON message (queue, state, due);
CREATE INDEX IF NOT EXISTS message_marks ON message (row) WHERE marks IS NOT NULL;
CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5(
    arguments, content='message', content_rowid='row', tokenize='trigram', detail='none'
);
CREATE TRIGGER IF NOT EXISTS message_removed AFTER DELETE ON message BEGIN
    INSERT INTO search (search, rowid, arguments) VALUES ('delete', old.row, old.arguments);
END;
"""


class IndexUnusable(DelayError):
    """The file is the index of another cascade, is in use, or is not an index."""


class IndexDamaged(DelayError):
    """The file of the index is damaged. Nothing is lost with it: the next start builds it again from the journal."""


@contextmanager
def noticing_damage(path: Path) -> Iterator[None]:
    """Raise `IndexDamaged` instead of the errors with which SQLite and its driver notice damage."""
    try:
        yield
    except sqlite3.DatabaseError as exc:
        # The codes SQLITE_CORRUPT and SQLITE_NOTADB have no class of their own. All text in the index is valid.
        if type(exc) is not sqlite3.DatabaseError and "Could not decode to UTF-8" not in str(exc):
            raise
        raise IndexDamaged(f"the index {path} is damaged ({exc})") from exc


def clean(text: str) -> str:
    """Return text that SQLite can store."""
    return text.encode(errors="replace").decode()


def connect(path: Path, writable: bool = False) -> sqlite3.Connection:
    """Return a connection to an index for one thread."""
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)  # only one thread at a time writes
    try:
        db.execute("PRAGMA case_sensitive_like = OFF")
        db.execute("PRAGMA cache_size = -32000")  # 32 MB
        if writable:
            db.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
            # Syncs only at checkpoints: a crash costs the last moments at most.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA journal_size_limit = 64000000")
        else:
            db.execute("PRAGMA query_only = ON")
    except sqlite3.Error:
        db.close()
        raise
    return db


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to an index for reading. Raises `IndexDamaged`."""
    with noticing_damage(path), closing(connect(path)) as db:
        yield db


def create(path: Path) -> None:
    """Create a file that only its owner can read, unless it exists."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def delete(path: Path) -> None:
    """Delete an index that nobody has open."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def lock(path: Path) -> Any:
    """Lock the index against other processes, and let only the file's owner read it."""
    try:
        create(path)
        held = open(path.with_name(f"{path.name}.lock"), "a")  # noqa: SIM115  held until the process ends
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            held.close()
            raise IndexUnusable(f"{path} is in use by another process: name another file") from exc
    except OSError as exc:
        raise IndexUnusable(f"{path} cannot be used as an index: {exc}") from exc
    return held

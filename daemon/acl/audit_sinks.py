"""Copies of the audit log: a file with one JSON object per line, and the systemd journal.

The copies are made from the audit table, so they contain every entry, even after a crash. The last
line of the file shows where copying resumes. A failed copy is logged and retried. The table is the
authoritative record.
"""

import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from daemon.log import journal
from storage.queries import audit
from storage.records.audit import AuditEntry
from storage.records.codec import encode
from storage.store import Store

log = logging.getLogger("steward.audit")

_PAUSE = 10.0  # seconds until a failed copy is retried
_TAIL = 16 * 1024  # bytes read from the end of the file; no line is longer


class AuditSink(Protocol):
    """A target that receives copies of audit entries."""

    def position(self) -> int | None:
        """Return the number of the last copied entry, or None if the number is unknown."""
        ...

    def write(self, entries: Iterable[AuditEntry]) -> None:
        """Copy entries. Raises `OSError`."""
        ...


class FileAuditSink:
    """A file that only the daemon's user can read; it may be rotated at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def position(self) -> int | None:
        """Return the entry number in the last line; None if the file is missing or damaged."""
        try:
            with self._path.open("rb") as file:
                file.seek(-min(_TAIL, self._path.stat().st_size), os.SEEK_END)
                *_, line = file.read().splitlines()
            return msgspec.json.decode(line, type=AuditEntry).number
        except (OSError, ValueError, msgspec.MsgspecError):
            return None

    def write(self, entries: Iterable[AuditEntry]) -> None:
        """Append the entries."""
        lines = b"".join(encode(entry) + b"\n" for entry in entries)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
            file.write(lines)


class JournalAuditSink:
    """The systemd journal. Each field of an audit entry becomes a field of the journal record."""

    def __init__(self, path: Path = journal.SOCKET) -> None:
        self._path = path

    def position(self) -> int | None:
        """Return None, because this sink cannot read the journal."""
        return None

    def write(self, entries: Iterable[AuditEntry]) -> None:
        """Send the entries."""
        journal.send(self._path, map(journal_record, entries))


def journal_record(entry: AuditEntry) -> bytes:
    """Format an entry as a record of the systemd journal."""
    outcome = f"{entry.status} {entry.reason}".rstrip()
    message = f"{entry.accessor or 'an anonymous caller'}: {entry.method} {entry.path}: {outcome}"
    fields = {"MESSAGE": message, "SYSLOG_IDENTIFIER": "steward-audit", "PRIORITY": "5"}
    for name, value in msgspec.structs.asdict(entry).items():
        fields[f"STEWARD_{name.upper()}"] = str(value)
    return journal.record(fields)


async def copy_to(store: Store, sink: AuditSink) -> None:
    """Copy every entry to a sink, including future entries, until cancelled."""
    newest = store.read(audit.last)
    number = await trio.to_thread.run_sync(sink.position)
    if number is None or number > newest:
        number = newest
    while True:
        with store.watch(audit.TOPIC) as change:
            entries = store.read(partial(audit.after, number=number))
            if not entries:
                await change.wait()
                continue
        if not await _copied(sink, entries):
            await trio.sleep(_PAUSE)
            continue
        number = entries[-1].number


async def _copied(sink: AuditSink, entries: Sequence[AuditEntry]) -> bool:
    try:
        await trio.to_thread.run_sync(sink.write, entries)
    except OSError as error:
        log.error("cannot copy the audit log: %s", error)  # noqa: TRY400  # not a bug, so without a traceback
        return False
    return True

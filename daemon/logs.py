"""The daemon's own log: lines for people, one JSON object a line, or records of the journal.

Besides its text a line has keys, given as `extra={"keys": {...}}`, and the id of the request that
it goes back to: whoever knows that finds what became of the request.
"""

import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import trio

from daemon import journal
from storage import origin

# What a request brings along must not begin a line of its own, nor move a terminal's cursor.
_VISIBLE = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
_VISIBLE |= {0x2028: "\\u2028", 0x2029: "\\u2029"}


class _Text(logging.Formatter):
    """`2026-11-21T10:00:00.123Z INFO    evals: text`."""

    def level(self, record: logging.LogRecord) -> str:
        """Return the level of a line, as wide as any."""
        return f"{record.levelname:<7}"

    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix("steward.")
        said = record.getMessage().translate(_VISIBLE)
        line = f"{_moment(record)} {self.level(record)} {part}: {said}"
        if request_id := origin.current():
            line += f" (request {request_id})"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Peer(_Text):
    """`2026-11-21T10:00:00.123Z [INFO]  evals: text`, as programs that read the peer's log expect."""

    _LEVELS: ClassVar = {"DEBUG": "[DEBUG]", "INFO": "[INFO] ", "WARNING": "[WARN] "}

    def level(self, record: logging.LogRecord) -> str:
        return self._LEVELS.get(record.levelname, "[ERROR]")


class _JSON(logging.Formatter):
    """`{"time": …, "level": …, "part": …, "message": …}`; keys, request and error if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("steward."),
            "message": record.getMessage(),
            **_keys(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _ToJournal(logging.Handler):
    """Sends lines to the journal of systemd, each part of a line as a field of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line; if there is no way to the journal now, standard error leads there as well."""
        try:
            journal.send(self._path, [self._record(record)])
        except OSError:
            print(_Text().format(record), file=sys.stderr)  # noqa: T201  # nobody else to tell

    def _record(self, record: logging.LogRecord) -> bytes:
        said = record.getMessage()
        if record.exc_info:
            said += "\n" + (self.formatter or _Text()).formatException(record.exc_info)
        keys = {"part": record.name.removeprefix("steward."), **_keys(record)}
        fields = {f"STEWARD_{name.upper()}": value for name, value in keys.items()}
        fields["PRIORITY"] = str(_PRIORITIES.get(record.levelno, 3))
        return journal.record({"MESSAGE": said, "SYSLOG_IDENTIFIER": "steward", **fields})


_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4}  # as syslog has them


def _keys(record: logging.LogRecord) -> dict[str, str]:
    """Return what a line is about, and the request that it goes back to."""
    keys: dict[str, str] = dict(getattr(record, "keys", ()))
    if request_id := origin.current():
        keys["request_id"] = request_id
    return keys


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def set_up(level: str, form: str, environment: Mapping[str, str]) -> None:
    """Send the daemon's log to standard error. `form` is `text` or `json`.

    Text that would get into the journal that way goes there as records instead.
    """
    # Nobody is shown which line of which file logs something, and in which thread: it is not looked
    # for, which would be half the cost of a line (the library's "Optimization").
    logging._srcfile = None  # noqa: SLF001
    for name in ("logThreads", "logProcesses", "logMultiprocessing", "logAsyncioTasks"):
        setattr(logging, name, False)
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if form == "text" and journal.is_behind(sys.stderr.fileno(), environment):
        handler = _ToJournal(journal.SOCKET)
    handler.setLevel(level.upper())
    handler.setFormatter(_formatter(as_json=form == "json"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("steward").setLevel(level.upper())


def _formatter(*, as_json: bool) -> logging.Formatter:
    return _JSON() if as_json else _Text()


# ---- for who looks on from afar --------------------------------------------------------------------

_WAITING = 512  # lines that wait for a reader; of those that come faster only the number is told


class Monitor:
    """The log as it is written, for any number of readers, none of whom holds up the daemon."""

    def __init__(self) -> None:
        self._log = logging.getLogger("steward")
        self._usual = self._log.level
        self._readers: list[Reader] = []

    @contextmanager
    def reading(self, level: str, *, as_json: bool) -> Iterator[AsyncIterator[str]]:
        """Read the lines of this level and above while the block runs, whatever the daemon logs itself."""
        reader = Reader()
        reader.setLevel(level.upper())
        reader.setFormatter(_JSON() if as_json else _Peer())
        self._readers.append(reader)
        self._log.addHandler(reader)
        self._listen()
        try:
            yield reader
        finally:
            self._log.removeHandler(reader)
            self._readers.remove(reader)
            self._listen()

    def change(self, level: str) -> None:
        """Have the daemon itself log this level and above from now on."""
        self._usual = logging.getLevelNamesMapping()[level.upper()]
        for handler in logging.getLogger().handlers:
            handler.setLevel(self._usual)
        self._listen()

    def _listen(self) -> None:
        """Have everything logged that anybody wants to see; standard error has its own level."""
        self._log.setLevel(min([self._usual, *(reader.level for reader in self._readers)]))


class Reader(logging.Handler):
    """The lines of one reader, from whatever thread they come."""

    def __init__(self) -> None:
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[str](_WAITING)
        self._token = trio.lowlevel.current_trio_token()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Have a line shown."""
        self._token.run_sync_soon(self._show, self.format(record))

    def _show(self, line: str) -> None:
        try:
            self._send.send_nowait(line)
        except trio.WouldBlock:
            self._dropped += 1

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> str:
        """Return the next line, or how many were left out since the last one."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return f"{dropped} lines are left out: they came faster than they were read"
        return await self._receive.receive()

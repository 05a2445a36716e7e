"""The daemon's log: text lines, one JSON object per line, or records of the journal.

In addition to its text, a line has keys, passed as `extra={"keys": {...}}`. It also has the ID of
the request that caused it, which the client also receives. If tracing is enabled, the line has the
ID of the trace.
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

from daemon.log import journal
from storage import request_context

# Control characters of a request must not start a new line or move the cursor of a terminal.
_VISIBLE = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))}
_VISIBLE |= {0x2028: "\\u2028", 0x2029: "\\u2029"}


class _Text(logging.Formatter):
    """The text format: `2026-11-21T10:00:00.123Z INFO    evals: text`."""

    def level(self, record: logging.LogRecord) -> str:
        """Return the level of a line, padded to the width of all levels."""
        return f"{record.levelname:<7}"

    def format(self, record: logging.LogRecord) -> str:
        part = record.name.removeprefix("steward.")
        message = record.getMessage().translate(_VISIBLE)
        line = f"{_format_time(record)} {self.level(record)} {part}: {message}"
        if request_id := request_context.current():
            trace_id = _trace_id()
            line += f" (request {request_id}{trace_id and f', trace {trace_id}'})"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Peer(_Text):
    """The format of Nomad's log, for programs that parse it: `2026-… [INFO]  evals: text`."""

    _LEVELS: ClassVar = {"DEBUG": "[DEBUG]", "INFO": "[INFO] ", "WARNING": "[WARN] "}

    def level(self, record: logging.LogRecord) -> str:
        return self._LEVELS.get(record.levelname, "[ERROR]")


class _JSON(logging.Formatter):
    """The JSON format: time, level, part and message; if present also keys, IDs and the error."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("steward."),
            "message": record.getMessage(),
            **_keys(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _ToJournal(logging.Handler):
    """A handler that sends lines to the systemd journal. Each key of a line becomes a field."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line to the journal's socket.

        If that fails, write it to standard error, which the service manager connects to the
        journal.
        """
        try:
            journal.send(self._path, [self._record(record)])
        except OSError:
            print(_Text().format(record), file=sys.stderr)  # noqa: T201  # the journal failed

    def _record(self, record: logging.LogRecord) -> bytes:
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + (self.formatter or _Text()).formatException(record.exc_info)
        keys = {"part": record.name.removeprefix("steward."), **_keys(record)}
        fields = {f"STEWARD_{name.upper()}": value for name, value in keys.items()}
        fields["PRIORITY"] = str(_PRIORITIES.get(record.levelno, 3))
        return journal.record({"MESSAGE": message, "SYSLOG_IDENTIFIER": "steward", **fields})


_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4}  # syslog priorities


def _keys(record: logging.LogRecord) -> dict[str, str]:
    """Return the keys of a line, and the IDs of its request and its trace."""
    keys: dict[str, str] = dict(getattr(record, "keys", ()))
    if request_id := request_context.current():
        keys["request_id"] = request_id
    if trace_id := _trace_id():
        keys["trace_id"] = trace_id
    return keys


def _trace_id() -> str:
    """Return the trace ID of the current work; empty if it is not traced."""
    return request_context.traceparent()[3:35]


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure_logging(level: str, form: str, environment: Mapping[str, str]) -> None:
    """Send the daemon's log to standard error. `form` is `text` or `json`.

    If standard error is connected to the journal, text is sent as journal records instead.
    """
    # No format shows source file, line and thread. Their lookup would be half the cost of a log
    # call (see "Optimization" in the documentation of logging).
    logging._srcfile = None  # noqa: SLF001  # the documented way
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


# --- log streams --------------------------------------------------------------------------------

_WAITING = 512  # buffered lines for a slow reader; further lines are only counted


class LogMonitor:
    """Live streams of the log for any number of readers, which cannot delay the daemon."""

    def __init__(self) -> None:
        self._log = logging.getLogger("steward")
        self._usual = self._log.level
        self._readers: list[LogSubscriber] = []

    @contextmanager
    def reading(self, level: str, *, as_json: bool) -> Iterator[AsyncIterator[str]]:
        """Yield a stream of all lines of this level and above.

        The daemon's own log level does not affect the stream.
        """
        reader = LogSubscriber()
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
        """Set the level of the daemon's own log."""
        self._usual = logging.getLevelNamesMapping()[level.upper()]
        for handler in logging.getLogger().handlers:
            handler.setLevel(self._usual)
        self._listen()

    def _listen(self) -> None:
        """Set the logger to the lowest level of any reader; standard error has its own level."""
        self._log.setLevel(min([self._usual, *(reader.level for reader in self._readers)]))


class LogSubscriber(logging.Handler):
    """A log handler that queues lines for one reader. Any thread may log."""

    def __init__(self) -> None:
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[str](_WAITING)
        self._token = trio.lowlevel.current_trio_token()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line for the reader."""
        self._token.run_sync_soon(self._show, self.format(record))

    def _show(self, line: str) -> None:
        try:
            self._send.send_nowait(line)
        except trio.WouldBlock:
            self._dropped += 1

    def __aiter__(self) -> "LogSubscriber":
        return self

    async def __anext__(self) -> str:
        """Return the next line. If lines were dropped, first return a message with their number."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return f"{dropped} lines were dropped: the client reads too slowly"
        return await self._receive.receive()

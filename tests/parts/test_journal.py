"""Journal records: their format, and the handling of records that exceed a message."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.log import journal
from daemon.log.daemon_log import _ToJournal
from storage.request_context import request_scope


@pytest.fixture
def ears(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that receives the records for the journal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(str(tmp_path / "journal"))
        yield one


def heard(ears: socket.socket) -> bytes:
    text, files, _, _ = socket.recv_fds(ears, 1 << 20, 1)
    for file in files:
        text = os.pread(file, os.fstat(file).st_size, 0)
        os.close(file)
    return text


def test_journal_field_is_a_name_and_a_value() -> None:
    assert journal.record({"MESSAGE": "all is well", "PRIORITY": "6"}) == (
        b"MESSAGE=all is well\nPRIORITY=6\n"
    )


def test_multiline_value_cannot_forge_a_field() -> None:
    forged = journal.record({"MESSAGE": "a\nPRIORITY=0"})
    assert forged == b"MESSAGE\n\x0c\0\0\0\0\0\0\0a\nPRIORITY=0\n"


def test_record_larger_than_a_datagram_arrives(ears: socket.socket, tmp_path: Path) -> None:
    large = journal.record({"MESSAGE": "x" * (1 << 20)})
    journal.send(tmp_path / "journal", [large])
    assert heard(ears) == large


def test_journal_is_recognized_by_device_and_inode() -> None:
    reading, writing = os.pipe()
    found = os.fstat(writing)
    named = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    assert journal.is_behind(writing, named)
    assert not journal.is_behind(writing, {})
    assert not journal.is_behind(writing, {"JOURNAL_STREAM": "1:2"})
    os.close(reading)
    os.close(writing)


def test_log_line_has_its_keys_as_fields(ears: socket.socket, tmp_path: Path) -> None:
    line = logging.LogRecord("steward.evals", logging.WARNING, "x.py", 1, "a %s", ("b",), None)
    line.__dict__["keys"] = {"eval_id": "e1"}
    with request_scope("r-1"):
        _ToJournal(tmp_path / "journal").emit(line)
    assert heard(ears).decode().splitlines() == [
        "MESSAGE=a b",
        "SYSLOG_IDENTIFIER=steward",
        "STEWARD_PART=evals",
        "STEWARD_EVAL_ID=e1",
        "STEWARD_REQUEST_ID=r-1",
        "PRIORITY=4",
    ]


def test_lines_without_a_journal_are_written_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = logging.LogRecord("steward.evals", logging.INFO, "x.py", 1, "a", (), None)
    _ToJournal(tmp_path / "none").emit(line)
    assert capsys.readouterr().err.endswith("evals: a\n")

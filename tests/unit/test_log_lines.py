"""Lines of the log: one for each record, even with hostile text of a request."""

import json
import logging

import pytest

from daemon.log.daemon_log import _JSON, _Text
from storage.request_context import request_scope


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("steward.web", logging.INFO, "x.py", 1, message, arguments, None)


FORGED = "/v1/job/a\n2026-11-21T10:00:00.000Z INFO    acl: all is well\r\x1b[2J\x9b\u2028"


@pytest.mark.parametrize("formatter", [_Text(), _JSON()])
def test_request_text_cannot_start_a_new_log_line(formatter: logging.Formatter) -> None:
    line = formatter.format(record("request failed: %s", FORGED))
    assert len(line.splitlines()) == 1 or isinstance(formatter, _JSON)
    assert "\n" not in line
    assert "\x1b" not in line


def test_escaped_text_remains_readable() -> None:
    assert "a\\x0a2026" in _Text().format(record("request failed: %s", FORGED))
    assert FORGED in json.loads(_JSON().format(record("%s", FORGED)))["message"]


def test_line_has_its_object_and_its_request() -> None:
    about = record("placed")
    about.__dict__["keys"] = {"eval_id": "e1"}
    with request_scope("r-1"):
        line, text = json.loads(_JSON().format(about)), _Text().format(about)
    assert (line["eval_id"], line["request_id"]) == ("e1", "r-1")
    assert text.endswith("placed (request r-1)")
    assert "request" not in _Text().format(about)

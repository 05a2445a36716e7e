"""The log of tool calls."""

import json

from daemon.cli.core.mcp_tools import MOST_OUTCOME, log_line


def test_record_has_no_possibly_secret_values() -> None:
    arguments = {
        "job": "etl",
        "payload": "hidden-payload",
        "meta": {"key": "hidden-value"},
        "source": "hidden-source",
    }
    assert log_line("dispatch_job", arguments, "done") == (
        'tool dispatch_job {"job": "etl", "payload": "14 characters", "meta": "1 entries", '
        '"source": "13 characters"}: "done"'
    )
    assert "hidden" not in log_line(
        "run_job", {"source": None, "meta": ["hidden"], "payload": 7}, "x"
    )


def test_record_has_no_values_of_unknown_arguments() -> None:
    line = log_line("dispatch_job", {"job": "etl", "Payload": "hidden", "name": ["hidden"]}, "x")
    assert line == (
        'tool dispatch_job {"job": "etl", "Payload": "6 characters", "name": "1 characters"}: "x"'
    )


def test_outcome_is_truncated_and_cannot_forge_a_line() -> None:
    forged = "no\n2026-01-01 tool stop_job {}: done\x1b[2J" + "x" * 10_000
    line = log_line("list_jobs", {"k" * 10_000: "v" * 10_000}, forged)
    assert line.isprintable()
    assert len(line) < 500
    assert json.loads(line.partition("}: ")[2]) == forged[:MOST_OUTCOME]

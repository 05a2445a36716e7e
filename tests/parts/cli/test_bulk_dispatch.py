"""`job dispatch --from`: blocks of lines, the answers to them, and the summary."""

import io
import json
from pathlib import Path

import pytest

from daemon.cli.commands import bulk_dispatch
from daemon.cli.commands.bulk_dispatch import LineBlock, read_blocks
from storage.errors import Invalid
from tests.parts.cli.conftest import FakeDaemon, Terminal, Told
from tests.parts.cli.test_commands import stub

PATH = "/v1/job/web/dispatch/bulk"
DONE = {"DispatchedJobID": "web/dispatch-1-ab-00001", "EvalID": "e", "Index": 7}


@pytest.fixture
def web(fake: FakeDaemon) -> FakeDaemon:
    fake.tell("/v1/jobs", [stub()])
    return fake


def told(*answers: dict[str, object], hang_up: bool = False) -> Told:
    pieces = tuple(json.dumps(answer).encode() + b"\n" for answer in answers)
    return Told(pieces=pieces, hang_up=hang_up)


# --- blocks ---


def test_a_file_is_sent_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_dispatch, "LINES", 2)
    assert list(read_blocks(io.BytesIO(b"a\n\nb\nc\n\n\n\n\nd"))) == [
        LineBlock(1, b"a\n\n", 1),
        LineBlock(3, b"b\nc\n", 2),
        LineBlock(9, b"d", 1),
    ]


def test_a_block_of_long_lines_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_dispatch, "BYTES", 6)
    assert [block.body for block in read_blocks(io.BytesIO(b"aa\nbb\ncc\n"))] == [
        b"aa\nbb\n",
        b"cc\n",
    ]


def test_line_larger_than_a_request_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_dispatch, "BYTES", 6)
    with pytest.raises(Invalid, match="line 2 has more than 6 bytes"):
        list(read_blocks(io.BytesIO(b"aa\nbbbbbbbb\n")))


# --- the command ---


def test_each_block_names_its_first_line(
    web: FakeDaemon, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_dispatch, "LINES", 2)
    (tmp_path / "lines").write_text('{"Meta": {"a": "1"}}\n{}\n{}\n')
    web.tell(
        PATH,
        told({**DONE, "Line": 1}, {"Line": 2, "DispatchedJobID": "web/2", "Index": 7}),
        told({**DONE, "Line": 3, "Existed": True}),
        method="POST",
    )
    words = ("--from", str(tmp_path / "lines"), "--idempotency-token", "t", "web")
    result = terminal.type("job", "dispatch", *words)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == 'job "web": 2 dispatched, 1 of them queued, 1 dispatched before\n'
    first, second = web.asked(PATH)
    assert (first.body, second.body) == ([{"Meta": {"a": "1"}}, {}], [{}])
    assert (first.query["first_line"], second.query["first_line"]) == ("1", "3")
    assert {item.query["idempotency_token"] for item in (first, second)} == {"t"}


def test_an_error_names_line_and_field(web: FakeDaemon, terminal: Terminal) -> None:
    web.tell(
        PATH,
        told(
            {**DONE, "Line": 1, "Warnings": ["unknown field"]},
            {"Line": 2, "Field": "Meta", "Error": "no such key"},
        ),
        method="POST",
    )
    result = terminal.type("job", "dispatch", "--from", "-", "web", stdin="{}\n{}\n")
    assert (result.exit_code, result.stdout) == (2, 'job "web": 1 dispatched, 1 failed\n')
    assert result.stderr == "line 1: warning: unknown field\nline 2: Meta: no such key\n"


def test_json_is_a_document_per_line(web: FakeDaemon, terminal: Terminal) -> None:
    web.tell(PATH, told({**DONE, "Line": 1}), method="POST")
    words = ("job", "dispatch", "--from", "-", "web")
    result = terminal.type(*words, "--json", stdin="{}\n")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{**DONE, "Line": 1}]
    result = terminal.type(*words, "-t", ".DispatchedJobID", stdin="{}\n")
    assert result.stdout == "web/dispatch-1-ab-00001\n"


@pytest.mark.parametrize("hang_up", [False, True])
def test_a_missing_answer_is_an_error(
    web: FakeDaemon, terminal: Terminal, *, hang_up: bool
) -> None:
    web.tell(PATH, told({**DONE, "Line": 1}, hang_up=hang_up), method="POST")
    result = terminal.type("job", "dispatch", "--from", "-", "web", stdin="{}\n{}\n")
    assert result.exit_code == 1
    assert "so far: 1 dispatched\n" in result.stderr


def test_refused_request_has_a_reason(web: FakeDaemon, terminal: Terminal) -> None:
    web.tell(PATH, Told(b"it is not a parameterized job", 400), method="POST")
    result = terminal.type("job", "dispatch", "--from", "-", "web", stdin="{}\n")
    assert result.exit_code == 1
    assert "it is not a parameterized job" in result.stderr


def test_options_for_one_child_are_refused_with_a_file(web: FakeDaemon, terminal: Terminal) -> None:
    result = terminal.type("job", "dispatch", "--from", "-", "--wait", "--meta", "a=b", "web")
    assert result.exit_code == 1
    assert "--from cannot be combined with --meta, --wait: set them in each line" in result.stderr


def test_a_file_that_cannot_be_read_is_named(web: FakeDaemon, terminal: Terminal) -> None:
    result = terminal.type("job", "dispatch", "--from", "/nowhere", "web")
    assert result.exit_code == 1
    assert "cannot read the lines of /nowhere: No such file" in result.stderr


def test_a_terminal_shows_a_bar(web: FakeDaemon, terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("{}\n")
    web.tell(PATH, told({**DONE, "Line": 1}), method="POST")
    words = ("job", "dispatch", "--color", "--from", str(tmp_path / "lines"), "web")
    result = terminal.type(*words)
    assert "━" in result.stdout
    assert 'job "web": 1 dispatched' in result.stdout

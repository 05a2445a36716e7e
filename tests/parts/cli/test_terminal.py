import re
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import pytest

from daemon.cli.core import command_tree
from daemon.cli.core.options import open_screen, wants_color, wants_hints
from daemon.cli.core.output import OutputOptions, ProgressRow, Screen
from daemon.cli.core.terminal import TerminalScreen
from storage.records.diff import DiffType

BOLD, GREEN, YELLOW, PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


@pytest.fixture
def screen() -> TerminalScreen:
    return TerminalScreen(OutputOptions(), hints=True)


def without_color(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_table_has_a_bold_header_and_statuses_in_color(
    screen: TerminalScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    screen.table(["ID", "Status"], [["a", "running"], ["b", "pending"]])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == f"{BOLD}ID  Status{PLAIN}"
    assert lines == [f"a   {GREEN}running{PLAIN}", f"b   {YELLOW}pending{PLAIN}"]


def test_the_layout_is_the_same_with_and_without_color(
    screen: TerminalScreen, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # narrow, but lines are neither cut nor folded
    plain = Screen(OutputOptions())
    for item in (screen, plain):
        item.title("What it is")
        item.facts([("ID", "an-identifier-that-is-long"), ("Class", "")])
        item.table(["ID", "Description"], [["a", "many words that do not fit"], ["b", ""]])
    out = without_color(capsys.readouterr().out)
    half = len(out) // 2
    assert out[:half] == out[half:]


def test_progress_is_redrawn_after_a_change(
    screen: TerminalScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    with screen.progress() as progress:
        progress.show([ProgressRow("evaluation", "e1", "job-register", "pending")])
        progress.show([ProgressRow("evaluation", "e1", "job-register", "complete")])
        progress.show([ProgressRow("allocation", "a1", "web.web[0]", "running")])
    drawn = without_color(capsys.readouterr().out)
    first, *_, last = drawn.split("\x1b[2K")
    assert "pending" in first
    assert [line.split() for line in last.splitlines()[:2]] == [
        ["evaluation", "e1", "job-register", "complete"],
        ["allocation", "a1", "web.web[0]", "running"],
    ]


def test_counted_value_has_a_progress_bar(
    screen: TerminalScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    with screen.progress() as progress:
        progress.show([ProgressRow("group", "web", "", "2/4 placed, 1 healthy", "", 1, 4)])
    drawn = without_color(capsys.readouterr().out)
    assert re.search(r"group +web +[━╸╺]{20} +2/4 placed, 1 healthy", drawn)


@pytest.mark.parametrize(("hints", "shown"), [(True, "\nNext: x\n"), (False, "")])
def test_hint_is_shown_unless_disabled(
    hints: bool, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    TerminalScreen(OutputOptions(), hints=hints).hint("Next: x")
    assert without_color(capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    ("given", "environment", "terminal", "color"),
    [
        (None, {}, True, True),
        (None, {}, False, False),
        (None, {"NO_COLOR": "1"}, True, False),
        (None, {"NO_COLOR": ""}, True, True),
        (None, {"TERM": "dumb"}, True, False),
        (None, {"FORCE_COLOR": "1"}, False, True),
        (None, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        (True, {"NO_COLOR": "1"}, False, True),
        (False, {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_color_is_used_for_terminals_unless_overridden(
    given: bool | None,
    environment: Mapping[str, str],
    terminal: bool,
    color: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert wants_color(given, environment) is color


@pytest.mark.parametrize(
    ("environment", "terminal", "hints"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NOMAD_CLI_SHOW_HINTS": "0"}, True, False),
        ({"NOMAD_CLI_SHOW_HINTS": "0", "STEWARD_CLI_SHOW_HINTS": "true"}, True, True),
    ],
)
def test_hints_are_shown_only_on_terminals(
    environment: Mapping[str, str], terminal: bool, hints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert wants_hints(environment) is hints


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (OutputOptions(color=True), TerminalScreen),
        (OutputOptions(color=False), Screen),
        (OutputOptions(color=True, as_json=True), Screen),
        (OutputOptions(color=True, selector=".ID"), Screen),
    ],
)
def test_documents_are_never_colored(options: OutputOptions, kind: type[Screen]) -> None:
    assert type(open_screen(options, {})) is kind


HOSTILE = "web\x1b]0;x\x07\x1b[2J\x9b2J\r\u202e"


def _print_everything(screen: Screen) -> None:
    screen.line(HOSTILE)
    screen.report(HOSTILE)
    screen.changed(DiffType.ADDED, HOSTILE)
    screen.title(HOSTILE)
    screen.facts([("Name", HOSTILE)])
    screen.table(["ID", HOSTILE], [["a", f"{HOSTILE}\nb  running"]])
    screen.hint(HOSTILE)
    screen.warn(HOSTILE)
    screen.document(msgspec.json.encode({"Name": HOSTILE}))
    screen.document_line(msgspec.json.encode({"Name": HOSTILE}))
    with screen.progress() as progress:
        progress.show([ProgressRow("job", HOSTILE, HOSTILE, HOSTILE, HOSTILE)])


@pytest.mark.parametrize("kind", [Screen, partial(TerminalScreen, hints=True)])
def test_no_text_controls_the_terminal(
    kind: Callable[[OutputOptions], Screen], capsys: pytest.CaptureFixture[str]
) -> None:
    _print_everything(kind(OutputOptions()))
    captured = capsys.readouterr()
    # Only the cursor and the colors of the screen itself are left.
    written = re.sub(r"\x1b\[[0-9;?]*[mAKhl]", "", captured.out + captured.err)
    assert HOSTILE[:3] in written
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*written}
    assert "web\u241b]0;x\u2407" in written


def test_a_cell_cannot_add_a_row(
    screen: TerminalScreen, capsys: pytest.CaptureFixture[str]
) -> None:
    screen.table(["ID"], [["a\nb  running"]])
    assert without_color(capsys.readouterr().out).splitlines() == ["ID", "a␊b  running"]


def test_a_value_is_unchanged_in_a_pipe(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    Screen(OutputOptions()).value(HOSTILE)
    Screen(OutputOptions(selector="Name")).document(msgspec.json.encode({"Name": HOSTILE}))
    assert capsysbinary.readouterr().out == 2 * f"{HOSTILE}\n".encode()


def test_a_value_does_not_control_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    Screen(OutputOptions()).value("a\r\n\x1b[2J")
    assert capsys.readouterr().out == "a\n␛[2J\n"


def test_a_document_keeps_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    Screen(OutputOptions()).document(msgspec.json.encode({"Name": HOSTILE}))
    assert msgspec.json.decode(capsys.readouterr().out) == {"Name": HOSTILE}


def test_an_error_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    command_tree._complain(f"one{HOSTILE}\ntwo")
    assert capsys.readouterr().err == "steward: oneweb␛]0;x␇␛[2J\\u009b2J␍\\u202e\ntwo\n"

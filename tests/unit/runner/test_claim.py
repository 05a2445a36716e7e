import pytest

from daemon.runner.core.driver import ExitResult
from daemon.runner.drivers.claim_file import ClaimRecord, completed, parse


def test_claim_file_records_the_shim_and_the_exit_status() -> None:
    text = "group /sys/fs/cgroup/x\nshim 12\nmain 13\nexit 7\n"
    expected = ClaimRecord(group="/sys/fs/cgroup/x", shim=12, main=13, status=7)
    assert parse(text) == expected


def test_incomplete_line_is_ignored() -> None:
    assert parse("group -\nshim 12\nexit 1") == ClaimRecord(group="-", shim=12)


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        ("exit 0\n", ExitResult()),
        ("exit 7\n", ExitResult(code=7)),
        ("exit 137\n", ExitResult(code=137)),
        ("Killed\nexit 137\n", ExitResult(code=137, signal=9)),
        ("Segmentation fault (core dumped)\nexit 139\n", ExitResult(code=139, signal=11)),
        ("exit 130\n", ExitResult(code=130, signal=2)),
        ("exit 141\n", ExitResult(code=141, signal=13)),
        (
            "steward-shim: 4: cd: can't cd to /x\nexit 2\n",
            ExitResult(code=2, message="steward-shim: 4: cd: can't cd to /x"),
        ),
    ],
)
def test_exit_status_of_a_shell_distinguishes_signals(lines: str, end: ExitResult) -> None:
    assert parse(f"shim 12\n{lines}").end == end


def test_missing_exit_of_a_shim_is_unknown() -> None:
    end = parse("shim 12\n").end
    assert (end.code, end.signal, end.ok) == (137, 9, False)
    assert "exit status is unknown" in end.message


@pytest.mark.parametrize(
    ("text", "status", "end"),
    [
        ("shim 12\n", 7, ExitResult(code=7)),
        ("shim 12\n", 137, ExitResult(code=137, signal=9)),
        ("", 0, ExitResult()),
        ("shim 12\nexit 3\n", 7, ExitResult(code=3)),
        ("shim 12\n", -1, parse("shim 12\n").end),
    ],
)
def test_status_from_the_launcher_is_used_without_a_claim_status(
    text: str, status: int, end: ExitResult
) -> None:
    assert completed(parse(text), status).end == end

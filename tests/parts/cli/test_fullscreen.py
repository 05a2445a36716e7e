"""A full-screen program restores the terminal, no matter how it ends."""

import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, signal
from daemon.cli.commands.full_screen import opened
from daemon.cli.commands.top_view import ScreenLine
with opened(color=True) as screen:
    try:
        while True:
            screen.draw([ScreenLine(f"size {screen.size}", "red"), ScreenLine("ready")])
            key = screen.key(60)
            if key == "suspend":
                screen.suspend()
            elif key == "b":
                raise ValueError("broken")
            elif key == "s":
                signal.signal(signal.SIGUSR1, lambda *_: None)
                os.kill(os.getpid(), signal.SIGUSR1)
                screen.key(3600)
                screen.draw([ScreenLine("woken"), ScreenLine("ready")])
            elif key == "l":
                with screen.suspended():
                    print("lent", flush=True)
            elif key == "q":
                break
            elif key:
                screen.draw([ScreenLine("key " + key), ScreenLine("ready")])
                screen.key(60)
    except KeyboardInterrupt:
        pass
"""
TAKEN, GIVEN = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A program in a terminal: its process, and the controlling end of the terminal."""

    def __init__(self, program: str) -> None:
        waits, begins = os.pipe()
        self.pid, self.end = pty.fork()
        if not self.pid:
            os.read(waits, 1)  # wait until the test has read the terminal settings
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, "-c", program])  # noqa: S606  # as meant
        self.before = self.settings()
        os.write(begins, b"x")
        os.close(waits)
        os.close(begins)
        self.seen = b""
        self.status: int | None = None

    def until(self, text: bytes) -> bytes:
        """Read until a text arrives; return the whole output."""
        while text not in self.seen:
            self.seen += os.read(self.end, 4096)
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, text: bytes) -> None:
        os.write(self.end, text)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self.end)

    def wait(self) -> int:
        """Return the exit status."""
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    found = Terminal(PROGRAM)
    yield found
    if found.status is None:
        os.kill(found.pid, signal.SIGKILL)
        os.waitpid(found.pid, 0)
    os.close(found.end)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (lambda item: item.type(b"q"), 0),
        (lambda item: item.type(b"\x03"), 0),
        (lambda item: item.type(b"b"), 1),
        (lambda item: os.kill(item.pid, signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda item: os.kill(item.pid, signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["quit", "interrupt", "error", "terminate", "hang-up"],
)
def test_terminal_is_restored_after_any_exit(
    terminal: Terminal, ending: object, status: int
) -> None:
    terminal.until(TAKEN)
    terminal.until(b"ready")
    assert terminal.settings() != terminal.before
    ending(terminal)
    terminal.until(GIVEN)
    assert terminal.wait() == status
    assert terminal.settings() == terminal.before


def test_signal_just_before_the_wait_for_a_key_ends_the_wait(terminal: Terminal) -> None:
    terminal.until(b"ready")
    terminal.type(b"s")
    terminal.until(b"woken")


def test_keys_are_read_one_by_one_with_names(terminal: Terminal) -> None:
    terminal.until(b"ready")
    for typed, name in (
        (b"\x1b[A", b"key up"),
        (b"\r", b"key enter"),
        ("é".encode(), b"key \xc3\xa9"),
    ):
        terminal.type(typed)
        terminal.until(name)
        terminal.type(b"z")
        terminal.until(b"size")


def test_new_terminal_size_redraws_everything(terminal: Terminal) -> None:
    terminal.until(b"ready")
    fcntl.ioctl(terminal.end, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 61, 0, 0))
    assert b"\x1b[2J" in terminal.until(b"size (61, 20)")


def test_only_lines_that_changed_are_drawn(terminal: Terminal) -> None:
    terminal.until(b"ready")
    terminal.type(b"k")
    assert b"ready" not in terminal.until(b"key k")


def test_another_program_uses_the_terminal_temporarily(terminal: Terminal) -> None:
    terminal.until(b"ready")
    terminal.type(b"l")
    assert terminal.until(b"lent").index(GIVEN) >= 0
    terminal.until(TAKEN)
    terminal.until(b"ready")


def test_stopped_program_releases_the_terminal_until_resumed(terminal: Terminal) -> None:
    terminal.until(b"ready")
    terminal.type(b"\x1a")
    terminal.until(GIVEN)
    _, status = os.waitpid(terminal.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.until(TAKEN)
    terminal.until(b"ready")


def test_terminal_without_a_size_counts_as_80_columns_of_24_lines(terminal: Terminal) -> None:
    # a new pseudo-terminal has no size, like a serial line
    terminal.until(b"size (80, 24)")


def test_last_column_of_a_line_is_not_erased(terminal: Terminal) -> None:
    """After its last column, a terminal keeps the cursor there, and would erase this column."""
    assert b"size (80, 24)\x1b[0m\x1b[2;1H\x1b[Kready" in terminal.until(b"ready")


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_terminal_without_a_movable_cursor_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    refused = Terminal(PROGRAM)
    try:
        assert TAKEN not in refused.until(f"TERM is '{kind}'".encode())
        assert refused.wait() == 1
    finally:
        os.close(refused.end)

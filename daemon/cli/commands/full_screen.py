"""Full-screen terminal with single keys, and redrawing of changed lines.

At the end, the terminal is restored: after an error, Ctrl-C, SIGTERM or SIGHUP, and while Ctrl-Z
suspends the program.
"""

import os
import re
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from daemon.cli.commands.top_view import ScreenLine
from storage.errors import Invalid

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"  # the alternate screen, cleared, without a cursor
_LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
_STYLES = {
    "bold": "1",
    "dim": "2",
    "reverse": "7",
    "selected": "1;7",
    "red": "31",
    "green": "32",
    "yellow": "33",
}
_WITHOUT_COLOR = frozenset({"bold", "dim", "reverse", "selected"})
_KEYS = {
    "\r": "enter",
    "\n": "enter",
    "\t": "tab",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1a": "suspend",
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
}
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_WITHOUT_CURSOR = frozenset({"dumb", "unknown"})  # values of TERM
_UNKNOWN_SIZE = (80, 24)  # of a terminal that does not know its size, such as a serial line
_AT_ONCE = 1024  # bytes of keys per read
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_SIGNALLED = 128  # plus the signal's number: exit status after a signal


class ScreenEnded(SystemExit):
    """A signal ended the program."""


class FullScreen:
    """The terminal, in full-screen mode while `opened` is active."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._keys, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._drawn: list[ScreenLine] = []
        self._size = (0, 0)
        self._waiting: deque[str] = deque()  # keys that arrived together
        self._before = termios.tcgetattr(self._keys)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)

    @property
    def size(self) -> tuple[int, int]:
        """Return the columns and lines of the terminal."""
        size = os.get_terminal_size(self._out)
        columns, lines = _UNKNOWN_SIZE
        return size.columns or columns, size.lines or lines

    def enter(self) -> None:
        """Switch to full-screen mode."""
        tty.setcbreak(self._keys)
        settings = termios.tcgetattr(self._keys)
        # Ctrl-Z is read as a key, because the screen must be restored first
        settings[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(self._keys, termios.TCSADRAIN, settings)
        self._drawn = []
        self._write(_ENTER)

    def restore(self) -> None:
        """Restore the terminal."""
        self._write(_LEAVE)
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def close(self) -> None:
        """Close the descriptors that `__init__` opened."""
        os.close(self._woken)
        os.close(self._wake)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the terminal for another program while the block runs."""
        self.restore()
        try:
            yield
        finally:
            self.enter()

    def suspend(self) -> None:
        """Suspend this program, as Ctrl-Z does, until it is continued."""
        with self.suspended():
            os.kill(os.getpid(), signal.SIGSTOP)

    def draw(self, lines: Sequence[ScreenLine]) -> None:
        """Show the lines from the top of the screen; draw only those that have changed."""
        size = self.size
        if size != self._size:
            self._drawn, self._size = [], size
        pieces = [] if self._drawn else ["\x1b[2J"]
        for row, line in enumerate(lines):
            if row >= len(self._drawn) or self._drawn[row] != line:
                # The row is erased first. After its last column, many terminals would erase that.
                pieces.append(f"\x1b[{row + 1};1H\x1b[K{self._styled(line)}")
        self._drawn = list(lines)
        if pieces:
            self._write("".join(pieces))

    def _styled(self, line: ScreenLine) -> str:
        is_plain = not self._color and line.style not in _WITHOUT_COLOR
        code = "" if is_plain else _STYLES.get(line.style, "")
        return f"\x1b[{code}m{line.text}\x1b[0m" if code else line.text

    def _write(self, text: str) -> None:
        data = memoryview(text.encode(errors="replace"))
        while data:
            data = data[os.write(self._out, data) :]

    def key(self, within: float) -> str:
        """Return the next key; empty after `within` seconds, and after a signal such as SIGWINCH.

        Raises `EOFError` when the terminal is closed.
        """
        if self._waiting:
            return self._waiting.popleft()
        ready, _, _ = select.select([self._keys, self._woken], [], [], max(0.0, within))
        if self._woken in ready:
            os.read(self._woken, _AT_ONCE)
        if self._keys not in ready:
            return ""
        text = os.read(self._keys, _AT_ONCE).decode(errors="replace")
        if not text:
            raise EOFError
        self._waiting.extend(_KEYS.get(code, code) for code in _KEY.findall(text))
        return self._waiting.popleft() if self._waiting else ""

    @contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """Make `key` return after each signal, even after a signal just before `key` waits."""
        # Such a signal would not interrupt select(), and its handler would run only afterwards.
        before = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGWINCH: the signal only wakes `FullScreen.key`."""


def _end(number: int, _frame: FrameType | None) -> None:
    raise ScreenEnded(_SIGNALLED + number)


@contextmanager
def opened(*, color: bool) -> Iterator[FullScreen]:
    """Use full-screen mode while the block runs. Raises `Invalid` without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Invalid('this command needs a terminal; in a script use "steward status -json"')
    if (kind := os.environ.get("TERM", "")) in _WITHOUT_CURSOR:
        raise Invalid(
            f"this command needs a terminal with a movable cursor, and TERM is {kind!r}; "
            'set TERM to the type of the terminal, or use "steward status"'
        )
    screen = FullScreen(color=color)
    handlers = {number: signal.signal(number, _end) for number in _ENDING}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _ignore)
    try:
        with screen.woken_by_signals():
            screen.enter()
            yield screen
    finally:
        screen.restore()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        screen.close()

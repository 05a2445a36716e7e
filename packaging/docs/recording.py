"""Record the animated picture of the README from a real terminal session.

    python packaging/docs/recording.py [FILE]

The script starts a development daemon in an empty directory, and runs the commands of `SCENES` in a
pseudo-terminal. It writes an SVG file that shows their output at the speed of the recording. Pauses
longer than `LONGEST_PAUSE` are shortened to it.
"""

import contextlib
import copy
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/first-job.svg"

COLUMNS, ROWS = 88, 16
PROMPT = "$ "
LONGEST_PAUSE = 0.7  # seconds
KEY = 0.05  # seconds between two typed characters
READING = (3.5, 4.0, 6.0)  # seconds for which the last screen of each scene stays

CELL = (8.4, 19)  # width and height of a character, in pixels
MARGIN = 16
BACKGROUND, TEXT = "#161b22", "#d0d7de"
COLORS = {"31": "#ff7b72", "32": "#56d364", "33": "#e3b341", "90": "#8b949e"}
DIM = {"237": "#30363d", "197": "#ff5f87", "70": "#56d364"}  # colors of the progress bar

FILES = {
    "date.hcl": """\
job "date" {
  type = "batch"
  group "date" {
    task "date" {
      driver = "raw_exec"
      config { command = "/bin/date" }
    }
  }
}
""",
    "web.hcl": """\
job "web" {
  group "web" {
    count = 3
    network {
      port "http" {}
    }
    update {
      min_healthy_time = "2s"
    }
    task "web" {
      driver = "raw_exec"
      config {
        command = "/usr/bin/python3"
        args    = ["-m", "http.server", "-d", "/usr/share/doc", "${NOMAD_PORT_http}"]
      }
    }
  }
}
""",
    "giant.hcl": """\
job "giant" {
  group "giant" {
    task "giant" {
      driver = "raw_exec"
      config { command = "/bin/date" }
      resources {
        memory = 100000
      }
    }
  }
}
""",
}
SCENES = (
    ("cat date.hcl", "steward run -logs date.hcl"),
    ("steward run web.hcl",),
    ("steward run giant.hcl",),
)

_CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Cell(NamedTuple):
    """One character with its style: the parameters of an SGR escape sequence."""

    character: str
    style: str = ""


class Screen:
    """A terminal with the features that the command line uses: colors and redrawn lines."""

    def __init__(self) -> None:
        self.rows: list[list[Cell]] = [[]]
        self._row = 0
        self._column = 0
        self._style = ""

    def write(self, text: str) -> None:
        """Print text with its control sequences."""
        for match in _CONTROL.finditer(text):
            numbers, final, newline, plain = match.groups()
            if plain:
                self._print(plain)
            elif newline == "\r":
                self._column = 0
            elif newline == "\n":
                self._move_down()
            elif final == "m":
                self._style = "" if numbers in ("", "0") else numbers
            elif final == "A":
                self._row = max(0, self._row - int(numbers or 1))
            elif final == "K":
                self.rows[self._row] = []

    def _print(self, text: str) -> None:
        row = self.rows[self._row]
        row.extend(Cell(" ") for _ in range(self._column - len(row)))
        row[self._column : self._column + len(text)] = [
            Cell(character, self._style) for character in text
        ]
        self._column += len(text)

    def _move_down(self) -> None:
        self._row += 1
        if self._row == len(self.rows):
            self.rows.append([])

    def visible(self) -> list[str]:
        """Return the last rows as contents of SVG elements, wrapped at the right edge."""
        rows: list[list[Cell]] = []
        for cells in self.rows:
            row = _without_end(cells)
            rows += [row[start : start + COLUMNS] for start in range(0, len(row), COLUMNS)] or [[]]
        return [_spans(row) for row in rows[-ROWS:]]


class Frame(NamedTuple):
    """A screen, and the time from which it is shown, in seconds."""

    start: float
    rows: list[str]


def record(address: str, directory: Path) -> tuple[list[Frame], float]:
    """Run all scenes; return the frames and the duration of the recording."""
    frames: list[Frame] = []
    now = 0.0
    for commands, reading in zip(SCENES, READING, strict=True):
        screen = Screen()
        for command in commands:
            for shown in range(len(command) + 1):
                typed = copy.deepcopy(screen)
                typed.write(PROMPT + command[:shown])
                frames.append(Frame(now, typed.visible()))
                now += KEY
            screen.write(f"{PROMPT}{command}\r\n")
            for pause, output in run(command, address, directory):
                now += min(pause, LONGEST_PAUSE)
                screen.write(output)
                frames.append(Frame(now, screen.visible()))
            now += LONGEST_PAUSE
        now += reading
    return frames, now


def run(command: str, address: str, directory: Path) -> Iterator[tuple[float, str]]:
    """Run a command in a pseudo-terminal; yield (seconds since the last piece, output)."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(directory),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "STEWARD_ADDR": address,
    }
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ):
        os.close(terminal)
        before = time.monotonic()
        text = bytearray()
        # A read fails with EIO when the last process has closed the terminal.
        with contextlib.suppress(OSError):
            while True:
                text += os.read(controller, 65536)
                if text.endswith((b"\n", b"m", b"l")):
                    now = time.monotonic()
                    yield now - before, text.decode()
                    before = now
                    text.clear()
        if text:
            yield time.monotonic() - before, text.decode()
        os.close(controller)


def picture(frames: Sequence[Frame], duration: float) -> str:
    """Return the SVG: one element for each row and each period in which the row is unchanged."""
    elements: list[str] = []
    times: dict[tuple[float, float], str] = {}
    for number in range(ROWS):
        for start, end, content in _unchanged(frames, duration, number):
            name = times.setdefault((start, end), f"t{len(times)}")
            last = " last" if end == duration else ""
            y = MARGIN + CELL[1] * (number + 1) - 5
            elements.append(f'<text class="{name}{last}" x="{MARGIN}" y="{y}">{content}</text>')
    rules = [
        f".{name}{{animation-name:{name}}}@keyframes {name}{{{_steps(start, end, duration)}}}"
        for (start, end), name in times.items()
    ]
    width, height = round(COLUMNS * CELL[0] + 2 * MARGIN), ROWS * CELL[1] + 2 * MARGIN
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="title">',
            '<title id="title">A terminal: Steward runs a batch job, deploys a service, and explains why a job cannot be placed</title>',
            "<style>",
            f"text{{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{TEXT};white-space:pre;visibility:hidden;animation:{duration:.2f}s step-end infinite}}",
            ".last{visibility:visible}.b{font-weight:bold}",
            *(f".c{code}{{fill:{color}}}" for code, color in {**COLORS, **DIM}.items()),
            *rules,
            # Viewers without animation show the last screen.
            "@media(prefers-reduced-motion:reduce){text{animation:none}}",
            "</style>",
            f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>',
            *elements,
            "</svg>\n",
        )
    )


def _unchanged(
    frames: Sequence[Frame], duration: float, number: int
) -> Iterator[tuple[float, float, str]]:
    """Yield the start, end and content of each period in which a row shows the same text."""
    start, content = 0.0, ""
    for frame_time, rows in (*frames, Frame(duration, [])):
        now = rows[number] if number < len(rows) else ""
        if now == content and frame_time != duration:
            continue
        if content and frame_time > start:
            yield start, frame_time, content
        start, content = frame_time, now


def _steps(start: float, end: float, duration: float) -> str:
    first, last = (round(100 * moment / duration, 2) for moment in (start, end))
    hidden = "" if last >= 100 else f"{last}%{{visibility:hidden}}"
    return f"0%{{visibility:hidden}}{first}%{{visibility:visible}}{hidden}" + (
        "100%{visibility:visible}" if last >= 100 else ""
    )


def _without_end(cells: list[Cell]) -> list[Cell]:
    end = len(cells)
    while end and cells[end - 1].character == " ":
        end -= 1
    return cells[:end]


def _spans(cells: list[Cell]) -> str:
    """Return a row as SVG.

    Adjacent cells with the same style form a span. Each span has an absolute position, so that
    columns align with any font.
    """
    spans: list[str] = []
    position = 0
    while position < len(cells):
        style = cells[position].style
        end = position
        while end < len(cells) and cells[end].style == style:
            end += 1
        text = escape("".join(cell.character for cell in cells[position:end]), quote=False)
        x = round(MARGIN + position * CELL[0], 1)
        length = round((end - position) * CELL[0], 1)
        class_name = _class(style)
        spans.append(
            f'<tspan x="{x}" textLength="{length}"'
            + (f' class="{class_name}"' if class_name else "")
            + f">{text}</tspan>"
        )
        position = end
    return "".join(spans)


def _class(style: str) -> str:
    if style == "1":
        return "b"
    code = style.removeprefix("38;5;")
    return f"c{code}" if code in COLORS or code in DIM else ""


@contextlib.contextmanager
def daemon(directory: Path) -> Iterator[str]:
    """Run a development daemon; yield its address."""
    command = ["agent", "--dev", "--bind", "127.0.0.1", "--port", "0", "--data-dir"]
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("steward")), *command, str(directory / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                if match := re.search(r" ready at (http\S*)", line):
                    yield match[1]
                    break
        finally:
            process.send_signal(signal.SIGTERM)


def main() -> None:
    """Record the scenes and write the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with tempfile.TemporaryDirectory(prefix="steward-recording.") as name:
        directory = Path(name)
        for file, text in FILES.items():
            (directory / file).write_text(text)
        with daemon(directory) as address:
            frames, duration = record(address, directory)
    target.write_text(picture(frames, duration))
    print(f"{target}: {len(frames)} frames, {duration:.0f} s, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()

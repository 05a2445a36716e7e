"""The tutorial, executed literally: every block of it.

An HCL block is a file. In a console block each line after `$` is a command, followed by its
expected output. In the output `…` within a line matches any string, and `…` on a separate line
matches any lines.
"""

import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from tests.service.daemon import READY_WITHIN, environment
from tests.time_limits import HAPPENS_WITHIN

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
FENCED = re.compile(r"^```([^`\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r'hcl title="([\w.]+)"')
ANYTHING = "…"
TOO_EARLY = b"is not held at its gate"  # the error of an approval before the gate


class Command(NamedTuple):
    """A typed command, and the output below it in the tutorial."""

    typed: str
    shown: list[str]


class File(NamedTuple):
    """A file that the tutorial writes."""

    name: str
    text: str


def steps(text: str) -> Iterator[Command | File]:
    for about, body in FENCED.findall(text):
        if match := NAMED.fullmatch(about):
            yield File(match[1], body)
            continue
        assert about == "console", f"this test does not execute blocks of type {about}"
        assert body.startswith("$ "), body
        for part in body.removeprefix("$ ").split("\n$ "):
            typed, *shown = part.rstrip("\n").split("\n")
            yield Command(typed, shown)


def pattern(shown: list[str]) -> re.Pattern[str]:
    """Return a pattern for an answer: spaces count as one, because column widths depend on the
    texts."""
    lines = []
    for line in shown:
        if line.strip() == ANYTHING:
            lines.append(r"(?:.*\n)*")
            continue
        parts = (re.escape(" ".join(part.split(" "))) for part in line.split(ANYTHING))
        lines.append(re.sub(r"(?:\\ )+", r" +", ".*".join(parts)) + r" *\n")
    return re.compile("".join(lines))


def test_displayed_output_is_compared() -> None:
    assert pattern(["ID  Name", "…", "a…z"]).fullmatch("ID    Name\none\ntwo\nabcz\n")
    assert not pattern(["ID  Name"]).fullmatch("ID Nam\n")
    assert not pattern(["a"]).fullmatch("a\nb\n")
    assert list(steps('```hcl title="a.hcl"\nb\n```\n')) == [File("a.hcl", "b\n")]
    assert list(steps("```console\n$ a\nb\n$ c\n```\n")) == [Command("a", ["b"]), Command("c", [])]
    with pytest.raises(AssertionError):
        list(steps("```sh\na\n```\n"))


class Reader:
    """Executes the tutorial in a separate directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "daemon.log"
        self._environment = {
            **environment(XDG_CONFIG_HOME=str(directory / "config"), NO_COLOR="1"),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        }
        self._daemon: trio.Process | None = None

    async def follow(self, step: Command | File) -> None:
        match step:
            case File(name, text):
                (self._directory / name).write_text(text)
            case Command(typed, shown) if typed.startswith("steward agent"):
                await self.end()
                self._compare(typed, shown, await self._begin(typed))
            case Command(typed, shown):
                done = None
                with trio.move_on_after(HAPPENS_WITHIN):
                    # A test types faster than a user, so a step may not be at its gate yet.
                    while done is None or TOO_EARLY in done.stdout:
                        done = await trio.run_process(
                            ["/bin/sh", "-c", typed],
                            capture_stdout=True,
                            stderr=subprocess.STDOUT,
                            check=False,
                            cwd=self._directory,
                            env=self._environment,
                        )
                assert done is not None, f"$ {typed}\nhas not ended\n{self._log.read_text()}"
                self._compare(typed, shown, done.stdout.decode())

    def _compare(self, typed: str, shown: list[str], answer: str) -> None:
        if not pattern(shown).fullmatch(answer):
            expected = "\n".join(shown)
            log = self._log.read_text()
            raise AssertionError(f"$ {typed}\n{answer}\ninstead of\n{expected}\nThe log:\n{log}")

    async def _begin(self, typed: str) -> str:
        """Start the daemon as a user does, at free ports; return its first line."""
        places = {"STEWARD_PORT": "0", "STEWARD_DEV_CLOUD_PORT": "0"}
        with self._log.open("wb") as log:
            self._daemon = await trio.lowlevel.open_process(
                typed.split(),
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
                env={**self._environment, **places},
            )
        assert self._daemon.stdout is not None
        line = b""
        with trio.fail_after(READY_WITHIN):
            while not line.endswith(b"\n"):
                piece = await self._daemon.stdout.receive_some()
                assert piece, self._log.read_text()
                line += piece
        said = line.decode()
        self._environment["STEWARD_ADDR"] = said.split()[-1]
        if cloud := re.search("the simulated cloud is at (http://.*)", self._log.read_text()):
            self._environment["STEWARD_CLOUD_METADATA_URL"] = cloud[1]
        return said

    async def end(self) -> None:
        """Press Ctrl-C in the terminal of the daemon."""
        if self._daemon is not None:
            assert self._daemon.stdout is not None
            self._daemon.send_signal(signal.SIGINT)
            with trio.fail_after(HAPPENS_WITHIN):
                await self._daemon.wait()
            await self._daemon.stdout.aclose()
            self._daemon = None


@asynccontextmanager
async def reading(directory: Path) -> AsyncIterator[Reader]:
    reader = Reader(directory)
    try:
        yield reader
    finally:
        with trio.CancelScope(shield=True):
            await reader.end()


async def test_tutorial_commands_have_the_documented_results(tmp_path: Path) -> None:
    async with reading(tmp_path) as reader:
        for step in steps(TUTORIAL.read_text()):
            await reader.follow(step)

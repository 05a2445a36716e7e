"""A short command imports only the necessary modules, because imports take most of its time."""

import subprocess
import sys

import pytest

SLOW = ("asyncio", "difflib", "http", "importlib.metadata", "quart", "rich", "ssl", "trio")
LISTED = "import atexit, sys; atexit.register(lambda: print(*sys.modules, sep='\\n'))"


def imported(*words: str) -> set[str]:
    program = f"{LISTED}; sys.argv[1:] = {list(words)!r}; from daemon.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["version"], set()),
        (["--help"], set()),
        (["help", "job"], set()),
        (["job", "status", "--address", "unix:///nowhere"], {"http", "ssl"}),
    ],
)
def test_short_command_imports_no_slow_module(words: list[str], needed: set[str]) -> None:
    found = imported(*words)
    assert "daemon.cli.core.command_tree" in found
    assert found & set(SLOW) <= needed

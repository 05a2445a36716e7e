"""What bubblewrap is told; `tests/parts/runner/test_exec.py` looks at it from inside."""

import os
from pathlib import Path

import pytest

from daemon.runner.drivers.driver import Attempt
from daemon.runner.drivers.sandbox import HOME, Tools, walls
from daemon.runner.drivers.shim import FILTER

TOOLS = Tools(bwrap="/usr/bin/bwrap", nsenter="/usr/bin/nsenter", setpriv="/usr/bin/setpriv")


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> list[str]:
    """Return the words of bubblewrap's own, for a daemon of this user."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    attempt = Attempt(
        alloc_id="a", task="main", number=0, directory=str(tmp_path), config={}, env={}
    )
    words = walls(TOOLS, attempt, None, HOME, filtered=True)
    return words[: words.index("--")]


def place(words: list[str], *wanted: str) -> int:
    """Return where words stand one after the other. Raises `StopIteration`."""
    size = len(wanted)
    return next(at for at in range(len(words)) if words[at : at + size] == list(wanted))


def test_the_devices_are_those_that_root_may_make(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 0)
    assert "--dev" in words
    assert "--dev-bind" not in words


def test_where_the_task_is_who_we_are_it_cannot_add_to_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 1000)
    assert "--dev" not in words
    closed = place(words, "--remount-ro", "/dev")
    assert place(words, "--tmpfs", "/dev") < place(words, "--symlink", "/proc/self/fd") < closed


def test_the_filter_comes_from_the_descriptor_that_the_shell_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 0)
    assert words[place(words, "--seccomp") + 1] == str(FILTER)

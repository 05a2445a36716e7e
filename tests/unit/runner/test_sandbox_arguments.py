"""Arguments of bubblewrap; `tests/parts/runner/test_exec.py` checks the sandbox from inside."""

import os
from pathlib import Path

import msgspec
import pytest

from daemon.launcher import sandbox, task_start
from daemon.launcher.messages import SandboxSupport
from daemon.launcher.sandbox import around
from daemon.launcher.shim_script import FILTER, Tools
from daemon.launcher.task_start import Starter
from daemon.launcher.user_policy import UserPolicy
from tests.launchers import EVERYTHING
from tests.parts.launcher.conftest import ordered

TOOLS = Tools(
    sh="/bin/sh",
    setsid="/usr/bin/setsid",
    setpriv="/usr/bin/setpriv",
    env="/usr/bin/env",
    bwrap="/usr/bin/bwrap",
    nsenter="/usr/bin/nsenter",
    stat="/usr/bin/stat",
)


def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, work_dir: str = ""
) -> list[str]:
    """Return all arguments before a command, for a launcher of this user."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    folder = os.open(tmp_path, os.O_PATH)
    order = ordered("/bin/true", driver="exec", work_dir=work_dir)
    try:
        return around(
            TOOLS, order, [], None, folder=folder, task="main", filtered=True, alone=False
        )
    finally:
        os.close(folder)


def place(words: list[str], *wanted: str) -> int:
    """Return the index at which these words follow each other. Raises `StopIteration`."""
    size = len(wanted)
    return next(at for at in range(len(words)) if words[at : at + size] == list(wanted))


def test_devices_are_those_that_root_can_create(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 0)
    assert "--dev" in words
    assert "--dev-bind" not in words


def test_task_with_the_user_of_the_daemon_cannot_add_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 1000)
    assert "--dev" not in words
    closed = place(words, "--remount-ro", "/dev")
    assert place(words, "--tmpfs", "/dev") < place(words, "--symlink", "/proc/self/fd") < closed


def test_filter_is_read_from_an_inherited_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 0)
    assert words[place(words, "--seccomp") + 1] == str(FILTER)


def test_working_directory_is_entered_without_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = told(tmp_path, monkeypatch, 0, "/etc/ssl")
    assert place(words, TOOLS.setpriv) < place(words, TOOLS.env, "--chdir=/etc/ssl")
    assert words[place(words, "--chdir") + 1] == "/local"


def starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], *, is_dev: bool = False
) -> Starter:
    """Return a starter whose trials have these results, in this order."""
    policy = msgspec.structs.replace(EVERYTHING, filter=b"filter", is_dev=is_dev)
    found = Starter(policy, str(tmp_path), UserPolicy(policy))
    monkeypatch.setattr(found, "tools", TOOLS)
    monkeypatch.setattr(found, "_try", lambda _: said.pop(0))
    return found


def test_failed_trial_of_the_filter_keeps_the_filter_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = ["", "no sandbox within 10 s", "", ""]
    it, order = starter(tmp_path, monkeypatch, said), ordered("/bin/true", driver="exec")
    found = it.probe()
    assert (found.no_filter, "no sandbox within 10 s" in found.walls) == ("", True)
    assert it._filter(order) == b"filter"
    assert it.probe() == SandboxSupport(tools="", walls="", no_filter="")
    assert not said
    assert it._filter(order) == b"filter"


@pytest.mark.parametrize(("is_dev", "has_filters"), [(True, True), (False, False)])
def test_filter_is_missing_only_in_development_or_on_unsupported_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dev: bool, has_filters: bool
) -> None:
    monkeypatch.setattr(task_start, "supports_filters", lambda: has_filters)
    it = starter(tmp_path, monkeypatch, ["", "it went wrong"], is_dev=is_dev)
    found = it.probe()
    assert found.walls == ""
    assert ("it went wrong" if has_filters else "CONFIG_SECCOMP_FILTER") in found.no_filter
    assert it._filter(ordered("/bin/true", driver="exec")) == b""


def test_daemon_configuration_is_hidden_and_logs_are_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_HIDDEN", ("/etc/ssl",))
    words = told(tmp_path, monkeypatch, 0)
    hidden = place(words, "--tmpfs", "/etc/ssl")
    assert place(words, "--ro-bind", "/etc", "/etc") < hidden
    logs = place(words, "--ro-bind", "../alloc/logs", "/alloc/logs")
    assert place(words, "--bind", "../alloc", "/alloc") < logs < place(words, "--remount-ro", "/")
    assert place(words, "--remount-ro", "/") < place(words, TOOLS.setpriv, "--no-new-privs")

"""Directories of allocations go whole, whoever else is at work on them."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.runner import taskdir
from tests.parts.runner.world import made_for


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory of an allocation with a task."""
    root = tmp_path / "allocation"
    made_for(root, "main")
    return root


def test_what_a_task_has_locked_is_removed_as_well(root: Path) -> None:
    (root / "main" / "local" / "deep").mkdir()
    (root / "main" / "local").chmod(0)
    taskdir.remove(str(root))
    assert not root.exists()


def test_what_a_task_has_made_very_deep_is_removed_as_well(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "main" / "local")
    for _ in range(2 * sys.getrecursionlimit()):
        os.mkdir("d")
        os.chdir("d")
    monkeypatch.undo()
    taskdir.remove(str(root))
    assert not root.exists()


def test_what_another_sweep_removes_meanwhile_is_no_fault(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, walk = shutil.rmtree, os.fwalk

    def vanishing(top: str) -> Iterator[tuple[str, list[str], list[str], int]]:
        for step in walk(top):
            if os.path.lexists(top):
                remove(top)
            yield step

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(os, "fwalk", vanishing)
    taskdir.remove(str(root))
    assert not root.exists()

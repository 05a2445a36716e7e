"""Kills of shims and tasks, with and without a running daemon (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash.matrix import VICTIMS
from tests.crash.matrix_sample import kill_victims


async def test_promises_outlive_kills_of_shims_and_tasks(tmp_path: Path) -> None:
    rows = await kill_victims(tmp_path, VICTIMS)
    assert [row.broken for row in rows if row.broken] == []
    assert [row.point for row in rows] == [*VICTIMS]

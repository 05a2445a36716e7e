"""Kills at effects of task setup: processes, signals and files (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash.matrix_sample import kill_at


async def test_promises_outlive_kills_around_a_task(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["files"], spawn=4, signal=4, file=6)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"spawn", "signal", "file"}

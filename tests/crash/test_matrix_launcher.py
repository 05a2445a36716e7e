"""Kills of the launcher before and after its persistent effects (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash.matrix_sample import kill_launcher

FEW = 10


async def test_promises_outlive_kills_of_the_launcher(tmp_path: Path) -> None:
    rows = await kill_launcher(tmp_path, ["files"], FEW)
    assert [row.broken for row in rows if row.broken] == []
    assert len(rows) == FEW
    assert len({row.point for row in rows if row.is_exact}) > FEW / 2

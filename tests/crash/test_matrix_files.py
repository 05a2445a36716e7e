"""Kills while files are uploaded and kept, and while volumes are created (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash import kill_rounds
from tests.crash.matrix_sample import kill_at

pytestmark = kill_rounds.CUT_OFF


async def test_uploads_survive_kills_at_their_files_and_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["uploads"], file=6, commit=6)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"file", "commit"}


async def test_retained_files_survive_kills_at_their_files_and_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["kept"], file=6, commit=6)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"file", "commit"}


async def test_bulk_volumes_and_operations_on_runs_survive_kills(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["bulk", "volumes", "steered"], commit=8)
    assert [row.broken for row in rows if row.broken] == []

"""Kills at commits while workflows run (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash import kill_rounds
from tests.crash.matrix_sample import kill_at

pytestmark = kill_rounds.CUT_OFF


async def test_runs_continue_after_kills_at_their_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["workflows", "fanned"], commit=14)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"commit"}


async def test_triggers_and_slots_survive_kills_at_their_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["successions"], commit=10)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"commit"}


async def test_slots_of_steps_survive_kills_at_their_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["shared_slots"], commit=10)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"commit"}


async def test_freezes_survive_kills_at_their_commits(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["frozen"], commit=10)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"commit"}

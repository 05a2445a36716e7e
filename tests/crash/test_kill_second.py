"""SIGKILL under load, at random points (`kill_rounds.py`): second part of the rounds."""

from pathlib import Path

import pytest

from tests.crash import kill_rounds

pytestmark = kill_rounds.CUT_OFF


@pytest.mark.parametrize("first", kill_rounds.firsts(1))
async def test_promises_outlive_a_kill(tmp_path: Path, first: int) -> None:
    await kill_rounds.live(tmp_path, first)

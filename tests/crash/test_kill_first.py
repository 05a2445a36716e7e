"""SIGKILL under load, at random points (`rounds.py`): first part of the rounds."""

from pathlib import Path

import pytest

from tests.crash import rounds

pytestmark = rounds.CUT_OFF


@pytest.mark.parametrize("first", rounds.firsts(0))
async def test_promises_outlive_a_kill(tmp_path: Path, first: int) -> None:
    await rounds.live(tmp_path, first)

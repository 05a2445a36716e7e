"""Kills at commits and at requests to the cloud (`matrix_sample.py`)."""

from pathlib import Path

from tests.crash.matrix_sample import kill_at


async def test_promises_outlive_kills_around_commits_and_the_cloud(tmp_path: Path) -> None:
    rows = await kill_at(tmp_path, ["deployments", "logins"], commit=10, network=4)
    assert [row.broken for row in rows if row.broken] == []
    assert {row.kind for row in rows if row.is_exact} == {"commit", "network"}

"""The usage history of a running daemon."""

from pathlib import Path

import trio

from tests.service.daemon import HAPPENS_WITHIN, Steward, open_steward
from tests.service.test_daemon_lifecycle import service


def _is_measured(shown: dict) -> bool:
    return any(
        item is not None
        for series in shown["Series"]
        if series["Task"]
        for item in series["CPUPercent"]
    )


async def test_watched_allocation_is_measured_every_second(steward: Steward) -> None:
    await steward.run_job(service())
    (one,) = await steward.allocations("web", "running")
    asked = {"from": "1m", "step": "1s"}
    with trio.fail_after(HAPPENS_WITHIN):
        while not _is_measured(
            found := await steward.get(f"/v1/allocation/{one['ID']}/history", **asked)
        ):
            await trio.lowlevel.checkpoint()
    assert (found["Enabled"], found["Step"]) == (True, 1)
    assert max(item or 0 for item in found["Series"][0]["Memory"]) > 0


async def test_setting_turns_the_history_off(tmp_path: Path) -> None:
    settings = tmp_path / "steward.toml"
    settings.write_text("usage_history = false\n")
    async with open_steward(tmp_path, "--dev", f"--config={settings}") as steward:
        (node,) = await steward.get("/v1/nodes")
        found = await steward.get(f"/v1/node/{node['ID']}/history")
        assert (found["Enabled"], found["Series"]) == (False, [])

"""The daemon takes over the data directory of the first version that had a store.

`recorded/version-0001.tar.gz` is that directory after a kill of its daemon: the dump of the store,
the allocation directories, the root key and the bootstrap token. Its tasks ended with their host.
"""

import sqlite3
import tarfile
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME
from tests.service.daemon import Steward, open_steward

RECORDED = Path(__file__).parent / "recorded/version-0001.tar.gz"
READER = "6557e046-169a-418b-8389-02dc9e9c662a"  # a token of the recorded store


def unpack(tmp_path: Path) -> Path:
    """Unpack the recorded data directory and its root key; return the data directory."""
    data = tmp_path / "data"
    with tarfile.open(RECORDED) as archive:
        archive.extractall(data, filter="fully_trusted")  # noqa: S202  # an archive of the repository, with modes
    dump = data / "steward.sql"
    with closing(sqlite3.connect(data / FILE_NAME, isolation_level=None)) as connection:
        connection.executescript(dump.read_text())
    dump.unlink()
    (data / FILE_NAME).chmod(0o600)
    (data / "root.key").rename(tmp_path / "root.key")
    return data


@pytest.fixture
async def upgraded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon on the recorded data directory."""
    unpack(tmp_path)
    async with open_steward(tmp_path, "--socket", "none") as steward:
        yield steward


async def test_upgrade_from_the_first_store_retains_jobs_tokens_and_secrets(
    upgraded: Steward,
) -> None:
    jobs = {item["ID"] for item in await upgraded.get("/v1/jobs")}
    assert {"done", "many", "nightly", "once", "walled", "web"} <= jobs
    versions = (await upgraded.get("/v1/job/web/versions"))["Versions"]
    assert [(version["Version"], version["Meta"]) for version in versions] == [
        (1, {"v": "2"}),
        (0, None),
    ]
    assert (await upgraded.get("/v1/var/app/db"))["Items"] == {"password": "x"}
    upgraded.token = READER
    assert (await upgraded.get("/v1/job/web"))["Version"] == 1
    assert (await upgraded.request("DELETE", "/v1/job/web")).status_code == 403


async def test_upgrade_copies_the_first_store_and_retains_logs(upgraded: Steward) -> None:
    assert (store_dir(upgraded.data_dir) / f"{FILE_NAME}.version-0001").exists()
    (one,) = await upgraded.get("/v1/job/done/allocations")
    assert one["ClientStatus"] == "complete"
    assert await upgraded.log_of(one["ID"], "main") == "hello\n"


async def test_upgrade_from_the_first_store_restarts_a_task_that_ended_with_its_host(
    upgraded: Steward,
) -> None:
    def is_restarted(shown: dict[str, dict[str, dict[str, object]]]) -> bool:
        state = shown["TaskStates"]["main"]
        return (state["State"], state["Restarts"]) == ("running", 1)

    allocs = await upgraded.get("/v1/job/web/allocations")
    (wanted,) = [alloc["ID"] for alloc in allocs if alloc["DesiredStatus"] == "run"]
    shown = await upgraded.until(f"/v1/allocation/{wanted}", is_restarted)
    kinds = [event["Type"] for event in shown["TaskStates"]["main"]["Events"]]
    assert kinds[:3] == ["Received", "Task Setup", "Started"]
    assert kinds[-1] == "Started"
    assert {"Terminated", "Restarting"} <= set(kinds)


async def test_first_store_is_not_migrated_without_its_root_key(tmp_path: Path) -> None:
    data = unpack(tmp_path)
    (tmp_path / "root.key").write_text("00" * 32)
    with pytest.raises(AssertionError, match="was not sealed with"):
        async with open_steward(tmp_path, "--socket", "none"):
            pass
    with closing(sqlite3.connect(store_dir(data) / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert list(store_dir(data).glob("*.version-*")) == []

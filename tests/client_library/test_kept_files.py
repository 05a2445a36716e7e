"""Kept files: listed, and downloaded with their digests verified."""

import os
from pathlib import Path

import pytest
import trio
from steward_client import Client, InvalidResponse, KeptFile, NotFound

from tests.client_library.programs import Backend
from tests.service.daemon import Steward

SIZE = 300_000


def job() -> dict[str, object]:
    script = f"mkdir out; head -c {SIZE} /dev/zero > out/zeros; echo a > out/a"
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Resources": {"CPU": 20, "MemoryMB": 20},
        "Meta": {"steward_keep": "out/*"},
    }
    group = {"Name": "group", "Tasks": [task]}
    return {"ID": "keeps", "Type": "batch", "TaskGroups": [group]}


async def test_retained_files_are_saved(backend: Backend, steward: Steward, tmp_path: Path) -> None:
    await steward.register(job())
    (allocation,) = await steward.allocations("keeps", "complete")

    async def program(client: Client) -> list[KeptFile]:
        files = await client.kept_files(allocation["ID"])
        small, large = files
        await client.save_kept(allocation["ID"], large, tmp_path / "zeros")
        wrong = KeptFile(task="main", path="out/zeros", digest=small.digest)
        with pytest.raises(InvalidResponse):
            await client.save_kept(allocation["ID"], wrong, tmp_path / "wrong")
        missing = KeptFile(task="main", path="out/none")
        with pytest.raises(NotFound):
            await client.save_kept(allocation["ID"], missing, tmp_path / "none")
        return files

    found = await backend.with_client(steward, program)
    assert [(file.task, file.path, file.size) for file in found] == [
        ("main", "out/a", 2),
        ("main", "out/zeros", SIZE),
    ]
    assert await trio.Path(tmp_path / "zeros").read_bytes() == bytes(SIZE)
    assert not {"wrong", "none", ".wrong.unfinished"} & {*os.listdir(tmp_path)}

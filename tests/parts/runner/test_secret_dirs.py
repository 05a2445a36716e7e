"""Secrets of tasks in memory: as long as their allocation lives, and no longer."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.runner.secret_dirs import SecretDirs, mounted
from storage.records.task import SecretsConfig, Template
from storage.store import Store
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import Pipe, World, batch, open_world, script


def may_mount(directory: Path) -> bool:
    """Tell whether this machine lets us mount at all; containers often do not."""
    words = ["mount", "-t", "tmpfs", "steward", directory]
    if os.geteuid() != 0 or subprocess.run(words, check=False).returncode:
        return False
    subprocess.run(["umount", directory], check=True)
    return True


@pytest.fixture(autouse=True)
def can_mount(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this machine lets us mount nothing")


pytestmark = needs_root

LETTER = Template(embedded_tmpl="hidden", dest_path="secrets/letter", change_mode="noop", splay=0)


def waiting(pipe: Pipe, **fields: Any) -> Any:
    text = f"stat -f -c %T secrets > {pipe.path}; exec sleep 600"
    return batch(script(text, **{"templates": [LETTER], **fields}))


async def until_unmounted(world: World) -> None:
    """Return when nothing is mounted any more: nobody tells, so it is looked for."""
    while mounted(str(world.config.data_dir)):  # noqa: ASYNC110
        await trio.sleep(0.005)


async def test_secrets_lie_in_memory_until_the_allocation_ends(world: World, pipe: Pipe) -> None:
    alloc_id = await world.place(waiting(pipe))
    assert await pipe.line() == "tmpfs"
    secrets = world.directory(alloc_id) / "main/secrets"
    assert mounted(str(world.config.data_dir)) == [str(secrets)]
    assert (secrets / "letter").read_text() == "hidden"
    await world.stop(alloc_id)
    await until_unmounted(world)
    assert list(secrets.iterdir()) == []


async def test_a_task_without_secrets_has_a_plain_directory(world: World, pipe: Pipe) -> None:
    await world.place(waiting(pipe, templates=None))
    assert await pipe.line()
    assert mounted(str(world.config.data_dir)) == []


async def test_the_next_daemon_finds_them_and_ends_them(
    store: Store, data_dir: Path, pipe: Pipe
) -> None:
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(waiting(pipe, secrets_config=SecretsConfig()))
        assert await pipe.line() == "tmpfs"
        await world.until_status(alloc_id, "running")
    token = world.directory(alloc_id) / "main/secrets/vault_token"
    before = token.read_text()
    async with open_world(store, data_dir) as world:
        await world.until_status(alloc_id, "running")
        assert token.read_text() == before
        await world.stop(alloc_id)
        await until_unmounted(world)


async def test_what_a_daemon_did_not_live_to_unmount_the_next_one_does(
    store: Store, data_dir: Path
) -> None:
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(batch(script("exit 0")))
        await world.until_done(alloc_id)
        secrets = world.directory(alloc_id) / "main/secrets"
    await SecretDirs(str(world.config.alloc_dir)).seclude(str(secrets), 0, None)
    assert mounted(str(data_dir)) == [str(secrets)]
    async with open_world(store, data_dir) as world:
        await until_unmounted(world)


async def test_a_directory_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a/main/secrets/x").mkdir(parents=True)
    await SecretDirs(str(tmp_path)).seclude(str(tmp_path / "a/main/secrets"), 0)
    assert mounted(str(tmp_path)) == []


async def test_a_directory_that_a_task_has_removed_is_no_fault_of_ours(tmp_path: Path) -> None:
    (tmp_path / "a/main").mkdir(parents=True)
    dirs = SecretDirs(str(tmp_path))
    await dirs.seclude(str(tmp_path / "a/main/secrets"), 0)
    (tmp_path / "a/main/secrets").write_text("not a directory")
    await dirs.seclude(str(tmp_path / "a/main/secrets"), 0)
    assert dirs.allocations() == set()


async def test_nothing_is_mounted_where_a_link_leads(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "a/main").mkdir(parents=True)
    (tmp_path / "a/main/secrets").symlink_to(elsewhere)
    dirs = SecretDirs(str(tmp_path))
    await dirs.seclude(str(tmp_path / "a/main/secrets"), 0)
    assert mounted(str(tmp_path)) == []
    assert dirs.allocations() == set()


async def test_a_name_that_the_kernel_escapes_is_understood(tmp_path: Path) -> None:
    place = tmp_path / "a b\tc\\d" / "main/secrets"
    place.mkdir(parents=True)
    dirs = SecretDirs(str(tmp_path))
    await dirs.seclude(str(place), 0)
    assert mounted(str(tmp_path)) == [str(place)]
    await dirs.release()
    assert mounted(str(tmp_path)) == []

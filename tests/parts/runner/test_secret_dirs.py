"""Secrets of tasks in memory: they exist exactly as long as the allocation."""

import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.launcher.client import Launcher
from daemon.launcher.secrets_tmpfs import mounted
from daemon.runner.node import NodeRunner
from daemon.runner.setup.secrets_tmpfs import SecretsTmpfs
from storage.records.task import SecretsConfig, Template
from storage.store import Store
from tests import launchers
from tests.parts.launcher.conftest import ALLOCATION
from tests.parts.launcher.test_directories import swapping
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.world import Pipe, World, batch, open_world, script


def may_mount(directory: Path) -> bool:
    """Return whether this host permits mounts; containers often do not."""
    words = ["mount", "-t", "tmpfs", "steward", directory]
    if os.geteuid() != 0 or subprocess.run(words, check=False).returncode:
        return False
    subprocess.run(["umount", directory], check=True)
    return True


@pytest.fixture(autouse=True)
def can_mount(tmp_path: Path) -> None:
    if not may_mount(tmp_path):
        pytest.skip("this host permits no mounts")


pytestmark = needs_root

LETTER = Template(embedded_tmpl="hidden", dest_path="secrets/letter", change_mode="noop", splay=0)


def waiting(pipe: Pipe, **fields: Any) -> Any:
    text = f"stat -f -c %T secrets > {pipe.path}; exec sleep 600"
    return batch(script(text, **{"templates": [LETTER], **fields}))


async def until_unmounted(world: World) -> None:
    """Poll until nothing is mounted any more."""
    while mounted(str(world.config.data_dir)):  # noqa: ASYNC110  # no event reports it
        await trio.sleep(0.005)


async def test_secrets_stay_in_memory_until_the_allocation_ends(world: World, pipe: Pipe) -> None:
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


async def test_next_daemon_finds_and_removes_secrets_directories(
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


async def test_daemon_keeps_the_secrets_of_tasks_that_are_not_recovered_yet(
    store: Store, data_dir: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(waiting(pipe))
        assert await pipe.line() == "tmpfs"
        await world.until_status(alloc_id, "running")
    secrets, tidy, tidied = (
        world.directory(alloc_id) / "main/secrets",
        NodeRunner._tidy,
        trio.Event(),
    )

    async def tidy_and_tell(self: NodeRunner) -> None:
        await tidy(self)
        tidied.set()

    with monkeypatch.context() as patched:
        patched.setattr(NodeRunner, "_sync", lambda _: None)
        patched.setattr(NodeRunner, "_tidy", tidy_and_tell)
        async with open_world(store, data_dir):
            await tidied.wait()
            assert (secrets / "letter").read_text() == "hidden"
    async with open_world(store, data_dir) as world:
        await world.stop(alloc_id)
        await until_unmounted(world)


async def test_next_daemon_unmounts_mounts_of_a_killed_daemon(store: Store, data_dir: Path) -> None:
    async with open_world(store, data_dir) as world:
        alloc_id = await world.place(batch(script("exit 0")))
        await world.until_done(alloc_id)
        secrets = world.directory(alloc_id) / "main/secrets"
    async with launchers.open_launcher(world.config.alloc_dir) as launcher:
        await launcher.mount_secrets(alloc_id, "main", 0)
    assert mounted(str(data_dir)) == [str(secrets)]
    async with open_world(store, data_dir) as world:
        await until_unmounted(world)


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Launcher]:
    async with launchers.open_launcher(tmp_path / "a b\tc\\d") as opened:  # the kernel escapes this
        yield opened


@pytest.fixture
def task(alone: Launcher, tmp_path: Path) -> Path:
    """The directory of a task."""
    found = tmp_path / "a b\tc\\d" / ALLOCATION / "main"
    (found / "secrets").mkdir(parents=True)
    return found


async def test_secrets_mount_keeps_the_owner_of_the_directory(alone: Launcher, task: Path) -> None:
    os.chown(task / "secrets", 7, 8)
    (task / "secrets").chmod(0o700)
    for _ in range(2):
        await alone.mount_secrets(ALLOCATION, "main", 0)
    assert mounted(str(task)) == [str(task / "secrets")]
    found = (task / "secrets").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (7, 8, 0o700)
    flags = os.statvfs(task / "secrets").f_flag
    assert flags & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC) == 14
    await alone.reveal(ALLOCATION)
    assert mounted(str(task)) == []


async def test_files_in_memory_are_removed_with_their_allocation(
    alone: Launcher, task: Path
) -> None:
    await alone.mount_secrets(ALLOCATION, "main", 0)
    await alone.remove(ALLOCATION)
    assert mounted(str(task.parent.parent)) == []
    assert not task.parent.exists()


async def test_nonempty_directory_or_file_is_left_alone(
    alone: Launcher, task: Path, tmp_path: Path
) -> None:
    dirs, secrets = SecretsTmpfs(str(task.parent.parent), alone), task / "secrets"
    (secrets / "x").touch()
    await dirs.mount_secrets(ALLOCATION, "main", 0)
    secrets.rename(tmp_path / "elsewhere")
    await dirs.mount_secrets(ALLOCATION, "main", 0)
    (tmp_path / "elsewhere/x").unlink()
    secrets.symlink_to(tmp_path / "elsewhere")
    await dirs.mount_secrets(ALLOCATION, "main", 0)
    secrets.unlink()
    secrets.touch()
    await dirs.mount_secrets(ALLOCATION, "main", 0)
    assert mounted(str(tmp_path)) == []
    await dirs.release(ALLOCATION)
    assert dirs.allocations() == set()


async def test_link_swapped_in_is_not_used_as_a_mount_point(
    alone: Launcher, task: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with swapping(task / "secrets", outside):
        for _ in range(100):
            with suppress(OSError):  # a refused mount also passes the test
                await alone.mount_secrets(ALLOCATION, "main", 0)
            await alone.reveal(ALLOCATION)
    assert str(outside) not in mounted(str(tmp_path))
    await alone.reveal(ALLOCATION)
    assert mounted(str(tmp_path)) == []
    await alone.reveal(ALLOCATION)

"""A local user without a token tries to read files of tasks, and to run programs in them."""

import subprocess
from functools import partial
from pathlib import Path

import pytest
import trio

from storage.records.task import Lifecycle, Template
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.test_artifacts import names_below
from tests.parts.runner.test_secret_dirs import until_unmounted
from tests.parts.runner.world import World, batch, script

pytestmark = needs_root
STRANGER = 54321
BEFORE = Lifecycle(hook="prestart")
LETTER = Template(embedded_tmpl="hidden", dest_path="secrets/f", change_mode="noop", perms="666")
# A task leaves a file in each of its directories, and makes the directories accessible to all
# users.
KEPT = "for d in {local} {alloc} {alloc}/data; do echo kept > $d/f; chmod 777 $d; done 2>/dev/null"
PLACES = {
    "raw_exec": {"local": "local", "alloc": "../alloc"},
    "exec": {"local": "/local", "alloc": "/alloc"},
}
BELOW = (
    *("", "/alloc", "/alloc/data", "/alloc/tmp", "/alloc/logs"),
    *("/main", "/main/local", "/main/secrets", "/main/private", "/main/tmp"),
)


async def as_stranger(directory: Path, text: str) -> str:
    """Return the output of another user's shell, which begins in the directory of all
    allocations."""
    words = ["/bin/sh", "-c", text]
    run = partial(
        subprocess.run,
        words,
        cwd=directory,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    done = await trio.to_thread.run_sync(run)
    return str(done.stdout.decode(errors="replace"))


@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize(
    ("driver", "user"), [("raw_exec", ""), ("raw_exec", "nobody"), ("exec", ""), ("exec", "daemon")]
)
async def test_local_user_can_neither_read_nor_change_task_data(
    node: World, driver: str, user: str
) -> None:
    text = f"umask 0; {KEPT.format(**PLACES[driver])}; test -e {PLACES[driver]['alloc']}/data/f && echo written; exec sleep 600"
    main = script(text, driver=driver, user=user, templates=[LETTER])
    alloc_id = await node.place(batch(main))
    await node.until_printed(alloc_id, "written")
    places = [f"{alloc_id}{below}" for below in BELOW]
    tries = [f"ls -a {place}; touch {place}/planted; mv {place} {place}.gone" for place in places]
    tries += [f"cat {place}/f" for place in places]
    before = names_below(node.directory(alloc_id))
    assert alloc_id not in await as_stranger(Path("/"), "cat /proc/[0-9]*/cmdline")
    assert await as_stranger(node.config.alloc_dir, "; ".join(tries)) == ""
    assert names_below(node.directory(alloc_id)) == before
    await node.stop(alloc_id)
    await node.until_done(alloc_id)
    await until_unmounted(node)


async def test_secrets_in_memory_belong_to_the_user_of_the_task(node: World) -> None:
    text = "stat -f -c %T secrets; stat -c '%U %a' secrets"
    alloc_id = await node.place(batch(script(text, user="nobody", templates=[LETTER])))
    await node.until_done(alloc_id)
    assert node.output(alloc_id) == "tmpfs\nnobody 700\n"
    await until_unmounted(node)


async def test_tasks_with_several_users_share_files_closed_to_other_users(
    node: World,
) -> None:
    first = script("echo one > ../alloc/data/f", "first", user="nobody", lifecycle=BEFORE)
    second = script("cat ../alloc/data/f", user="daemon")
    alloc_id = await node.place(batch(first, second))
    await node.until_done(alloc_id)
    assert node.output(alloc_id) == "one\n"
    seen = await as_stranger(node.config.alloc_dir, f"cat {alloc_id}/alloc/data/f; ls {alloc_id}")
    assert seen == ""


@pytest.mark.usefixtures("walls")
@pytest.mark.parametrize(("driver", "bits"), [("exec", "-rwxr-xr-x"), ("raw_exec", "-rwsr-sr-x")])
async def test_set_uid_program_of_a_task_is_unusable_for_local_users(
    node: World, driver: str, bits: str
) -> None:
    """With `exec`, the filter refuses the set-user-ID bit.

    With `raw_exec`, no other user reaches the program.
    """
    places = " ".join(PLACES[driver].values())
    text = f"for d in {places}; do cp /bin/dash $d/sh; chmod 6755 $d/sh; ls -l $d/sh; done"
    alloc_id = await node.place(batch(script(text, driver=driver, user="daemon")))
    await node.until_done(alloc_id)
    assert {line.split()[0] for line in node.output(alloc_id).splitlines()} == {bits}
    tries = [f"{alloc_id}{below}/sh -p -c 'id -u'" for below in BELOW]
    assert await as_stranger(node.config.alloc_dir, "; ".join(tries)) == ""

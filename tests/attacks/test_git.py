"""If a hostile server takes over git, git reaches neither the daemon nor the host."""

import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.net.http_client import HttpError
from daemon.runner.setup.artifacts.archive import ArchiveLimits, BadArchive
from daemon.runner.setup.artifacts.fetch import ArtifactFetcher, FetchFailed
from daemon.runner.setup.artifacts.git import GitClient, LocalGit, read_output
from daemon.runner.setup.artifacts.git_sandbox import SandboxedGit
from tests.parts.runner.conftest import data_dir, needs_root
from tests.parts.runner.git_sandboxes import UIDS, Sandboxes, sandboxes
from tests.parts.runner.test_artifacts import (
    LIMITS,
    MEGABYTE,
    Site,
    fetcher,
    order,
    root,
    site,
    there,
)
from tests.parts.runner.test_repositories import Repository, repository
from tests.time_limits import HAPPENS_WITHIN

__all__ = ["data_dir", "repository", "root", "site"]  # fixtures
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
Fetching = Callable[..., ArtifactFetcher]
# Prints the properties of the sandbox in which the shell runs.
LOOK = """\
id -u; id -G
grep -E '^(NoNewPrivs|CapEff|CapBnd|Seccomp):' /proc/self/status | tr -d '\t'
env | cut -d= -f1 | sort | xargs
ls / | xargs
ls /proc | grep -c '^[0-9]'
ls -A /local /secrets /alloc /alloc/data | xargs
"""


@pytest.fixture
async def opener(data_dir: Path) -> AsyncIterator[Sandboxes]:
    async with sandboxes(data_dir / "host") as opened:
        yield opened


@pytest.fixture
async def workshop(data_dir: Path) -> Path:
    made = data_dir / "workshop"
    made.mkdir()
    return made


@pytest.fixture
async def place(opener: Sandboxes, workshop: Path) -> AsyncIterator[SandboxedGit]:
    """A sandbox; tests run a shell instead of git in it."""
    async with opener.open(str(workshop)) as opened:
        yield opened


@pytest.fixture
def fetching(opener: Sandboxes) -> Fetching:
    return partial(fetcher, seconds=HAPPENS_WITHIN, git_sandbox=lambda: opener)


async def said(place: SandboxedGit, text: str, status: int | None = 0) -> str:
    """Return the output of a shell in the sandbox."""
    found = bytearray()

    def keep(piece: bytes) -> bool:
        found.extend(piece)
        return False

    async with place.run(["/bin/sh", "-c", f"exec 2>&1; {text}"], place.env) as process:
        await read_output(process, "stdout", keep)
        ended = await process.wait()
    assert status is None or ended == status, found
    return found.decode()


def processes_of(uids: range) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid in uids:
                found.append(int(name))
        except OSError:
            continue
    return found


async def until_gone() -> None:
    with trio.fail_after(HAPPENS_WITHIN):
        while processes_of(UIDS):  # noqa: ASYNC110  # nobody rings
            await trio.sleep(0.01)


@needs_root
async def test_git_has_its_own_user_and_nothing_of_the_host(place: SandboxedGit) -> None:
    uid, groups, *status, names, top, processes, own = (await said(place, LOOK)).splitlines()
    assert int(uid) in UIDS
    assert groups == uid
    assert status == ["CapEff:0000000000000000", "CapBnd:0000000000000000", *status[2:]]
    assert status[2:] == ["NoNewPrivs:1", "Seccomp:2"]
    assert {*names.split()} <= {"PATH", "PWD", "HOME", "USER", "LOGNAME", "OLDPWD", "_"}
    shown = {
        "alloc",
        "bin",
        "dev",
        "etc",
        "lib",
        "lib64",
        "local",
        "proc",
        "sbin",
        "secrets",
        "tmp",
    }
    assert {*top.split()} <= {*shown, "lib32", "libx32", "run", "usr"}
    assert int(processes) < 12  # only processes of the sandbox are visible
    assert own.split() == ["/alloc:", "data", "logs", "tmp", "/alloc/data:", "/local:", "/secrets:"]


@needs_root
@pytest.mark.parametrize(
    "text",
    [
        "cat {store}/secret",
        "ls {store}",
        "ls {alloc}",
        "cat /etc/shadow",
        "ls /etc/steward/*",
        "echo x >/etc/passwd",
        "echo x >/usr/bin/x",
        "mount -t tmpfs none /tmp",
        "unshare -r id",
        "chroot / id",
        "kill -9 1",
        "mknod /local/d c 1 1",
    ],
)
async def test_git_cannot_leave_its_sandbox(
    place: SandboxedGit, opener: Sandboxes, data_dir: Path, text: str
) -> None:
    store = data_dir / "store"
    store.mkdir()
    store.chmod(0o755)
    (store / "secret").write_text("secret of the daemon")
    (store / "secret").chmod(0o644)
    words = text.format(store=store, alloc=opener.alloc_dir)
    answer = await said(place, f"if {words}; then echo DONE; fi", None)
    assert "DONE" not in answer
    assert "secret of" not in answer
    assert (store / "secret").exists()


@needs_root
async def test_key_is_readable_by_the_user_of_the_sandbox_only(
    place: SandboxedGit, opener: Sandboxes
) -> None:
    path = await place.keep_key(b"a key")
    assert (
        await said(place, f'test "$(stat -c %u:%a {path})" = "$(id -u):600"; cat {path}') == "a key"
    )
    (alloc_id,) = opener.present
    found = (opener.alloc_dir / alloc_id / "git/secrets/key").stat()
    assert (found.st_uid in UIDS, stat.S_IMODE(found.st_mode)) == (True, 0o600)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("mkfifo tree/f", "neither a file nor a directory"),
        ("echo x >tree/a && ln tree/a tree/b", "neither a file nor a directory"),
        ("ln -s /etc/shadow tree/l", "points outside the a"),
        ("ln -s ../../key tree/l", "points outside the a"),
        ("rm -r tree && ln -s /etc tree", "."),
        ("head -c 9000000 /dev/zero >tree/f", "more than .* bytes were packed"),
        ("cd tree && seq 60 | xargs touch", "more than 51 files"),
        ("rm -r tree", "tar ended with status"),
    ],
)
async def test_files_of_a_hostile_git_are_not_trusted(
    place: SandboxedGit, workshop: Path, make: str, words: str
) -> None:
    await said(place, f"cd /local && mkdir tree && {make}")
    with pytest.raises((BadArchive, HttpError, OSError), match=words):
        await place.deliver(str(workshop / "tree"), LIMITS)
    if (workshop / "tree").exists():
        assert not any(one.is_symlink() for one in (workshop / "tree").rglob("*"))


@pytest.mark.parametrize(
    "listed", ["\\0\\0", "\\t\\0", "x\\ty\\0", f"100644 blob aa {'9' * 5000}\\ty\\0"], ids=len
)
async def test_malformed_file_list_is_refused(workshop: Path, listed: str, data_dir: Path) -> None:
    """A compromised git prints a text that is not a list of files."""
    script = f"""#!/bin/sh
case "$*" in
*--version*) echo git version 2.40 ;;
*ls-tree*) printf '{listed}' ;;
esac
"""
    programs = data_dir / "programs"
    programs.mkdir()
    (programs / "git").write_text(script)
    (programs / "git").chmod(0o755)
    place = LocalGit(str(workshop), str(workshop / "tree"))
    place.path = f"{programs}:{place.path}"
    client = GitClient(place, ("h", 80, "192.0.2.1"), "", verify=True)
    with pytest.raises(BadArchive, match="in an unexpected format"):
        await client.clone("http://h/r.git", "", "", LIMITS, lambda _: None)


async def test_modes_and_links_are_preserved(place: SandboxedGit, workshop: Path) -> None:
    make = "mkdir -p tree/d tree/.git && echo x >tree/d/run && chmod 755 tree/d/run && ln -s d/run tree/l"
    await said(place, f"cd /local && {make} && chmod 6777 tree/d || true")
    await place.deliver(str(workshop / "tree"), ArchiveLimits(bytes=MEGABYTE, files=3))
    tree = workshop / "tree"
    assert sorted(str(one.relative_to(tree)) for one in tree.rglob("*")) == ["d", "d/run", "l"]
    assert stat.S_IMODE((workshop / "tree/d/run").stat().st_mode) == 0o755
    assert os.readlink(workshop / "tree/l") == "d/run"


async def test_disk_usage_is_measured_independently_of_git(place: SandboxedGit) -> None:
    before = await place.used(0)
    await said(place, "head -c 3000000 /dev/zero >/tmp/hidden")
    assert await place.used(0) >= before + 3_000_000


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("git::ext::sh -c id", {}, "is not supported"),
        ("git::file:///etc", {}, "is not supported"),
        ("git::--upload-pack=id", {}, "is not supported"),
        ("git::-c core.sshCommand=id", {}, "is not supported"),
        (
            "git::http://127.0.0.1:9/r.git",
            {"ref": "--upload-pack=id"},
            "not the name of a revision",
        ),
        ("git::http://127.0.0.1:9/r.git", {"depth": "1 --upload-pack=id"}, "is not a number"),
        ("git::ssh://-oProxyCommand=id/r.git", {}, "."),
    ],
)
async def test_source_cannot_inject_an_option(
    fetching: Fetching, opener: Sandboxes, root: Path, source: str, options: Any, words: str
) -> None:
    with pytest.raises(FetchFailed, match=words):
        await fetching().fetch(order(root, source, getter_options=options))
    assert opener.present == set()
    assert there(root) == []


async def test_hostile_repository_cannot_execute_code(
    fetching: Fetching, site: Site, root: Path, repository: Repository
) -> None:
    """Git treats hooks, filters, submodules and settings like other files, or ignores them."""
    repository.commit("* filter=evil diff=evil merge=evil\n", ".gitattributes")
    repository.commit('[submodule "s"]\n\tpath = s\n\turl = --upload-pack=id\n', ".gitmodules")
    head = repository.commit("text")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},s")
    repository.git("commit", "-qm", "submodule")
    hook = repository.path / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    await fetching().fetch(order(root, repository.show(site)))
    assert there(root) == [".gitattributes", ".gitmodules", "f", "s"]
    assert not any("upload-pack=id" in one for one in site.asked)


async def test_ssh_runs_in_the_sandbox(
    fetching: Fetching, root: Path, nursery: trio.Nursery
) -> None:
    """The server of this test reads the name of the client, and closes the connection."""
    if shutil.which("ssh") is None:
        pytest.skip("ssh is not installed")
    banners: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            banners.append(bytes(await stream.receive_some()))

    (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, 0)
    port = listener.socket.getsockname()[1]
    wanted = order(
        root, f"git::ssh://git@127.0.0.1:{port}/r.git", getter_options={"sshkey": "a2V5"}
    )
    with pytest.raises(FetchFailed, match="git: "):
        await fetching().fetch(wanted)
    assert banners[0].startswith(b"SSH-2.0-")


# ---- lifetime ------------------------------------------------------------------------------------


@needs_root
async def test_cancelled_fetch_leaves_neither_processes_nor_files(
    fetching: Fetching, opener: Sandboxes, site: Site, root: Path, nursery: trio.Nursery
) -> None:
    site.pages["/r.git/info/refs"] = b"hang"
    source = f"git::{site.url('/r.git')}"
    # The daemon sends the first request, to find redirects, and gets an answer. Only Git's request
    # hangs.
    site.put("/r.git/info/refs", b"", 200)
    site.pages["/r.git/HEAD"] = b"hang"
    with trio.CancelScope() as scope:

        async def stop() -> None:
            with trio.fail_after(HAPPENS_WITHIN):
                while not any("GET /r.git/HEAD" in one for one in site.asked):  # noqa: ASYNC110  # no event reports it
                    await trio.sleep(0.01)
            assert processes_of(UIDS)
            scope.cancel()

        nursery.start_soon(stop)
        await fetching().fetch(order(root, source))
    assert scope.cancelled_caught
    await until_gone()
    assert opener.present == set()
    assert [one for one in opener.alloc_dir.iterdir() if not one.name.startswith(".")] == []


@needs_root
async def test_sandbox_ends_with_its_daemon(
    opener: Sandboxes, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test closes the leash, because the kernel closes the descriptors of a dead daemon.

    The leash is a shell in the sandbox. When its standard input is closed, the shell kills all
    processes of the sandbox.
    """
    leashes: list[Any] = []
    before = Sandboxes._open_leash

    async def keep(self: Any, attempt: Any) -> Any:
        leashes.append(await before(self, attempt))
        return leashes[-1]

    monkeypatch.setattr(Sandboxes, "_open_leash", keep)
    async with opener.open(str(workshop)) as place:
        await said(place, "(setsid sleep 600 &) >/dev/null 2>&1")
        with trio.fail_after(HAPPENS_WITHIN):
            while len(processes_of(UIDS)) < 3:  # noqa: ASYNC110  # the leash has just begun
                await trio.sleep(0.01)
        await leashes[0].end_input()
        await until_gone()


@needs_root
async def test_concurrent_sandboxes_have_different_users(
    opener: Sandboxes, place: SandboxedGit, workshop: Path
) -> None:
    async with opener.open(str(workshop)) as other:
        assert await said(place, "id -u") != await said(other, "id -u")
        text = "head -c 9 /local/f; kill -0 -1"
        await said(other, "echo secret >/local/f")
        assert "secret" not in await said(place, text, None)

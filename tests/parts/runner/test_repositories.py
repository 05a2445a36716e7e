"""Git repositories as artifacts: cloned over HTTP, limited, and without redirects."""

import base64
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
import trio

from daemon.runner.setup.artifacts import git
from daemon.runner.setup.artifacts.archive import ArchiveLimits
from daemon.runner.setup.artifacts.fetch import ArtifactFetcher, FetchFailed
from storage.store import Store
from tests.parts.runner.conftest import needs_root
from tests.parts.runner.git_sandboxes import sandboxes
from tests.parts.runner.test_artifacts import MEGABYTE, Site, order, root, site, there
from tests.parts.runner.test_artifacts import fetcher as plain
from tests.parts.runner.world import batch, open_world, script
from tests.time_limits import HAPPENS_WITHIN

__all__ = ["root", "site"]  # fixtures

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


class Repository:
    """A git repository, and its files for a web server that does not know git's protocol."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.path = home / "repo"
        self.path.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, said: bytes = b"") -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words],
            cwd=self.path,
            env={"PATH": os.environ["PATH"], "HOME": str(self._home)},
            check=True,
            capture_output=True,
            input=said,
        )
        return done.stdout.decode().strip()

    def commit(self, text: str, name: str = "f") -> str:
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)
        self.git("add", name)
        self.git("commit", "-qm", text[:10])
        return self.git("rev-parse", "HEAD")

    def write(self, content: bytes, name: str) -> None:
        """Commit a file unchanged, regardless of the repository's attributes."""
        blob = self.git("hash-object", "-w", "--stdin", said=content)
        self.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
        self.git("commit", "-qm", name)

    def show(self, site: Site, at: str = "/r.git") -> str:
        self.git("update-server-info")
        folder = self.path / ".git"
        for path in folder.rglob("*"):
            if path.is_file():
                site.put(f"{at}/{path.relative_to(folder)}", path.read_bytes())
        return f"git::{site.url(at)}"


Fetching = Callable[..., ArtifactFetcher]


@pytest.fixture(params=["sandbox", "child"])
async def fetcher(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Fetching]:
    """Fetchers whose git runs in a sandbox, and fetchers whose git is a child of the daemon."""
    if request.param == "child":
        yield partial(plain, seconds=HAPPENS_WITHIN)
        return
    async with sandboxes(data_dir / "host") as opened:
        yield partial(plain, seconds=HAPPENS_WITHIN, git_sandbox=lambda: opened)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


async def test_repository_is_fetched_without_its_history(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    repository.commit("data", "d/f")
    await fetcher().fetch(order(root, repository.show(site)))
    assert there(root) == ["d", "d/f"]
    assert (root / "main/local/d/f").read_text() == "data"


async def test_download_reports_its_progress(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    repository.commit("data")
    sizes: list[int] = []
    wanted = order(root, repository.show(site))
    await fetcher().fetch(msgspec.structs.replace(wanted, arrived=sizes.append))
    assert sizes[-1] > 0  # the size is also reported at the end


async def test_revision_is_a_branch_a_tag_or_a_commit(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    first = repository.commit("one")
    repository.git("tag", "v1")
    repository.commit("two")
    repository.git("checkout", "-qb", "side")
    repository.commit("three")
    repository.git("checkout", "-q", "main")
    url = repository.show(site)
    read = []
    for ref in ("v1", first, "main", "side", ""):
        await fetcher().fetch(order(root, url, getter_options={"ref": ref}))
        read.append((root / "main/local/f").read_text())
    assert read == ["one", "one", "two", "three", "two"]


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("git::file:///x", {}, "git over 'file' is not supported"),
        ("git::https:///x", {}, "names no host"),
        ("git::http://127.0.0.1:9/r.git", {"ref": "-x"}, "ref '-x' is not the name of a revision"),
        ("git::http://127.0.0.1:9/r.git", {"depth": "-1"}, "depth '-1' is not a number"),
        ("git::http://169.254.169.254/r.git", {}, "metadata service"),
        ("git::ssh://169.254.169.254/r.git", {}, "metadata service"),
        ("git::ssh://127.0.0.1:4646/r.git", {}, "the daemon itself"),
        ("git::ssh://127.0.0.1:9/r.git", {"sshkey": "%"}, "sshkey is not valid base64"),
    ],
)
async def test_forbidden_git_operation_is_refused(
    root: Path, source: str, options: dict[str, str], words: str, fetcher: Fetching
) -> None:
    with pytest.raises(FetchFailed, match=words) as told:
        await fetcher(own_ports={4646}).fetch(order(root, source, getter_options=options))
    assert not told.value.recoverable


async def test_moved_repository_is_found(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    repository.commit("data")
    repository.show(site, "/new.git")
    location = f"Location: {site.url('/new.git/info/refs')}?service=git-upload-pack"
    site.put("/old/info/refs", b"", 301, location)
    await fetcher().fetch(order(root, f"git::{site.url('/old')}"))
    assert there(root) == ["f"]


async def test_git_follows_no_redirects(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    """Steward checks the first answer; a server may redirect git afterwards."""
    repository.commit("data")
    url = repository.show(site)
    for path in [page for page in site.pages if "/objects/" in page]:
        site.put(path, b"", 302, f"Location: {site.url('/elsewhere')}")
    with pytest.raises(FetchFailed, match="git: "):
        await fetcher().fetch(order(root, url))
    assert not any("/elsewhere" in item for item in site.asked)
    site.put("/r.git/info/refs", b"", 302, "Location: http://169.254.169.254/info/refs")
    with pytest.raises(FetchFailed, match="metadata service"):
        await fetcher().fetch(order(root, url))


async def test_tree_size_is_checked_before_the_checkout(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    """Ten names for the same tree, ten times: a few hundred bytes, and ten billion files."""
    one = repository.git("hash-object", "-w", "--stdin", said=b"x")
    kind = "100644 blob"
    for _ in range(10):
        lines = "".join(f"{kind} {one}\t{number}\n" for number in range(10))
        one, kind = repository.git("mktree", said=lines.encode()), "040000 tree"
    commit = repository.git("commit-tree", "-m", "x", one)
    repository.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(FetchFailed, match="more than 50 files or 4194304 bytes") as told:
        await fetcher().fetch(order(root, repository.show(site)))
    assert not told.value.recoverable
    assert there(root) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("x" * 5 * MEGABYTE, "the repository has more than 50 files or 4194304 bytes"),
        (None, f"died of signal {signal.SIGXFSZ.value}"),
    ],
    ids=["when it is unpacked", "as it comes"],
)
async def test_repository_has_a_size_limit(
    site: Site,
    root: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    content: Any,
    words: str,
    fetcher: Fetching,
) -> None:
    """No file may exceed the limit of the whole repository, even between two measurements."""
    monkeypatch.setattr(git, "_PACE", 10 * HAPPENS_WITHIN)
    repository.commit(content or os.urandom(5 * MEGABYTE).hex())
    with pytest.raises(FetchFailed, match=words):
        await fetcher().fetch(order(root, repository.show(site)))
    assert there(root) == []


@pytest.mark.parametrize("ends", [True, False], ids=["at its end", "while more comes"])
async def test_files_of_a_repository_share_a_limit(
    site: Site, root: Path, repository: Repository, ends: bool, fetcher: Fetching
) -> None:
    for number in range(6):
        repository.commit(os.urandom(MEGABYTE // 2).hex(), f"f{number}")
    last = repository.git("rev-parse", "HEAD:f0")
    for number in range(6):
        repository.commit(os.urandom(MEGABYTE // 2).hex(), f"f{number}")
    url = repository.show(site)
    if not ends:
        site.pages[f"/r.git/objects/{last[:2]}/{last[2:]}"] = b"hang"
    words = "more than 4194304 bytes were downloaded from the repository"
    with pytest.raises(FetchFailed, match=words) as told:
        await fetcher().fetch(order(root, url))
    assert not told.value.recoverable
    assert there(root) == []


async def test_git_has_a_memory_limit(
    site: Site,
    root: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    fetcher: Fetching,
) -> None:
    """A file may exceed the memory limit, because it is only copied; objects in git's memory may
    not."""
    monkeypatch.setattr(git, "MOST_MEMORY", 32 * MEGABYTE)
    limits = ArchiveLimits(bytes=100 * MEGABYTE, files=50)
    repository.commit("x" * 40 * MEGABYTE)
    repository.git("repack", "-adq")
    await fetcher(limits=limits).fetch(order(root, repository.show(site)))
    assert (root / "main/local/f").stat().st_size == 40 * MEGABYTE
    repository.commit("y")
    repository.git("commit", "-q", "--amend", "-F", "-", said=b"x" * 40 * MEGABYTE)
    with pytest.raises(FetchFailed, match="Out of memory"):
        await fetcher(limits=limits).fetch(order(root, repository.show(site)))


async def test_tree_is_written_without_conversions(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    """A repository may request a larger encoding for its files, with longer line ends or byte order
    marks."""
    wishes = "a working-tree-encoding=UTF-32\nb text eol=crlf\nc ident\n"
    repository.commit(wishes, ".gitattributes")
    content = {"a": b"words", "b": b"one\ntwo\n", "c": b"$Id$"}
    for name, one in content.items():
        repository.write(one, name)
    await fetcher().fetch(order(root, repository.show(site)))
    assert {name: (root / "main/local" / name).read_bytes() for name in content} == content


class Elsewhere(trio.abc.HostnameResolver):
    """Names that only the test resolves, all to this host."""

    async def getaddrinfo(self, host: Any, port: Any, *rest: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", int(port)))]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


async def test_git_connects_to_the_checked_address(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    """Git does not resolve the name, which could have another address by then."""
    repository.commit("data")
    trio.socket.set_custom_hostname_resolver(Elsewhere())
    url = repository.show(site).replace("127.0.0.1", "no.such.invalid")
    await fetcher().fetch(order(root, url))
    assert there(root) == ["f"]


@pytest.mark.parametrize("said", ["git version 2.36.6", "git version 1.99", ""])
async def test_git_that_resolves_names_again_is_not_used(
    site: Site,
    root: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
) -> None:
    repository.commit("data")
    program = root.parent / "bin/git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho {said}\n")
    program.chmod(0o755)
    url = repository.show(site)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    words = f"{said or 'git of an unknown version'} on this node .* needs git 2.37 or newer"
    with pytest.raises(FetchFailed, match=words) as told:
        await plain().fetch(order(root, url))
    assert not told.value.recoverable


async def test_link_out_of_a_repository_is_not_followed(
    site: Site, root: Path, repository: Repository, fetcher: Fetching
) -> None:
    (repository.path / "l").symlink_to("/etc")
    repository.git("add", "l")
    repository.git("commit", "-qm", "l")
    with pytest.raises(FetchFailed, match="points outside the a"):
        await fetcher().fetch(order(root, repository.show(site)))
    assert there(root) == []


def test_shell_interprets_no_part_of_the_ssh_command(tmp_path: Path) -> None:
    odd = tmp_path / "a b$(touch x);'`"
    odd.mkdir()
    at = ("h", 22, "fe80::1%a;b")
    git_client = git.GitClient(git.LocalGit(str(odd), f"{odd}/tree"), at, f"{odd}/key", verify=True)
    words = shlex.split(git_client.environment["GIT_SSH_COMMAND"])
    assert words[-4:] == ["-o", "HostName=fe80::1%a;b", "-i", f"{odd}/key"]
    shown = subprocess.run(
        ["/bin/sh", "-c", f"printf '%s\\n' {git_client.environment['GIT_SSH_COMMAND']}"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert shown.stdout.decode().splitlines() == words
    assert not (tmp_path / "x").exists()


async def test_ssh_key_is_readable_only_by_the_daemon(tmp_path: Path) -> None:
    place = git.LocalGit(str(tmp_path), f"{tmp_path}/tree")
    key_file = await place.keep_key(git.read_key(base64.b64encode(b"key").decode()))
    git_client = git.GitClient(place, ("h", 22, "192.0.2.1"), key_file, verify=True)
    assert (tmp_path / "key").read_bytes() == b"key"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    command = git_client.environment["GIT_SSH_COMMAND"]
    assert command.endswith(f"-o HostName=192.0.2.1 -i {tmp_path}/key")


@needs_root
async def test_collection_of_unknown_allocations_leaves_open_sandboxes(
    store: Store, data_dir: Path
) -> None:
    """A sandbox is an allocation that no store knows, like the directory that is collected here."""
    async with open_world(store, data_dir, user="root") as world:
        isolated, reason = world.runner.git_isolation()
        if not isolated:
            pytest.skip(reason)
        fetching = world.runner._host.fetcher()
        assert fetching.git_sandbox is not None
        workshop = data_dir / "workshop"
        workshop.mkdir()
        with trio.fail_after(HAPPENS_WITHIN):
            async with fetching.git_sandbox().open(str(workshop)) as place:
                (alloc_id,) = world.runner._host.workshops
                unknown = world.directory(str(uuid4()))
                unknown.mkdir()
                done = await world.place(batch(script("true")))
                await world.until_done(done)
                await world.purge(batch(script("true")))
                await world.until_no_directory(unknown.name)
                async with place.run(["/bin/true"], place.env) as process:
                    assert await process.wait() == 0
            assert not world.directory(alloc_id).exists()

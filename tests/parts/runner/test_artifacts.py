"""Artifacts: download, checksum, unpacking and rejections (recorded: task-events)."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import trio

from daemon.config.data_directory import payload_dir
from daemon.net.egress_policy import EgressDenied
from daemon.runner.core.safe_open import PathEscape
from daemon.runner.core.task_dir import directories
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.setup.artifacts.archive import ArchiveLimits, BadArchive, Unpacker
from daemon.runner.setup.artifacts.fetch import (
    ArtifactFetcher,
    ArtifactRequest,
    FetchFailed,
    destination,
)
from daemon.runner.setup.artifacts.local_files import LocalFiles
from storage.records.task import Artifact
from storage.store import Store
from tests.launchers import Direct
from tests.parts.runner.world import World, batch, open_world, script, state_of

MEGABYTE = 1024 * 1024
STAGED = TemporaryDirectory()  # deleted at the end of the tests
LIMITS = ArchiveLimits(bytes=4 * MEGABYTE, files=50)


class Site:
    """A small web server: the response bytes at each path."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.port = 0

    def put(self, path: str, body: bytes, status: int = 200, *headers: str) -> str:
        usual = [f"Content-Length: {len(body)}", "Connection: close"]
        lines = [f"HTTP/1.1 {status} x", *usual, *headers]
        self.pages[path] = "\r\n".join([*lines, "", ""]).encode() + body
        return self.url(path)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = bytes(await stream.receive_some()).decode()
            self.asked.append(head)
            path = head.split()[1].partition("?")[0]
            page = self.pages.get(path)
            if page is None:
                await stream.send_all(
                    b"HTTP/1.1 404 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            elif page == b"hang":
                await trio.sleep_forever()
            else:
                try:
                    await stream.send_all(page)
                except trio.BrokenResourceError:
                    return


@pytest.fixture
async def site(nursery: trio.Nursery) -> Site:
    made = Site()
    (listener,) = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), made.serve, 0)
    made.port = listener.socket.getsockname()[1]
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the directory of an allocation with a task."""
    for name in ("a/alloc/data", "a/main/local", "a/main/secrets"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path / "a"


def order(root: Path, source: str, **fields: Any) -> ArtifactRequest:
    return ArtifactRequest(
        artifact=Artifact(getter_source=source, **fields),
        files=TaskFiles(
            launcher=Direct(root.parent),
            allocation=root.name,
            task="main",
            places=directories(str(root), "main"),
        ),
    )


def fetcher(**fields: Any) -> ArtifactFetcher:
    given = {
        "staging": STAGED.name,
        "limits": LIMITS,
        "seconds": 30,
        "files_from": (),
        "own_ports": frozenset(),
        **fields,
    }
    return ArtifactFetcher(**given)


def tar(members: dict[str, bytes], *odd: tarfile.TarInfo, mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
        for member in odd:
            archive.addfile(member)
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def table(names: list[str], said: int) -> bytes:
    """Return a large zip archive that consists only of its table, which claims to have `said`
    entries.
    """
    head = struct.pack("<4s6H3L5H2L", b"PK\1\2", *[0] * 9, len(names[0]), *[0] * 6)
    entries = b"".join(head + name.encode() for name in names)
    size = len(entries)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, said, said, size, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
    return entries + end + locator + b"PK\5\6" + b"\0" * 4 + b"\xff" * 12 + b"\0" * 2


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def commented(text: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo("x")
    member.pax_headers = {"comment": text}
    return member


def sparse(blocks: int) -> bytes:
    """Return a tar archive with a sparse file. The table of its holes has this many blocks."""
    head = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    head[156:157], head[482] = b"S", 1
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    table = (b"00000000001\0" * 42).ljust(504, b"\0") + b"\x01" + bytes(7)
    return gzip.compress(bytes(head) + table * blocks)


def there(root: Path) -> list[str]:
    """Return all paths below the task's local directory."""
    local = root / "main/local"
    return sorted(str(path.relative_to(local)) for path in local.rglob("*"))


# ---- downloads ---------------------------------------------------------------------------------------


async def test_a_file_is_fetched_into_the_tasks_directory(site: Site, root: Path) -> None:
    await fetcher().fetch(order(root, site.put("/a.bin", b"data")))
    assert (root / "main/local/a.bin").read_bytes() == b"data"
    assert sorted(os.listdir(root)) == ["alloc", "main"]


async def test_download_reports_its_progress(site: Site, root: Path) -> None:
    sizes: list[int] = []
    body = os.urandom(MEGABYTE)
    wanted = order(root, site.put("/big", body))
    await fetcher().fetch(msgspec.structs.replace(wanted, arrived=sizes.append))
    assert sizes == sorted(sizes)
    assert sizes[-1] == len(body)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"relative_dest": "local/x/y"}, "main/local/x/y/a.bin"),
        ({"relative_dest": "local/b", "getter_mode": "file"}, "main/local/b"),
        ({"relative_dest": "../alloc/data"}, "alloc/data/a.bin"),
        ({"getter_options": {"filename": "c"}}, "main/local/c"),
    ],
)
async def test_artifact_is_stored_at_the_configured_destination(
    site: Site, root: Path, fields: dict[str, Any], place: str
) -> None:
    await fetcher().fetch(order(root, site.put("/a.bin", b"data"), **fields))
    assert (root / place).read_bytes() == b"data"


def test_destination_can_start_with_a_directory_of_the_task(root: Path) -> None:
    assert destination(order(root, "x", relative_dest=f"{root}/alloc/data")) == ("alloc/data", "")
    assert destination(order(root, "x", relative_dest=f"{root}/main/secrets/s")) == (
        "main/secrets/s",
        "",
    )
    with pytest.raises(PathEscape):
        destination(order(root, "x", relative_dest="../../other"))
    with pytest.raises(PathEscape):
        destination(order(root, "x", relative_dest="../.claim.main.0"))


def names_below(root: Path) -> set[str]:
    return {path.name for path in root.rglob("*")}


@pytest.mark.parametrize("mode", ["any", "dir"])
@pytest.mark.parametrize(
    "given",
    [
        ".",
        "./",
        "/",
        "local/..",
        "private",
        "private/x",
        "x",
        "../alloc",
        "../alloc/logs",
        "../alloc/tmp",
    ],
)
async def test_artifact_is_stored_in_no_other_directory(
    site: Site, root: Path, given: str, mode: str
) -> None:
    wanted = order(root, site.put("/a.bin", b"data"), relative_dest=given, getter_mode=mode)
    with pytest.raises(FetchFailed, match="use a path below local/") as caught:
        await fetcher().fetch(wanted)
    assert repr(given) in str(caught.value)
    assert not caught.value.recoverable
    assert names_below(root).isdisjoint({"a.bin"})


@pytest.mark.parametrize("given", ["local", "resolv.conf", "private/resolv.conf", "../alloc/data"])
def test_file_does_not_replace_a_directory(root: Path, given: str) -> None:
    with pytest.raises(EgressDenied, match="is not allowed"):
        destination(order(root, "x", relative_dest=given, getter_mode="file"))


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("/a.tar.gz", lambda members: tar(members)),
        ("/a.tgz", lambda members: tar(members)),
        ("/a.tar.xz", lambda members: tar(members, mode="w:xz")),
        ("/a.tar.bz2", lambda members: tar(members, mode="w:bz2")),
        ("/a.tar", lambda members: tar(members, mode="w")),
        ("/a.zip", zipped),
    ],
)
async def test_an_archive_is_unpacked(
    site: Site, root: Path, name: str, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    body = pack({"bin/tool": b"#!/bin/sh\n", "doc.txt": b"words"})
    await fetcher().fetch(order(root, site.put(name, body)))
    assert there(root) == ["bin", "bin/tool", "doc.txt"]
    assert (root / "main/local/bin/tool").read_bytes() == b"#!/bin/sh\n"


async def test_a_compressed_file_is_unpacked(site: Site, root: Path) -> None:
    await fetcher().fetch(order(root, site.put("/a.txt.gz", gzip.compress(b"words"))))
    assert (root / "main/local/a.txt").read_bytes() == b"words"


async def test_archive_is_not_unpacked_if_disabled(site: Site, root: Path) -> None:
    body = zipped({"x": b"y"})
    url = site.put("/a.zip", body)
    await fetcher().fetch(order(root, url, getter_options={"archive": "false"}))
    assert (root / "main/local/a.zip").read_bytes() == body


async def test_only_the_requested_folder_is_copied(site: Site, root: Path) -> None:
    url = site.put("/a.zip", zipped({"one/x": b"x", "two/y": b"y"}))
    await fetcher().fetch(order(root, f"{url}//one"))
    assert there(root) == ["x"]


async def test_artifact_fills_an_existing_directory_and_replaces_files(
    site: Site, root: Path
) -> None:
    (root / "main/local/bin").mkdir()
    (root / "main/local/bin/old").touch()
    (root / "main/local/doc.txt").write_text("old")
    await fetcher().fetch(order(root, site.put("/a.tgz", tar({"bin/new": b"", "doc.txt": b"new"}))))
    assert there(root) == ["bin", "bin/new", "bin/old", "doc.txt"]
    assert (root / "main/local/doc.txt").read_text() == "new"


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256", "sha512"])
async def test_a_checksum_is_verified(site: Site, root: Path, kind: str) -> None:
    good = hashlib.new(kind, b"data").hexdigest()
    url = site.put("/a", b"data")
    await fetcher().fetch(order(root, url, getter_options={"checksum": f"{kind}:{good}"}))
    bad = "0" * len(good)
    with pytest.raises(FetchFailed, match="Checksums did not match") as told:
        await fetcher().fetch(order(root, url, getter_options={"checksum": f"{kind}:{bad}"}))
    assert not told.value.recoverable


async def test_headers_are_sent_without_secrets_to_other_hosts(site: Site, root: Path) -> None:
    site.put("/to", b"data")
    elsewhere = f"http://localhost:{site.port}/to"
    url = site.put("/from", b"", 302, f"Location: {elsewhere}")
    headers = {"Authorization": "Bearer x", "X-Kind": "y"}
    await fetcher().fetch(order(root, url, getter_headers=headers))
    assert "Bearer x" in site.asked[0]
    assert "Bearer x" not in site.asked[1]
    assert "X-Kind" in site.asked[1]


async def test_host_files_come_only_from_allowed_paths(root: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open/f").write_text("data")
    (tmp_path / "open/link").symlink_to("/etc/passwd")
    allowed = fetcher(files_from=(str(tmp_path / "open"),))
    await allowed.fetch(order(root, f"{tmp_path}/open/f"))
    assert (root / "main/local/f").read_text() == "data"
    for source in ("/etc/passwd", f"{tmp_path}/open/../../etc/passwd", f"{tmp_path}/open/link"):
        with pytest.raises(FetchFailed, match="artifact_paths"):
            await allowed.fetch(order(root, source))


# ---- refused artifacts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "archive",
    [
        tar({"../outside": b"x"}),
        tar({"/etc/x": b"x"}),
        tar({}, link("x", "/etc")),
        tar({}, link("x", "../../..")),
        tar({"y": b""}, link("x", "y", tarfile.LNKTYPE)),
        tar({}, link("x", "", tarfile.CHRTYPE)),
        tar({}, link("d", "../../../"), *[]),
        tar({f"f{number}": b"" for number in range(60)}),
        tar({"bomb": b"\0" * 5 * MEGABYTE}),
        tar({}, tarfile.TarInfo("x" * 5 * MEGABYTE)),
        tar({}, commented("x" * 5 * MEGABYTE)),
        sparse(40_000),
        b"this is no archive",
        tar({"x": b"y" * 1000})[:-40],
    ],
    ids=[
        *("above", "absolute", "link", "link above", "hard link", "device", "link to root"),
        *("too many", "bomb", "long name", "long header", "long table", "nonsense", "cut"),
    ],
)
async def test_malicious_archive_is_not_unpacked(site: Site, root: Path, archive: bytes) -> None:
    with pytest.raises(FetchFailed) as told:
        await fetcher().fetch(order(root, site.put("/a.tgz", archive)))
    assert not told.value.recoverable
    assert there(root) == []
    assert sorted(os.listdir(root)) == ["alloc", "main"]


# The result of `lzma.compress(b"x")` with a dictionary of 1 GiB. The compressor would take three
# seconds, because it allocates several times this size.
HUNGRY = bytes.fromhex(
    "fd377a585a000004e6d6b44602002101240000005e1fc7f9010000780000000045aeef83f8ee160a00011901a52c81cc"
    "1fb6f37d010000000004595a"
)


@pytest.mark.parametrize("name", ["/a.xz", "/a.tar.xz"])
@pytest.mark.parametrize("before", [b"", lzma.compress(b"well")])
async def test_unpacking_has_a_memory_limit(
    site: Site, root: Path, name: str, before: bytes
) -> None:
    with pytest.raises(FetchFailed, match="the archive cannot be read"):
        await fetcher().fetch(order(root, site.put(name, before + HUNGRY)))
    assert there(root) == []


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
async def test_a_zip_archive_is_only_stored_or_deflated(
    site: Site, root: Path, method: int
) -> None:
    """With another method, the library would unpack a member of any size in memory."""
    url = site.put("/a.zip", zipped({"f": b"x"}, method))
    with pytest.raises(FetchFailed, match=f"'f' is compressed by method {method}") as told:
        await fetcher().fetch(order(root, url))
    assert not told.value.recoverable
    assert there(root) == []


@pytest.mark.parametrize("said", [1, 0], ids=["zip64", "zip64 that lies of how many"])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([f"{number:050}" for number in range(4000)], "the archive has more than 50 files"),
        (
            ["x" * 60_000] * 300,
            "the central directory of the ZIP archive has more than 16777216 bytes",
        ),
    ],
    ids=["many files", "long names"],
)
def test_zip_directory_has_a_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], said: int, words: str
) -> None:
    """The entries are counted before any is decoded."""
    path = tmp_path / "a.zip"
    path.write_bytes(table(names, said * len(names)))
    made: list[object] = []
    monkeypatch.setattr(zipfile, "ZipInfo", made.append)
    unpacker = Unpacker(str(tmp_path), LIMITS, lambda: None)
    with pytest.raises(BadArchive, match=words):
        unpacker.unpack(str(path), "zip", "a.zip")
    assert made == []


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, bytes])
async def test_tar_compression_can_differ_from_the_file_name(
    site: Site, root: Path, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(tar({"x": b"y"}, mode="w"))
    await fetcher().fetch(order(root, site.put("/a.tgz", body)))
    assert there(root) == ["x"]


@pytest.mark.parametrize("padding", [4, MEGABYTE])
async def test_a_file_may_be_compressed_in_parts(site: Site, root: Path, padding: int) -> None:
    body = lzma.compress(b"one ") + bytes(padding) + lzma.compress(b"two") + bytes(padding)
    await fetcher().fetch(order(root, site.put("/a.txt.xz", body)))
    assert (root / "main/local/a.txt").read_bytes() == b"one two"


async def test_oversized_directory_of_the_host_is_not_copied(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    for number in range(60):
        (folder / f"f{number}").touch()
    (tmp_path / "large").write_bytes(b"x" * 5 * MEGABYTE)
    allowed = fetcher(files_from=(str(tmp_path),))
    with pytest.raises(FetchFailed, match="exceeds the limit of 50 files"):
        await allowed.fetch(order(root, str(folder)))
    with pytest.raises(FetchFailed, match="exceeds the limit of 50 files with 4194304 bytes"):
        await allowed.fetch(order(root, f"{tmp_path}/large"))
    assert there(root) == []


@pytest.mark.parametrize("name", ["../../../taken", "..", "/etc/steward-test", "a/b"])
@pytest.mark.parametrize("by_query", [False, True])
async def test_file_name_of_a_job_cannot_leave_the_staging_directory(
    site: Site, root: Path, name: str, by_query: bool
) -> None:
    url = site.put("/f", b"content")
    options = None if by_query else {"filename": name}
    source = f"{url}?filename={quote(name, safe='')}" if by_query else url
    with pytest.raises(FetchFailed, match="is not a plain file name"):
        await fetcher().fetch(order(root, source, getter_options=options))
    assert there(root) == []
    assert not (Path(STAGED.name).parent / "taken").exists()


def test_staging_directory_has_a_name_of_safe_characters(root: Path) -> None:
    odd = msgspec.structs.replace(order(root, "").files, task="a b$(id)`;'\"")
    assert re.fullmatch(r"a\.[0-9a-f]{16}", odd.staging_name)
    assert odd.staging_name != order(root, "").files.staging_name


async def test_link_created_during_a_copy_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, secret = tmp_path / "open", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("secret")
    (folder / "a").write_text("x")
    (folder / "b").write_text("x")

    def swap(files: LocalFiles, source: int, name: str, target: str) -> None:
        """Replace all other files by links to the secret, as a task could at this time."""
        for other in folder.iterdir():
            if other.name != name and not other.is_symlink():
                other.unlink()
                other.symlink_to(secret)
        copy(files, source, name, target)

    copy = LocalFiles._copy_file
    monkeypatch.setattr(LocalFiles, "_copy_file", swap)
    allowed = fetcher(files_from=(str(folder),))
    with pytest.raises(FetchFailed):
        await allowed.fetch(order(root, str(folder)))
    assert "secret" not in "".join(
        path.read_text() for path in (root / "main/local").rglob("*") if path.is_file()
    )


async def test_hard_link_to_a_private_file_is_refused(root: Path, tmp_path: Path) -> None:
    folder, secret = tmp_path / "open", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("secret")
    secret.chmod(0o640)
    (folder / "own-name").hardlink_to(secret)
    allowed = fetcher(files_from=(str(folder),))
    for source in (str(folder), f"{folder}/own-name"):
        with pytest.raises(FetchFailed, match="has 2 hard links and is not world-readable"):
            await allowed.fetch(order(root, source))
    assert there(root) == []
    secret.chmod(0o644)
    await allowed.fetch(order(root, f"{folder}/own-name"))
    assert there(root) == ["own-name"]


async def test_directory_of_the_host_is_copied_with_modes_and_links(
    root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "open"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/run").write_text("run")
    (folder / "bin/run").chmod(0o755)
    (folder / "l").symlink_to("bin/run")
    await fetcher(files_from=(str(folder),)).fetch(order(root, str(folder)))
    assert there(root) == ["bin", "bin/run", "l"]
    assert (root / "main/local/bin/run").stat().st_mode & 0o777 == 0o755
    assert os.readlink(root / "main/local/l") == "bin/run"


async def test_pipe_of_the_host_does_not_block_a_copy(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    os.mkfifo(folder / "p")
    for source in (str(folder), f"{folder}/p"):
        with pytest.raises(FetchFailed, match="is neither a file nor a directory"):
            await fetcher(files_from=(str(folder),)).fetch(order(root, source))


async def test_links_within_the_directory_are_copied(site: Site, root: Path) -> None:
    await fetcher().fetch(order(root, site.put("/a.tgz", tar({"d/f": b"x"}, link("l", "d/f")))))
    assert os.readlink(root / "main/local/l") == "d/f"


async def test_link_created_by_a_task_is_not_followed(site: Site, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (root / "main/local/d").symlink_to(outside)
    url = site.put("/a.tgz", tar({"d/f": b"x"}))
    with pytest.raises(FetchFailed):
        await fetcher().fetch(order(root, url))
    with pytest.raises(FetchFailed):
        await fetcher().fetch(order(root, url, relative_dest="local/d"))
    assert list(outside.iterdir()) == []


async def test_oversized_response_is_aborted(site: Site, root: Path) -> None:
    with pytest.raises(FetchFailed, match="more than 4194304"):
        await fetcher().fetch(order(root, site.put("/a", b"x" * 5 * MEGABYTE)))
    endless = b"HTTP/1.1 200 x\r\n\r\n" + b"x" * 5 * MEGABYTE
    site.pages["/b"] = endless
    with pytest.raises(FetchFailed, match="more than 4194304"):
        await fetcher().fetch(order(root, site.url("/b")))


async def test_late_response_is_aborted(site: Site, root: Path) -> None:
    site.pages["/a"] = b"hang"
    with pytest.raises(FetchFailed, match="not downloaded within") as told:
        await fetcher(seconds=0.1).fetch(order(root, site.url("/a")))
    assert told.value.recoverable


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "::ffff:169.254.169.254",
        "fd00:ec2::254",
        "0.0.0.0",  # noqa: S104  # not bound
        "224.0.0.1",
    ],
)
def test_addresses_forbidden_to_tasks_are_refused(address: str) -> None:
    with pytest.raises(EgressDenied):
        fetcher().permit(address, 80)


def test_daemon_does_not_request_its_own_address() -> None:
    with pytest.raises(EgressDenied, match="the daemon itself"):
        fetcher(own_ports={4646}).permit("127.0.0.1", 4646)
    fetcher(own_ports={4646}).permit("127.0.0.1", 80)


async def test_redirect_to_a_forbidden_address_is_refused(site: Site, root: Path) -> None:
    url = site.put("/a", b"", 302, "Location: http://169.254.169.254/latest")
    with pytest.raises(FetchFailed, match="metadata service"):
        await fetcher().fetch(order(root, url))
    round_and_round = site.put("/b", b"", 302, "Location: /b")
    with pytest.raises(FetchFailed, match="redirects"):
        await fetcher().fetch(order(root, round_and_round))


@pytest.mark.parametrize(
    ("source", "recoverable"),
    [("http://127.0.0.1:9/none", True), ("s3::https://h/x", False), ("http://[::1", False)],
)
async def test_a_failure_names_the_source_and_the_reason(
    root: Path, source: str, recoverable: bool
) -> None:
    with pytest.raises(FetchFailed, match=r'^failed to download artifact "') as told:
        await fetcher().fetch(order(root, source))
    assert told.value.recoverable is recoverable


# ---- artifacts of a running task ---------------------------------------------------------------------


@pytest.fixture
async def life(store: Store, data_dir: Path) -> AsyncIterator[World]:
    async with open_world(store, data_dir) as opened:
        yield opened


async def test_task_gets_its_artifact_which_is_fetched_once(life: World, site: Site) -> None:
    url = site.put("/a.tgz", tar({"tool": b"#!/bin/sh\necho hi\n"}))
    artifacts = [Artifact(getter_source="${URL}", relative_dest="local/")]
    policy = {"attempts": 1, "interval": 10**10, "delay": 0, "mode": "fail"}
    task = script("local/tool; exit 1", env={"URL": url}, artifacts=artifacts)
    task = msgspec.structs.replace(
        task, restart_policy=msgspec.structs.replace(task.restart_policy, **policy)
    )
    alloc_id = await life.place(batch(task))
    await life.until_done(alloc_id)
    assert life.output(alloc_id) == "hi\nhi\n"
    assert life.types(alloc_id)[:4] == [
        "Received",
        "Task Setup",
        "Downloading Artifacts",
        "Started",
    ]
    assert len(site.asked) == 1


async def test_task_with_a_failed_artifact_never_starts(life: World, site: Site) -> None:
    artifacts = [Artifact(getter_source=site.url("/none"))]
    alloc_id = await life.place(batch(script("echo no", artifacts=artifacts)))
    done = await life.until_done(alloc_id)
    assert state_of(done).failed
    assert life.types(alloc_id)[2:] == [
        "Downloading Artifacts",
        "Failed Artifact Download",
        "Not Restarting",
    ]
    assert "bad response code: 404" in life.told(alloc_id)[3][1]


async def test_a_stop_does_not_wait_for_an_endless_download(life: World, site: Site) -> None:
    site.pages["/a"] = b"hang"
    artifacts = [Artifact(getter_source=site.url("/a"))]
    alloc_id = await life.place(batch(script("echo no", artifacts=artifacts)))
    await life.until(alloc_id, lambda _: "Downloading Artifacts" in life.types(alloc_id))
    await life.stop(alloc_id)
    assert (await life.until_done(alloc_id)).client_status == "complete"


# --- files of the dispatch ---


def dispatched(root: Path, source: str, digests: dict[str, str], **fields: Any) -> ArtifactRequest:
    return msgspec.structs.replace(
        order(root, source, **fields),
        payload=lambda name: digests.get(name, ""),
        namespace="default",
    )


def uploaded(tmp_path: Path, content: bytes, digest: str = "") -> str:
    """Store a file as an upload does; return its digest."""
    digest = digest or hashlib.sha256(content).hexdigest()
    place = Path(payload_dir(f"{tmp_path}/payloads", "default")) / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return digest


async def test_file_of_the_dispatch_is_copied_into_the_task(root: Path, tmp_path: Path) -> None:
    digest = uploaded(tmp_path, b"content")
    wanted = dispatched(root, "payload://in.csv", {"in.csv": digest})
    await fetcher(payloads=f"{tmp_path}/payloads").fetch(wanted)
    assert (root / "main/local/in.csv").read_bytes() == b"content"


async def test_archive_of_the_dispatch_is_unpacked(root: Path, tmp_path: Path) -> None:
    digest = uploaded(tmp_path, tar({"a/b": b"inner"}))
    wanted = dispatched(root, "payload://in.tar.gz", {"in.tar.gz": digest})
    await fetcher(payloads=f"{tmp_path}/payloads").fetch(wanted)
    assert (root / "main/local/a/b").read_bytes() == b"inner"


@pytest.mark.parametrize(
    ("digest", "text"),
    [("", "dispatch it with --file in=PATH"), ("a" * 64, "is missing")],
)
async def test_file_missing_in_the_dispatch_fails_the_task(
    root: Path, tmp_path: Path, digest: str, text: str
) -> None:
    wanted = dispatched(root, "payload://in", {"in": digest})
    with pytest.raises(FetchFailed, match=text) as caught:
        await fetcher(payloads=f"{tmp_path}/payloads").fetch(wanted)
    assert not caught.value.recoverable


async def test_damaged_file_of_the_dispatch_is_refused(root: Path, tmp_path: Path) -> None:
    digest = uploaded(tmp_path, b"changed", hashlib.sha256(b"content").hexdigest())
    with pytest.raises(FetchFailed, match=r"Checksums did not match.* upload the file again"):
        await fetcher(payloads=f"{tmp_path}/payloads").fetch(
            dispatched(root, "payload://in", {"in": digest})
        )
    assert not (Path(payload_dir(f"{tmp_path}/payloads", "default")) / digest).exists()

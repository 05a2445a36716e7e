"""Fetching one artifact: to a place of our own first, and from there into the task's directory.

What is refused: the machine's metadata service and other addresses of the link, the daemon's own
listener, files of this machine outside of the directories that the configuration opens; and
whatever is larger, takes longer or is more than the limits allow.
"""

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec
import trio

from daemon import reach
from daemon.launcher.messages import Owner
from daemon.reach import Forbidden
from daemon.runner import http
from daemon.runner.artifacts import place
from daemon.runner.artifacts.archive import BadArchive, Limits, Unpacker, check_links
from daemon.runner.artifacts.source import BadSource, Kind, Source, parse
from daemon.runner.beneath import Escapes
from daemon.runner.env import Directories
from daemon.runner.http import HTTPFailed
from daemon.runner.taskdir import meant
from storage.errors import StewardError
from storage.records import places
from storage.records.numbers import whole
from storage.records.task import Artifact

_REDIRECTS = 10
_MOVED = frozenset({301, 302, 303, 307, 308})
_GOOD = range(200, 300)
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
_CHECKSUMS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_FETCHED = "fetched"  # the folder for what is fetched, in a place of our own
_OUT = "out"  # and for what comes out of it
_LISTED, _SERVICE = "/info/refs", "service=git-upload-pack"  # what a clone asks for first
_GIT_PORTS = {"http": 80, "https": 443, "ssh": 22}


class FetchFailed(StewardError):
    """An artifact could not be had; `recoverable` when another attempt may go better."""

    def __init__(self, source: str, why: object, *, recoverable: bool) -> None:
        super().__init__(f'failed to download artifact "{source}": {why}')
        self.recoverable = recoverable


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact with its references filled in, for whom, and where it goes."""

    artifact: Artifact
    root: str  # of the allocation
    base: str  # the task's directory, below the root: what a relative destination begins at
    places: Directories  # as the task sees them: what an absolute destination begins with
    owner: Owner | None = None  # the task's user, when the files are to be that one's
    arrived: Callable[[int], None] = lambda _: None  # told how many bytes are there, as they come


class Fetcher(msgspec.Struct, frozen=True, kw_only=True):
    """Fetches artifacts within the limits of this node."""

    limits: Limits
    seconds: float
    files_from: tuple[str, ...]  # directories of this machine from which files may come
    own_ports: frozenset[int]  # of the daemon's listeners

    async def fetch(self, order: Order) -> None:
        """Fetch an artifact and put it into the task's directory. Raises `FetchFailed`."""
        given = order.artifact.getter_source
        try:
            source = parse(given, order.artifact.getter_options or {})
            target = destination(order)
            workshop = f"{order.root}/.fetch.{order.base}"
            await trio.to_thread.run_sync(partial(place.discard, workshop))
            os.makedirs(f"{workshop}/{_FETCHED}", 0o700)
            os.mkdir(f"{workshop}/{_OUT}", 0o700)
            try:
                with trio.fail_after(self.seconds):
                    await self._bring(source, order, workshop)
                    await trio.to_thread.run_sync(
                        partial(self._unpack, source, order, workshop, target)
                    )
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(partial(place.discard, workshop))
        except (BadSource, BadArchive, Forbidden, Escapes) as error:
            raise FetchFailed(given, error, recoverable=False) from error
        except trio.TooSlowError as error:
            why = f"not there within {self.seconds:g} seconds"
            raise FetchFailed(given, why, recoverable=True) from error
        except (HTTPFailed, OSError) as error:
            raise FetchFailed(given, error, recoverable=True) from error

    async def _bring(self, source: Source, order: Order, workshop: str) -> None:
        match source.kind:
            case Kind.HTTP:
                await self._download(source, order, f"{workshop}/{_FETCHED}/file")
            case Kind.GIT:
                await self._clone(source, order, workshop)
            case Kind.FILE:
                await trio.to_thread.run_sync(self._copy, source, workshop)

    # ---- http --------------------------------------------------------------------------------------

    async def _download(self, source: Source, order: Order, path: str) -> None:
        headers = list((order.artifact.getter_headers or {}).items())
        verify = not order.artifact.getter_insecure
        async with self._opened(source.url, headers, verify=verify) as (_, answer):
            if answer.status not in _GOOD:
                raise HTTPFailed(f"bad response code: {answer.status}")
            await self._store(answer, path, order.arrived)

    @asynccontextmanager
    async def _opened(
        self, url: str, headers: Sequence[http.Header], *, verify: bool
    ) -> AsyncIterator[tuple[str, http.Reply]]:
        """Give the answer at the end of all redirects, and its address. Raises `HTTPFailed`."""
        for _ in range(_REDIRECTS + 1):
            question = http.ask(url, headers=headers, verify=verify, permit=self.permit)
            async with question as answer:
                if answer.status not in _MOVED or "location" not in answer.headers:
                    yield url, answer
                    return
            url, headers = _moved(url, answer.headers["location"], headers)
        raise HTTPFailed(f"stopped after {_REDIRECTS} redirects")

    async def _store(self, answer: http.Reply, path: str, arrived: Callable[[int], None]) -> None:
        said = answer.headers.get("content-length", "")
        if said.isdecimal() and whole(said) > self.limits.bytes:
            raise BadArchive(f"it has {said} bytes, more than {self.limits.bytes}")
        size = 0
        with open(path, "xb") as file:  # noqa: ASYNC230  # a cache write: shorter than a thread
            async for piece in answer.body:
                size += len(piece)
                if size > self.limits.bytes:
                    raise BadArchive(f"it has more than {self.limits.bytes} bytes")
                file.write(piece)
                arrived(size)

    def permit(self, address: str, port: int) -> None:
        """Raise `Forbidden` for what no task may reach through the daemon."""
        reach.check(address, port, own_ports=self.own_ports)

    # ---- git ---------------------------------------------------------------------------------------

    async def _clone(self, source: Source, order: Order, workshop: str) -> None:
        """Clone a repository: nothing is written to the tree before it is known how much it is."""
        parts = urlsplit(source.url)
        if parts.scheme not in {"https", "http", "ssh"}:
            raise BadSource(f"git over {parts.scheme!r} is not supported")
        if not parts.hostname:
            raise BadSource("the address names no host")
        depth, ref = source.options.get("depth", ""), source.options.get("ref", "")
        if depth and not depth.isdecimal():
            raise BadSource(f"depth {depth!r} is not a number")
        if ref.startswith("-"):
            raise BadSource(f"ref {ref!r} is not the name of a revision")
        url, verify = source.url, not order.artifact.getter_insecure
        if parts.scheme != "ssh":
            url = await self._repository(url, verify=verify)
        from daemon.runner.artifacts.git import Git  # few artifacts come from a repository

        git = Git(workshop, await self._address_of(url), source.options.get("sshkey", ""), verify)
        target = f"{workshop}/{_FETCHED}/tree"
        await git.clone(url, target, ref, depth, self.limits, order.arrived)
        await trio.to_thread.run_sync(partial(place.discard, f"{target}/.git"))

    async def _repository(self, url: str, *, verify: bool) -> str:
        """Return where a repository is by now: git itself is to follow nothing."""
        parts = urlsplit(url)
        listed = f"{parts.path.rstrip('/')}{_LISTED}"
        asked = urlunsplit(parts._replace(path=listed, query=_SERVICE))
        async with self._opened(asked, (), verify=verify) as (found, _):
            ends = urlsplit(found)
            if found == asked or not ends.path.endswith(_LISTED):
                return url
            path = ends.path.removesuffix(_LISTED)
            return urlunsplit(ends._replace(path=path, query=""))

    async def _address_of(self, url: str) -> tuple[str, int, str]:
        """Return a host, a port, and the address at which it is asked: so no name leads elsewhere."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _GIT_PORTS[parts.scheme]
        found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in found]
        for address in addresses:
            self.permit(address, port)
        return host, port, addresses[0]

    # ---- file --------------------------------------------------------------------------------------

    def _copy(self, source: Source, workshop: str) -> None:
        path = os.path.realpath(urlsplit(source.url).path)
        if not any(path == one or path.startswith(f"{one}/") for one in self.files_from):
            raise Forbidden(
                f"no file may come from {path}: name its directory in artifact_paths"
                " in the daemon's configuration"
            )
        if os.path.isdir(path):
            _limit(path, self.limits)
            shutil.copytree(path, f"{workshop}/{_FETCHED}/tree", symlinks=True)
        else:
            if (size := os.stat(path).st_size) > self.limits.bytes:
                raise BadArchive(f"it has {size} bytes, more than {self.limits.bytes}")
            shutil.copyfile(path, f"{workshop}/{_FETCHED}/file")

    # ---- what was fetched --------------------------------------------------------------------------

    def _unpack(self, source: Source, order: Order, workshop: str, target: tuple[str, str]) -> None:
        file, tree = f"{workshop}/{_FETCHED}/file", f"{workshop}/{_FETCHED}/tree"
        mode, archive = order.artifact.getter_mode, source.archive
        if os.path.isdir(tree):
            check_links(tree)
            _limit(tree, self.limits)
        else:
            _verify(file, source.options.get("checksum", ""))
            tree = f"{workshop}/{_OUT}"
            if archive:
                unpacker = Unpacker(tree, self.limits, trio.from_thread.check_cancelled)
                unpacker.unpack(file, archive, source.name)
            elif mode == "dir":
                raise BadSource("mode dir needs an archive or a repository")
            else:
                os.chmod(file, 0o644)
                os.rename(file, f"{tree}/{target[1] or source.name}")
        if source.folder:
            tree = _inner(tree, source.folder)
        if order.owner is not None:
            place.give(tree, order.owner)
        with place.opened(order.root, target[0]) as directory:
            if mode == "file" and archive:
                names = os.listdir(tree)
                if len(names) != 1:
                    raise BadArchive(f"mode file needs one file, the archive holds {len(names)}")
                os.rename(f"{tree}/{names[0]}", f"{tree}/{target[1]}")
            place.move(tree, directory)


def destination(order: Order) -> tuple[str, str]:
    """Return the folder below the allocation's directory, and the name of the file if it has one.

    Raises `Escapes`, or `Forbidden` when artifacts may not go there.
    """
    given = order.artifact.relative_dest or "local/"
    folder, name = meant(order.base, order.places, given), ""
    if order.artifact.getter_mode == "file":
        folder, _, name = folder.rpartition("/")
    if not places.may_be_filled(folder, order.base):
        raise Forbidden(places.refusal(given))
    return folder, name


def _moved(
    url: str, location: str, headers: Sequence[http.Header]
) -> tuple[str, list[http.Header]]:
    """Return where an answer sends us; secrets go to nobody else than whom they are for."""
    target = urljoin(url, location)
    if urlsplit(target).netloc == urlsplit(url).netloc:
        return target, list(headers)
    return target, [one for one in headers if one[0].lower() not in _SECRET_HEADERS]


def _verify(path: str, wanted: str) -> None:
    """Raise `BadArchive` unless a file has the checksum that it should have."""
    if not wanted:
        return
    kind, colon, value = wanted.partition(":")
    if not colon:
        kind, value = _CHECKSUMS.get(len(wanted), ""), wanted
    if kind not in _CHECKSUMS.values():
        raise BadSource(f"checksum {wanted!r} is of no known kind")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, kind).hexdigest()
    if found != value.strip().lower():
        raise BadArchive(f"Checksums did not match: expected {value}, got {found}")


def _limit(tree: str, limits: Limits) -> None:
    """Raise `BadArchive` if a tree is larger than the limits allow."""
    size = count = 0
    for folder, directories, files in os.walk(tree):
        count += len(directories) + len(files)
        size += sum(os.lstat(f"{folder}/{name}").st_size for name in files)
    if size > limits.bytes or count > limits.files:
        raise BadArchive(
            f"{count} files with {size} bytes are more than {limits.files} with {limits.bytes}"
        )


def _inner(tree: str, folder: str) -> str:
    """Return the part of what was fetched that is wanted. Raises `BadSource`."""
    found = os.path.realpath(f"{tree}/{folder}")
    if not os.path.isdir(found) or not found.startswith(f"{os.path.realpath(tree)}/"):
        raise BadSource(f"there is no folder {folder!r} in it")
    return found

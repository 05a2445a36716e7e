"""Download an artifact into a staging directory and install it into the task directory.

The fetcher rejects connections to the cloud metadata service, to other link-local addresses and to
the daemon's own listeners. It also rejects files of this host outside the configured directories,
and downloads that exceed the limits on size, count or time.
"""

import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import msgspec
import trio

from daemon.config.data_directory import payload_dir
from daemon.net import egress_policy, http_client
from daemon.net.egress_policy import EgressDenied
from daemon.net.http_client import HttpError
from daemon.runner.core.safe_open import PathEscape
from daemon.runner.core.task_files import TaskFiles
from daemon.runner.setup.artifacts import install
from daemon.runner.setup.artifacts.archive import ArchiveLimits, BadArchive, Unpacker, check_links
from daemon.runner.setup.artifacts.source import (
    ArtifactSource,
    InvalidSource,
    SourceType,
    is_file_name,
    parse,
)
from storage.errors import StewardError
from storage.records import places
from storage.records.numbers import parse_integer
from storage.records.task import Artifact

if TYPE_CHECKING:
    from daemon.runner.setup.artifacts.git_sandbox import GitSandbox, SandboxedGit

_REDIRECTS = 10
_MOVED = frozenset({301, 302, 303, 307, 308})
_GOOD = range(200, 300)
_LONGEST_NUMBER = 10  # characters
_SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
_CHECKSUMS = {32: "md5", 40: "sha1", 64: "sha256", 128: "sha512"}
_FETCHED = "fetched"  # subdirectory of the staging directory for the download
_OUT = "out"  # subdirectory for the unpacked content
_LISTED, _SERVICE = "/info/refs", "service=git-upload-pack"  # path of the first request of a clone
_GIT_PORTS = {"http": 80, "https": 443, "ssh": 22}


class FetchFailed(StewardError):
    """An artifact could not be fetched; `recoverable` is true if another try may succeed."""

    def __init__(self, source: str, why: object, *, recoverable: bool) -> None:
        super().__init__(f'failed to download artifact "{source}": {why}')
        self.recoverable = recoverable


class ArtifactRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact with its references interpolated, its task, and its destination."""

    artifact: Artifact
    files: TaskFiles  # access to the files of the task
    # Returns the digest of a named file of the job, or an empty string.
    payload: Callable[[str], str] = lambda _: ""
    # Returns the digest of a file that a step left, by step, element and path, or an empty string.
    kept_digest: Callable[[str, int | None, str], Awaitable[str]] | None = None
    namespace: str = ""  # namespace of the job
    # Called with the number of bytes downloaded so far.
    arrived: Callable[[int], None] = lambda _: None


class ArtifactFetcher(msgspec.Struct, frozen=True, kw_only=True):
    """Fetches artifacts within the limits of this node."""

    staging: str  # a directory that only the daemon can access
    payloads: str = ""  # the directory of the input files of jobs
    limits: ArchiveLimits
    seconds: float
    files_from: tuple[str, ...]  # directories of this host that `file` artifacts may come from
    own_ports: frozenset[int]  # ports of the daemon's listeners
    # Opens sandboxes for git; without it, git runs as a child of the daemon.
    git_sandbox: "Callable[[], GitSandbox] | None" = None

    async def fetch(self, request: ArtifactRequest) -> None:
        """Fetch an artifact and install it into the task directory. Raises `FetchFailed`."""
        url = request.artifact.getter_source
        try:
            source = parse(url, request.artifact.getter_options or {})
            target = destination(request)
            workshop = f"{self.staging}/{request.files.staging_name}"
            await trio.to_thread.run_sync(partial(install.discard, workshop))
            os.makedirs(f"{workshop}/{_FETCHED}", 0o700)
            os.mkdir(f"{workshop}/{_OUT}", 0o700)
            try:
                with trio.fail_after(self.seconds):
                    await self._fetch_source(source, request, workshop)
                    unpack = partial(self._unpack, source, request, workshop, target)
                    tree = await trio.to_thread.run_sync(unpack)
                    is_read_only = source.options.get("readonly") == "true"
                    await self._install_tree(tree, request, target[0], is_read_only=is_read_only)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(partial(install.discard, workshop))
        except (InvalidSource, BadArchive, EgressDenied, PathEscape) as error:
            raise FetchFailed(url, error, recoverable=False) from error
        except trio.TooSlowError as error:
            why = f"not downloaded within {self.seconds:g} seconds"
            raise FetchFailed(url, why, recoverable=True) from error
        except (HttpError, OSError) as error:
            raise FetchFailed(url, error, recoverable=True) from error

    async def _fetch_source(
        self, source: ArtifactSource, request: ArtifactRequest, workshop: str
    ) -> None:
        match source.kind:
            case SourceType.HTTP:
                await self._download(source, request, f"{workshop}/{_FETCHED}/file")
            case SourceType.GIT:
                await self._clone(source, request, workshop)
            case SourceType.FILE:
                await trio.to_thread.run_sync(self._copy, source, workshop)
            case SourceType.PAYLOAD:
                name = urlsplit(source.url).netloc
                digest = request.payload(name)
                if not digest:
                    raise InvalidSource(
                        f"the job has no file {name!r}: dispatch it with --file {name}=PATH"
                    )
                take = partial(
                    self._copy_upload, request.namespace, digest, f"{workshop}/{_FETCHED}/file"
                )
                await trio.to_thread.run_sync(take)
            case SourceType.KEPT:
                digest = await _kept_digest(source, request)
                take = partial(
                    self._copy_upload, request.namespace, digest, f"{workshop}/{_FETCHED}/file"
                )
                await trio.to_thread.run_sync(take)

    # --- http ---

    async def _download(self, source: ArtifactSource, request: ArtifactRequest, path: str) -> None:
        headers = list((request.artifact.getter_headers or {}).items())
        verify = not request.artifact.getter_insecure
        async with self._opened(source.url, headers, verify=verify) as (_, answer):
            if answer.status not in _GOOD:
                raise HttpError(f"bad response code: {answer.status}")
            await self._store(answer, path, request.arrived)

    @asynccontextmanager
    async def _opened(
        self, url: str, headers: Sequence[http_client.Header], *, verify: bool
    ) -> AsyncIterator[tuple[str, http_client.HttpResponse]]:
        """Yield the final URL after all redirects, and its response. Raises `HttpError`."""
        for _ in range(_REDIRECTS + 1):
            question = http_client.send_request(
                url, headers=headers, verify=verify, permit=self.permit
            )
            async with question as answer:
                if answer.status not in _MOVED or "location" not in answer.headers:
                    yield url, answer
                    return
            url, headers = _moved(url, answer.headers["location"], headers)
        raise HttpError(f"stopped after {_REDIRECTS} redirects")

    async def _store(
        self, answer: http_client.HttpResponse, path: str, arrived: Callable[[int], None]
    ) -> None:
        length = answer.headers.get("content-length", "")
        if length.isdecimal() and parse_integer(length) > self.limits.bytes:
            raise BadArchive(f"it has {length} bytes, more than {self.limits.bytes}")
        size = 0
        # A write to the page cache, which is shorter than a thread switch.
        with open(path, "xb") as file:  # noqa: ASYNC230
            async for chunk in answer.body:
                size += len(chunk)
                if size > self.limits.bytes:
                    raise BadArchive(f"it has more than {self.limits.bytes} bytes")
                file.write(chunk)
                arrived(size)

    def permit(self, address: str, port: int) -> None:
        """Raise `EgressDenied` for an address that no task may reach through the daemon."""
        egress_policy.check(address, port, own_ports=self.own_ports)

    # --- git ---

    async def _clone(self, source: ArtifactSource, request: ArtifactRequest, workshop: str) -> None:
        """Clone a repository into `workshop`, the staging directory of the artifact.

        The size of the tree is checked before files are written.
        """
        parts = urlsplit(source.url)
        if parts.scheme not in {"https", "http", "ssh"}:
            raise InvalidSource(f"git over {parts.scheme!r} is not supported")
        if not parts.hostname:
            raise InvalidSource("the address names no host")
        depth, ref = source.options.get("depth", ""), source.options.get("ref", "")
        if depth and not depth.isdecimal():
            raise InvalidSource(f"depth {depth!r} is not a number")
        if ref.startswith("-"):
            raise InvalidSource(f"ref {ref!r} is not the name of a revision")
        url, verify = source.url, not request.artifact.getter_insecure
        if parts.scheme != "ssh":
            url = await self._repository(url, verify=verify)
        # Imported late, because few artifacts are repositories.
        from daemon.runner.setup.artifacts.git import GitClient, LocalGit, read_key

        address, key = await self._address_of(url), read_key(source.options.get("sshkey", ""))
        tree = f"{workshop}/{_FETCHED}/tree"
        async with AsyncExitStack() as resources:
            git_client: LocalGit | SandboxedGit = LocalGit(workshop, tree)
            if self.git_sandbox is not None:
                git_client = await resources.enter_async_context(self.git_sandbox().open(workshop))
            git = GitClient(
                git_client, address, await git_client.keep_key(key) if key else "", verify=verify
            )
            await git.clone(url, ref, depth, self.limits, request.arrived)
            await git_client.deliver(tree, self.limits)
        await trio.to_thread.run_sync(partial(install.discard, f"{tree}/.git"))

    async def _repository(self, url: str, *, verify: bool) -> str:
        """Return the address of a repository after redirects; git itself must not follow any."""
        parts = urlsplit(url)
        listed = f"{parts.path.rstrip('/')}{_LISTED}"
        refs_url = urlunsplit(parts._replace(path=listed, query=_SERVICE))
        async with self._opened(refs_url, (), verify=verify) as (final_url, _):
            ends = urlsplit(final_url)
            if final_url == refs_url or not ends.path.endswith(_LISTED):
                return url
            path = ends.path.removesuffix(_LISTED)
            return urlunsplit(ends._replace(path=path, query=""))

    async def _address_of(self, url: str) -> tuple[str, int, str]:
        """Return the host, the port and the resolved address that git must use.

        A pinned address prevents a second lookup with another result (DNS rebinding).
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _GIT_PORTS[parts.scheme]
        resolved = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in resolved]
        for address in addresses:
            self.permit(address, port)
        return host, port, addresses[0]

    # --- file ---

    def _copy(self, source: ArtifactSource, workshop: str) -> None:
        # Imported late, because few artifacts are files of this host.
        from daemon.runner.setup.artifacts.local_files import LocalFiles

        files = LocalFiles(self.files_from, self.limits, trio.from_thread.check_cancelled)
        files.copy(urlsplit(source.url).path, f"{workshop}/{_FETCHED}")

    # --- payload ---

    def _copy_upload(self, namespace: str, digest: str, path: str) -> None:
        """Copy an uploaded file, and verify its content. Raises `BadArchive`."""
        source = f"{payload_dir(self.payloads, namespace)}/{digest}"
        try:
            size = os.stat(source).st_size
        except FileNotFoundError as error:
            raise BadArchive(
                f"the file with digest {digest} is missing, for example after a snapshot restore: "
                "dispatch the job again"
            ) from error
        if size > self.limits.bytes:
            raise BadArchive(f"it has {size} bytes, more than {self.limits.bytes}")
        shutil.copyfile(source, path)
        try:
            _verify(path, f"sha256:{digest}")
        except BadArchive as error:
            # Without its file, the digest counts as lost and can be uploaded again.
            with suppress(FileNotFoundError):
                os.unlink(source)
            raise BadArchive(
                f"{error}; upload the file again, and dispatch the job again"
            ) from None

    # --- installation ---

    async def _install_tree(
        self, tree: str, request: ArtifactRequest, folder: str, *, is_read_only: bool
    ) -> None:
        """Install a tree into a directory of the task. Raises `BadArchive` or `OSError`."""
        end, writer = os.pipe()
        errors: list[Exception] = []

        async def send() -> None:
            try:
                await trio.to_thread.run_sync(
                    partial(_send, tree, writer, is_read_only=is_read_only)
                )
            except BrokenPipeError:  # the launcher reports the reason
                pass
            except (BadArchive, OSError) as error:
                errors.insert(0, error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            try:
                limits = self.limits
                await request.files.unpack(folder, end, size=limits.bytes, count=limits.files)
            except ValueError as error:
                errors.append(BadArchive(str(error)))
            except (PathEscape, OSError) as error:
                errors.append(error)
            finally:
                os.close(end)
        if errors:
            raise errors[0]

    def _unpack(
        self,
        source: ArtifactSource,
        request: ArtifactRequest,
        workshop: str,
        target: tuple[str, str],
    ) -> str:
        """Return the path of the unpacked tree of a download.

        `target` is the result of `destination`. Raises `BadArchive`, `InvalidSource` or `OSError`.
        """
        file, tree = f"{workshop}/{_FETCHED}/file", f"{workshop}/{_FETCHED}/tree"
        mode, archive = request.artifact.getter_mode, source.archive
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
                raise InvalidSource("mode dir needs an archive or a repository")
            else:
                os.chmod(file, 0o644)
                os.rename(file, f"{tree}/{_plain(target[1] or source.name)}")
        if source.folder:
            tree = _inner(tree, source.folder)
        if mode == "file" and archive:
            names = os.listdir(tree)
            if len(names) != 1:
                raise BadArchive(
                    f"mode file needs exactly one file, but the archive has {len(names)} entries"
                )
            os.rename(f"{tree}/{names[0]}", f"{tree}/{_plain(target[1])}")
        return tree


async def _kept_digest(source: ArtifactSource, request: ArtifactRequest) -> str:
    """Return the digest of the file that `kept://STEP/PATH` names. Raises `InvalidSource`."""
    parts = urlsplit(source.url)
    step, path = unquote(parts.netloc), unquote(parts.path).lstrip("/")
    text = source.options.get("element", "")
    if text and not (text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER):
        raise InvalidSource(f"element {text!r} is not the index of an element, such as 0")
    digest = (
        await request.kept_digest(step, int(text) if text else None, path)
        if request.kept_digest
        else ""
    )
    if not digest:
        where = f"element {text} of step" if text else "step"
        raise InvalidSource(
            f"Steward keeps no file {path!r} of {where} {step!r}: the step's group needs "
            'meta { steward_keep = "PATTERN" }, and the allocation must still exist'
        )
    return digest


def _plain(name: str) -> str:
    """Return the name unchanged if it is a plain file name. Raises `InvalidSource`."""
    if not is_file_name(name):
        raise InvalidSource(
            f"{name!r} is not a plain file name: it must not be empty, '.' or '..', or contain '/'"
        )
    return name


def _send(tree: str, stream: int, *, is_read_only: bool) -> None:
    check = trio.from_thread.check_cancelled
    with open(stream, "wb") as file:
        install.send(tree, file, check, is_read_only=is_read_only)


def destination(request: ArtifactRequest) -> tuple[str, str]:
    """Return the folder and the file name of an artifact's destination.

    The folder is relative to the allocation directory. The name is empty except in mode `file`.
    Raises `PathEscape`, or `EgressDenied` if artifacts are not permitted there.
    """
    destination_path = request.artifact.relative_dest or "local/"
    folder, name = request.files.resolve(destination_path), ""
    if request.artifact.getter_mode == "file":
        folder, _, name = folder.rpartition("/")
    if not places.may_be_filled(folder, request.files.task):
        raise EgressDenied(places.refusal(destination_path))
    return folder, name


def _moved(
    url: str, location: str, headers: Sequence[http_client.Header]
) -> tuple[str, list[http_client.Header]]:
    """Return the redirect target and the headers for it; credentials go only to the same origin."""
    target = urljoin(url, location)
    if urlsplit(target).netloc == urlsplit(url).netloc:
        return target, list(headers)
    return target, [header for header in headers if header[0].lower() not in _SECRET_HEADERS]


def _verify(path: str, expected: str) -> None:
    """Raise `BadArchive` unless a file has the expected checksum."""
    if not expected:
        return
    kind, colon, value = expected.partition(":")
    if not colon:
        kind, value = _CHECKSUMS.get(len(expected), ""), expected
    if kind not in _CHECKSUMS.values():
        raise InvalidSource(f"checksum {expected!r} has an unknown type")
    with open(path, "rb") as file:
        checksum = hashlib.file_digest(file, kind).hexdigest()
    if checksum != value.strip().lower():
        raise BadArchive(f"Checksums did not match: expected {value}, got {checksum}")


def _limit(tree: str, limits: ArchiveLimits) -> None:
    """Raise `BadArchive` if a tree exceeds the limits."""
    size = count = 0
    for folder, directories, files in os.walk(tree):
        count += len(directories) + len(files)
        size += sum(os.lstat(f"{folder}/{name}").st_size for name in files)
    if size > limits.bytes or count > limits.files:
        raise BadArchive(
            f"{count} files with {size} bytes exceed the limit of {limits.files} files with {limits.bytes} bytes"
        )


def _inner(tree: str, folder: str) -> str:
    """Return the requested subdirectory of a download. Raises `InvalidSource`."""
    path = os.path.realpath(f"{tree}/{folder}")
    if not os.path.isdir(path) or not path.startswith(f"{os.path.realpath(tree)}/"):
        raise InvalidSource(f"the download has no folder {folder!r}")
    return path

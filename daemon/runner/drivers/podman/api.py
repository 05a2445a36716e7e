"""A client for podman's REST service on a Unix socket (libpod API, version 4).

An error response, or no response, raises `PodmanFailed`. An operation succeeds without effect if
its result exists already, for example when a container is already running.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec
import trio

from daemon.net.http_client import Header, HttpError, send_request
from storage.errors import StewardError

T = TypeVar("T")

_ROOT = "/v4.0.0/libpod"
_MOST = 4 << 20  # bytes of a response
_ANSWERS_WITHIN = 60.0  # seconds; operations that may take longer have another limit, or none
_OK = 200
_REFUSED = 300
_NOT_FOUND, _CONFLICT = 404, 409
_DONE_BEFORE = 304
_POLL = "20ms"  # podman's interval for polling the state of a container


class PodmanFailed(StewardError):
    """Podman reported an error, or did not answer (status 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class PodmanCause(msgspec.Struct, frozen=True):
    """The error message of a response."""

    message: str = ""


class PullProgress(msgspec.Struct, frozen=True):
    """A progress line of an image pull."""

    error: str = ""


class CreatedContainer(msgspec.Struct, rename="pascal", frozen=True):
    """The response to a create request: the ID of the created object."""

    id: str


class PodmanVersion(msgspec.Struct, rename="pascal", frozen=True):
    """The version of podman."""

    version: str = ""


class PodmanSecurity(msgspec.Struct, frozen=True):
    """The security settings of the service; `rootless` means that it does not run as root."""

    rootless: bool = False


class PodmanHost(msgspec.Struct, rename="camel", frozen=True):
    """The part of podman's description that concerns the host."""

    cgroup_version: str = ""
    cgroup_controllers: list[str] | None = None
    security: PodmanSecurity = PodmanSecurity()


class PodmanInfo(msgspec.Struct, frozen=True):
    """Podman's description of itself."""

    host: PodmanHost = PodmanHost()
    version: PodmanVersion = PodmanVersion()


class ContainerState(msgspec.Struct, rename="pascal", frozen=True):
    """The state of a container and its exit result."""

    status: str = ""
    running: bool = False
    exit_code: int = 0
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    error: str = ""


class Container(msgspec.Struct, rename="pascal", frozen=True):
    """A container: its ID and its state."""

    id: str
    state: ContainerState = ContainerState()


class ContainerListItem(msgspec.Struct, rename="pascal", frozen=True):
    """An entry in a list of containers."""

    id: str


class InterfaceStats(msgspec.Struct, frozen=True):
    """The traffic of a network interface of a container in bytes."""

    received: int = msgspec.field(default=0, name="RxBytes")
    sent: int = msgspec.field(default=0, name="TxBytes")


class ContainerStats(msgspec.Struct, frozen=True):
    """The usage of a container in nanoseconds and bytes.

    Since version 5, podman reports traffic by interface. In earlier versions, the direction that
    `NetInput` counts is not reliable.
    """

    cpu: int = msgspec.field(default=0, name="CPUNano")
    system: int = msgspec.field(default=0, name="CPUSystemNano")
    memory: int = msgspec.field(default=0, name="MemUsage")
    networks: Mapping[str, InterfaceStats] | None = msgspec.field(default=None, name="Network")


class AllStats(msgspec.Struct, rename="pascal", frozen=True):
    """The response to a request for statistics: the usage of several containers."""

    stats: list[ContainerStats] | None = None


class ExecSpec(msgspec.Struct, rename="pascal", frozen=True):
    """The state of an exec session, with the process ID of its command on the host."""

    running: bool = False
    exit_code: int = 0
    pid: int = 0


class PodmanClient:
    """A client of the podman service behind a Unix socket."""

    def __init__(
        self, socket: str, dial: Callable[[], Awaitable[trio.SocketStream]] | None = None
    ) -> None:
        """Initialize; `dial` connects to the socket if the daemon has no permission to do so."""
        self.socket, self.dial = socket, dial or partial(trio.open_unix_socket, socket)

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Sequence[Header] = (),
        done: Sequence[int] = (),
        within: float = _ANSWERS_WITHIN,
    ) -> bytes:
        """Send a request and return the body of the response. Raises `PodmanFailed`.

        The response must arrive in `within` seconds. Statuses in `done` also count as success.
        """
        content = b"" if body is None else msgspec.json.encode(body)
        sort = [("content-type", "application/json")] if content else []
        # Without a content length, the service would wait for the body of a POST.
        sort += [("content-length", "0")] if method == "POST" and not content else []
        url = f"http://podman{_ROOT}{path}" + (f"?{urlencode(query)}" if query else "")
        received = bytearray()
        try:
            with trio.fail_after(within):
                async with send_request(
                    url, method=method, headers=[*sort, *headers], body=content, dial=self.dial
                ) as reply:
                    async for chunk in reply.body:
                        received += chunk
                        if len(received) > _MOST:
                            raise PodmanFailed(f"podman: the response to {path} is too large")
        except trio.TooSlowError as error:
            raise PodmanFailed(f"podman did not answer within {within:.0f} seconds") from error
        except HttpError as error:
            raise PodmanFailed(f"podman does not answer at {self.socket}: {error}") from error
        if not _OK <= reply.status < _REFUSED and reply.status not in done:
            raise PodmanFailed(_reason(bytes(received), reply.status), reply.status)
        return bytes(received)

    async def _read(self, kind: type[T], path: str, query: Mapping[str, str] | None = None) -> T:
        return _decode(kind, await self._request("GET", path, query))

    async def info(self) -> PodmanInfo:
        """Return podman's description of itself."""
        return await self._read(PodmanInfo, "/info")

    async def has_image(self, image: str) -> bool:
        """Return whether an image exists locally."""
        try:
            await self._request("GET", f"/images/{quote(image, safe='')}/exists")
        except PodmanFailed as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    async def pull(self, image: str, headers: Sequence[Header]) -> None:
        """Pull an image."""
        query = {"reference": image, "quiet": "true"}
        body = await self._request("POST", "/images/pull", query, headers=headers, within=inf)
        for line in body.splitlines():
            if line.strip() and (error := _decode(PullProgress, line).error):
                raise PodmanFailed(error)

    async def create(self, spec: Mapping[str, object]) -> bool:
        """Create a container; return false if a container with this name exists."""
        try:
            await self._request("POST", "/containers/create", body=spec)
        except PodmanFailed as error:
            if error.status in {_CONFLICT, 500} and "already in use" in str(error):
                return False
            raise
        return True

    async def start(self, name: str) -> None:
        """Start a container, unless it is running."""
        await self._request("POST", f"/containers/{name}/start", done=[_DONE_BEFORE])

    async def find(self, name: str) -> Container | None:
        """Return a container, or None if it does not exist."""
        try:
            return await self._read(Container, f"/containers/{name}/json")
        except PodmanFailed as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def wait(self, name: str) -> None:
        """Wait until a container has ended or was removed."""
        query = [("condition", "exited"), ("condition", "stopped"), ("interval", _POLL)]
        path = f"/containers/{name}/wait?{urlencode(query)}"
        await self._request("POST", path, done=[_NOT_FOUND], within=inf)

    async def kill(self, name: str, signal: str) -> None:
        """Send a signal to the first process of a running container."""
        path = f"/containers/{name}/kill"
        await self._request("POST", path, {"signal": signal}, done=[_NOT_FOUND, _CONFLICT])

    async def remove(self, name: str) -> None:
        """Kill and remove a container with its anonymous volumes."""
        query = {"force": "true", "v": "true", "timeout": "0"}
        await self._request("DELETE", f"/containers/{name}", query, done=[_NOT_FOUND])

    async def labelled(self, labels: Mapping[str, str]) -> list[str]:
        """Return the containers with all of these labels, in any state."""
        words = {"label": [f"{name}={value}" for name, value in labels.items()]}
        query = {"all": "true", "filters": msgspec.json.encode(words).decode()}
        body = await self._request("GET", "/containers/json", query)
        return [
            container.id
            for container in _decode(
                list[ContainerListItem], b"[]" if body.strip() == b"null" else body
            )
        ]

    async def stats(self, name: str) -> ContainerStats | None:
        """Return the usage of a container; None if it is not running."""
        query = {"containers": name, "stream": "false"}
        try:
            all_stats = await self._read(AllStats, "/containers/stats", query)
        except PodmanFailed:
            return None
        return next(iter(all_stats.stats or ()), None)

    async def prepare(self, name: str, command: Mapping[str, object]) -> str:
        """Create an exec session in a container and return its ID."""
        body = await self._request("POST", f"/containers/{name}/exec", body=command)
        return _decode(CreatedContainer, body).id

    def start_path(self, command: str) -> str:
        """Return the API path that starts an exec session and attaches to its streams."""
        return f"{_ROOT}/exec/{command}/start"

    async def command(self, command: str) -> ExecSpec:
        """Return the state of an exec session."""
        return await self._read(ExecSpec, f"/exec/{command}/json")

    async def resize(self, command: str, height: int, width: int) -> None:
        """Resize the terminal of an exec session."""
        query = {"h": str(height), "w": str(width)}
        await self._request("POST", f"/exec/{command}/resize", query, done=[_NOT_FOUND, _CONFLICT])


def _decode(kind: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise PodmanFailed(f"podman sent an invalid response: {error}") from error


def _reason(body: bytes, status: int) -> str:
    try:
        return msgspec.json.decode(body, type=PodmanCause).message or f"podman: status {status}"
    except msgspec.MsgspecError:
        return f"podman: status {status}: {body[:200].decode(errors='replace')}"

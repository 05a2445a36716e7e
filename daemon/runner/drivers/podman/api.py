"""What is asked of podman: its REST service on a Unix socket (libpod API, version 4).

An answer that cannot be had, or is a refusal, raises `PodmanFailed`; what has nothing to do because
it was done before counts as done.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import TypeVar
from urllib.parse import quote, urlencode

import msgspec
import trio

from daemon.runner.http import Header, HTTPFailed, ask
from storage.errors import StewardError

T = TypeVar("T")

_ROOT = "/v4.0.0/libpod"
_MOST = 4 << 20  # bytes of an answer
_ANSWERS_WITHIN = 60.0  # seconds; for what takes its time there is another limit, or none
_OK = 200
_REFUSED = 300
_NOT_FOUND, _CONFLICT = 404, 409
_DONE_BEFORE = 304
_POLL = "20ms"  # how often podman itself looks for the end of a container


class PodmanFailed(StewardError):
    """Podman refused, or did not answer (status 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Cause(msgspec.Struct, frozen=True):
    """What podman says of an error."""

    message: str = ""


class Progress(msgspec.Struct, frozen=True):
    """A line of a pull."""

    error: str = ""


class Made(msgspec.Struct, rename="pascal", frozen=True):
    """What was created."""

    id: str


class Version(msgspec.Struct, rename="pascal", frozen=True):
    """Which podman it is."""

    version: str = ""


class Security(msgspec.Struct, frozen=True):
    """Whether the service is a user's own."""

    rootless: bool = False


class Machine(msgspec.Struct, rename="camel", frozen=True):
    """Where it runs."""

    cgroup_version: str = ""
    cgroup_controllers: list[str] | None = None
    security: Security = Security()


class Info(msgspec.Struct, frozen=True):
    """What podman says of itself."""

    host: Machine = Machine()
    version: Version = Version()


class State(msgspec.Struct, rename="pascal", frozen=True):
    """What a container does, and how it ended."""

    status: str = ""
    running: bool = False
    exit_code: int = 0
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    error: str = ""


class Container(msgspec.Struct, rename="pascal", frozen=True):
    """A container."""

    id: str
    state: State = State()


class Listed(msgspec.Struct, rename="pascal", frozen=True):
    """A container of a list."""

    id: str


class Stats(msgspec.Struct, frozen=True):
    """What a container has used: nanoseconds and bytes."""

    cpu: int = msgspec.field(default=0, name="CPUNano")
    system: int = msgspec.field(default=0, name="CPUSystemNano")
    memory: int = msgspec.field(default=0, name="MemUsage")


class AllStats(msgspec.Struct, rename="pascal", frozen=True):
    """The same of several."""

    stats: list[Stats] | None = None


class Command(msgspec.Struct, rename="pascal", frozen=True):
    """A command that runs in a container, by the pid that it has on the machine."""

    running: bool = False
    exit_code: int = 0
    pid: int = 0


class Podman:
    """The service behind a socket."""

    def __init__(self, socket: str) -> None:
        self.socket = socket

    async def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        headers: Sequence[Header] = (),
        done: Sequence[int] = (),
        within: float = _ANSWERS_WITHIN,
    ) -> bytes:
        """Return the body of an answer; statuses in `done` are as good as success."""
        content = b"" if body is None else msgspec.json.encode(body)
        sort = [("content-type", "application/json")] if content else []
        # What is posted without a body says so, or the service waits for one.
        sort += [("content-length", "0")] if method == "POST" and not content else []
        url = f"http://podman{_ROOT}{path}" + (f"?{urlencode(query)}" if query else "")
        said = bytearray()
        try:
            with trio.fail_after(within):
                async with ask(
                    url, method=method, headers=[*sort, *headers], body=content, socket=self.socket
                ) as reply:
                    async for piece in reply.body:
                        said += piece
                        if len(said) > _MOST:
                            raise PodmanFailed(f"podman: the answer to {path} has no end")
        except trio.TooSlowError as error:
            raise PodmanFailed(f"podman did not answer within {within:.0f} seconds") from error
        except HTTPFailed as error:
            raise PodmanFailed(f"podman does not answer at {self.socket}: {error}") from error
        if not _OK <= reply.status < _REFUSED and reply.status not in done:
            raise PodmanFailed(_reason(bytes(said), reply.status), reply.status)
        return bytes(said)

    async def _read(self, kind: type[T], path: str, query: Mapping[str, str] | None = None) -> T:
        return _decode(kind, await self._ask("GET", path, query))

    async def info(self) -> Info:
        """Return what podman says of itself."""
        return await self._read(Info, "/info")

    async def has_image(self, image: str) -> bool:
        """Tell whether an image is there."""
        try:
            await self._ask("GET", f"/images/{quote(image, safe='')}/exists")
        except PodmanFailed as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    async def pull(self, image: str, headers: Sequence[Header]) -> None:
        """Fetch an image."""
        query = {"reference": image, "quiet": "true"}
        said = await self._ask("POST", "/images/pull", query, headers=headers, within=inf)
        for line in said.splitlines():
            if line.strip() and (error := _decode(Progress, line).error):
                raise PodmanFailed(error)

    async def create(self, spec: Mapping[str, object]) -> bool:
        """Make a container; tell whether it is a new one: the name may have been given before."""
        try:
            await self._ask("POST", "/containers/create", body=spec)
        except PodmanFailed as error:
            if error.status in {_CONFLICT, 500} and "already in use" in str(error):
                return False
            raise
        return True

    async def start(self, name: str) -> None:
        """Start a container, unless it runs."""
        await self._ask("POST", f"/containers/{name}/start", done=[_DONE_BEFORE])

    async def find(self, name: str) -> Container | None:
        """Return a container; None when there is none."""
        try:
            return await self._read(Container, f"/containers/{name}/json")
        except PodmanFailed as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def wait(self, name: str) -> None:
        """Return when a container has ended, or is gone."""
        query = [("condition", "exited"), ("condition", "stopped"), ("interval", _POLL)]
        path = f"/containers/{name}/wait?{urlencode(query)}"
        await self._ask("POST", path, done=[_NOT_FOUND], within=inf)

    async def kill(self, name: str, signal: str) -> None:
        """Send a signal to the first process of a container, if it runs."""
        path = f"/containers/{name}/kill"
        await self._ask("POST", path, {"signal": signal}, done=[_NOT_FOUND, _CONFLICT])

    async def remove(self, name: str) -> None:
        """End a container, and forget it with its volumes that have no name."""
        query = {"force": "true", "v": "true", "timeout": "0"}
        await self._ask("DELETE", f"/containers/{name}", query, done=[_NOT_FOUND])

    async def labelled(self, labels: Mapping[str, str]) -> list[str]:
        """Return the containers that have all of these labels, whatever they do."""
        words = {"label": [f"{name}={value}" for name, value in labels.items()]}
        query = {"all": "true", "filters": msgspec.json.encode(words).decode()}
        said = await self._ask("GET", "/containers/json", query)
        return [one.id for one in _decode(list[Listed], b"[]" if said.strip() == b"null" else said)]

    async def stats(self, name: str) -> Stats | None:
        """Return what a container has used; None when it does not run."""
        query = {"containers": name, "stream": "false"}
        try:
            found = await self._read(AllStats, "/containers/stats", query)
        except PodmanFailed:
            return None
        return next(iter(found.stats or ()), None)

    async def prepare(self, name: str, command: Mapping[str, object]) -> str:
        """Make a command ready that is to run in a container; return its id."""
        said = await self._ask("POST", f"/containers/{name}/exec", body=command)
        return _decode(Made, said).id

    def start_path(self, command: str) -> str:
        """Return where a command that was made ready is started, and its streams are had."""
        return f"{_ROOT}/exec/{command}/start"

    async def command(self, command: str) -> Command:
        """Return what became of a command."""
        return await self._read(Command, f"/exec/{command}/json")

    async def resize(self, command: str, height: int, width: int) -> None:
        """Give the terminal of a command another size."""
        query = {"h": str(height), "w": str(width)}
        await self._ask("POST", f"/exec/{command}/resize", query, done=[_NOT_FOUND, _CONFLICT])


def _decode(kind: type[T], said: bytes) -> T:
    try:
        return msgspec.json.decode(said, type=kind)
    except msgspec.MsgspecError as error:
        raise PodmanFailed(f"podman answers what cannot be read: {error}") from error


def _reason(said: bytes, status: int) -> str:
    try:
        return msgspec.json.decode(said, type=Cause).message or f"podman: status {status}"
    except msgspec.MsgspecError:
        return f"podman: status {status}: {said[:200].decode(errors='replace')}"

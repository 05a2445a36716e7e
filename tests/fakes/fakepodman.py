"""A fake podman on a Unix socket, with exactly the REST calls of podman's documentation.

The fake is strict: an unknown path, query, field or type gets status 400 and an entry in `faults`.
Containers are processes of the host without a sandbox; environment variables name the directories
of mounts. Their output goes line by line to the file in `log_configuration`, in the format of
podman's monitor.
"""

import os
import re
import signal
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import msgspec
import trio

VERSION = "4.3.1"
ROOT = "/v4.0.0/libpod"
STAMP = b"2026-11-22T08:00:00.000000000+00:00"
# Fields of a container to create (SpecGenerator), with their types.
SPEC: dict[str, type] = {
    "name": str,
    "image": str,
    "command": list,
    "entrypoint": list,
    "env": dict,
    "labels": dict,
    "work_dir": str,
    "user": str,
    "hostname": str,
    "groups": list,
    "hostadd": list,
    "shm_size": int,
    "portmappings": list,
    "r_limits": list,
    "mounts": list,
    "netns": dict,
    "cap_add": list,
    "cap_drop": list,
    "no_new_privileges": bool,
    "read_only_filesystem": bool,
    "restart_policy": str,
    "systemd": str,
    "terminal": bool,
    "stdin": bool,
    "init": bool,
    "log_configuration": dict,
    "resource_limits": dict,
    "dns_server": list,
    "dns_search": list,
    "dns_option": list,
}
PARTS: dict[str, set[str]] = {
    "mounts": {"type", "source", "destination", "options"},
    "portmappings": {"container_port", "host_port", "host_ip", "protocol", "range"},
    "r_limits": {"type", "soft", "hard"},
}
EXEC = {"AttachStdin", "AttachStdout", "AttachStderr", "Tty", "Cmd", "Env", "User", "WorkingDir"}


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Container:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.id = spec, os.urandom(32).hex()
        self.process: trio.Process | None = None
        self.ended = trio.Event()
        self.code = 0
        self.oom = False

    @property
    def log(self) -> str:
        return str(self.spec["log_configuration"]["path"])

    @property
    def running(self) -> bool:
        return self.process is not None and not self.ended.is_set()

    @property
    def state(self) -> dict[str, Any]:
        status = "running" if self.running else "exited" if self.process else "created"
        return {
            "Status": status,
            "Running": self.running,
            "ExitCode": self.code,
            "OOMKilled": self.oom,
            "Error": "",
        }


class FakePodman:
    """The service. `images` are local, and `shelf` holds images to pull."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.containers: dict[str, Container] = {}
        self.images = {"localhost/steward-test:1"}
        self.shelf: set[str] = set()
        self.pulled: list[tuple[str, str]] = []  # reference, credentials
        self.commands: dict[str, tuple[dict[str, Any], Container]] = {}
        self.processes: dict[str, trio.Process | None] = {}
        self.codes: dict[str, int] = {}
        self.started: list[trio.Process] = []
        self.faults: list[str] = []
        self.sizes: list[tuple[str, str]] = []

    # --- connections ---

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            protocol = h11.Connection(h11.SERVER)
            body, request = b"", None
            while not isinstance(event := protocol.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    protocol.receive_data(bytes(await stream.receive_some(65536)))
                elif isinstance(event, h11.Request):
                    request = event
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return
            assert request is not None
            path = urlsplit(request.target.decode()).path.removeprefix(ROOT)
            if match := re.fullmatch(r"/exec/(\w+)/start", path):
                await self._talk(stream, match[1], msgspec.json.decode(body))
                return
            try:
                status, answer = await self._answer(request, body)
            except Refusal as error:
                if error.status == 400:
                    self.faults.append(str(error))
                status = error.status
                answer = {"cause": "", "message": str(error), "response": status}
            with suppress(trio.BrokenResourceError):  # the client has disconnected
                await stream.send_all(_packed(protocol, status, answer))

    async def _answer(self, request: h11.Request, body: bytes) -> tuple[int, Any]:
        target, method = urlsplit(request.target.decode()), request.method.decode()
        if not target.path.startswith(ROOT):
            raise Refusal(400, f"{target.path}: no such version")
        path = target.path.removeprefix(ROOT)
        query = dict(parse_qsl(target.query))
        headers = {name.decode().lower(): text.decode() for name, text in request.headers}
        for verb, pattern, known, handler in self._routes():
            match = re.fullmatch(pattern, path)
            if match and verb == method:
                if unknown := query.keys() - known:
                    raise Refusal(400, f"{path}: unknown query {unknown}")
                words = [unquote(word) for word in match.groups()]
                given = msgspec.json.decode(body) if body else None
                return await handler(*words, query=query, headers=headers, body=given)
        raise Refusal(400, f"{method} {path}: no such call")

    def _routes(self) -> list[tuple[str, str, set[str], Callable[..., Awaitable[tuple[int, Any]]]]]:
        one = r"/containers/([\w.-]+)"
        return [
            ("GET", "/info", set(), self._info),
            ("GET", "/images/([^/]+)/exists", set(), self._exists),
            ("POST", "/images/pull", {"reference", "quiet"}, self._pull),
            ("POST", "/containers/create", set(), self._create),
            ("GET", "/containers/json", {"all", "filters"}, self._list),
            ("GET", "/containers/stats", {"containers", "stream"}, self._stats),
            ("POST", f"{one}/start", set(), self._start),
            ("GET", f"{one}/json", set(), self._inspect),
            ("POST", f"{one}/wait", {"condition", "interval"}, self._wait),
            ("POST", f"{one}/kill", {"signal"}, self._kill),
            ("POST", f"{one}/exec", set(), self._prepare),
            ("DELETE", one, {"force", "v", "timeout"}, self._remove),
            ("GET", r"/exec/(\w+)/json", set(), self._command),
            ("POST", r"/exec/(\w+)/resize", {"h", "w"}, self._resize),
        ]

    # --- calls ---

    async def _info(self, **_: Any) -> tuple[int, Any]:
        host = {
            "cgroupVersion": "v2",
            "cgroupControllers": ["cpu", "memory", "pids"],
            "security": {"rootless": False},
        }
        return 200, {"host": host, "version": {"Version": VERSION}}

    async def _exists(self, image: str, **_: Any) -> tuple[int, Any]:
        if image not in self.images:
            raise Refusal(404, f"failed to find image {image}: no such image")
        return 204, None

    async def _pull(
        self, *, query: Mapping[str, str], headers: Mapping[str, str], **_: Any
    ) -> tuple[int, Any]:
        reference = query["reference"]
        self.pulled.append((reference, headers.get("x-registry-auth", "")))
        if reference not in self.shelf:
            return 200, {"error": f"initializing source docker://{reference}: manifest unknown"}
        self.images |= {reference, reference.removeprefix("docker.io/library/")}
        return 200, {"images": ["1"], "id": "1"}

    async def _create(self, *, body: Any, **_: Any) -> tuple[int, Any]:
        _check(body)
        if body["image"] not in self.images:
            raise Refusal(404, f"{body['image']}: image not known")
        if body["name"] in self.containers:
            raise Refusal(
                500, f'creating container storage: the name "{body["name"]}" is already in use'
            )
        container = Container(body)
        self.containers[body["name"]] = container
        return 201, {"Id": container.id, "Warnings": []}

    def _find(self, name: str) -> Container:
        for key, one in self.containers.items():
            if name in (key, one.id):
                return one
        raise Refusal(404, f'no container with name or ID "{name}" found: no such container')

    async def _start(self, name: str, **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        if one.running:
            return 304, None
        argv = [*one.spec.get("entrypoint", []), *one.spec.get("command", [])]
        if not argv:
            raise Refusal(
                500, "no command or entrypoint provided, and no CMD or ENTRYPOINT from image"
            )
        try:
            one.process = await trio.lowlevel.open_process(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**one.spec["env"], "PATH": "/usr/bin:/bin", **_places(one.spec)},
                start_new_session=True,
            )
        except OSError as error:
            raise Refusal(500, f"crun: executable file `{argv[0]}`: {error.strerror}") from error
        self.started.append(one.process)
        self._nursery.start_soon(self._watch, one)
        return 204, None

    async def _watch(self, container: Container) -> None:
        process = container.process
        assert process is not None
        with _appended(container.log) as file:
            async with trio.open_nursery() as nursery:
                for kind in ("stdout", "stderr"):
                    nursery.start_soon(_pump, getattr(process, kind), kind.encode(), file)
        code = await process.wait()
        container.code = code if code >= 0 else 128 - code
        container.ended.set()

    async def _inspect(self, name: str, **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        return 200, {"Id": one.id, "Name": one.spec["name"], "State": one.state}

    async def _wait(self, name: str, **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        if one.process is not None:
            await one.ended.wait()
        return 200, one.code

    async def _kill(self, name: str, *, query: Mapping[str, str], **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        if not one.running:
            raise Refusal(409, f"can only kill running containers. {name} is in state exited")
        assert one.process is not None
        number = signal.Signals[query["signal"]]
        if number == signal.SIGKILL:
            os.killpg(one.process.pid, number)
        else:
            one.process.send_signal(number)
        return 204, None

    async def _remove(self, name: str, **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        if one.running:
            assert one.process is not None
            os.killpg(one.process.pid, signal.SIGKILL)
            await one.ended.wait()
        self.containers = {key: other for key, other in self.containers.items() if other is not one}
        return 200, [{"Id": one.id, "Err": None}]

    async def _list(self, *, query: Mapping[str, str], **_: Any) -> tuple[int, Any]:
        wanted = msgspec.json.decode(query["filters"])["label"]
        found = [
            {"Id": container.id}
            for container in self.containers.values()
            if {f"{k}={v}" for k, v in container.spec["labels"].items()} >= set(wanted)
        ]
        return 200, found

    async def _stats(self, *, query: Mapping[str, str], **_: Any) -> tuple[int, Any]:
        one = self._find(query["containers"])
        if not one.running:
            raise Refusal(409, "container is stopped")
        said = {"ContainerID": one.id, "CPUNano": 7000, "CPUSystemNano": 2000, "MemUsage": 4096}
        traffic = {"RxBytes": 9 << 40, "RxDropped": 0, "TxBytes": 1 << 40, "TxDropped": 0}
        said["Network"] = {"eth0": traffic}
        return 200, {"Error": None, "Stats": [said]}

    # --- exec sessions ---

    async def _prepare(self, name: str, *, body: Any, **_: Any) -> tuple[int, Any]:
        one = self._find(name)
        if unknown := body.keys() - EXEC:
            raise Refusal(400, f"exec: unknown fields {unknown}")
        if not one.running:
            raise Refusal(409, "can only create exec sessions on running containers")
        made = os.urandom(32).hex()
        self.commands[made] = (body, one)
        return 201, {"Id": made}

    async def _command(self, name: str, **_: Any) -> tuple[int, Any]:
        process = self.processes.get(name)
        running = process is not None and name not in self.codes
        return 200, {
            "Running": running,
            "ExitCode": self.codes.get(name, 0),
            "Pid": process.pid if process is not None and running else 0,
        }

    async def _resize(self, name: str, *, query: Mapping[str, str], **_: Any) -> tuple[int, Any]:
        self.sizes.append((query["h"], query["w"]))
        return 201, None

    async def _talk(self, stream: trio.SocketStream, name: str, body: Any) -> None:
        asked, one = self.commands[name]
        assert body == {"Detach": False, "Tty": asked["Tty"]}
        await stream.send_all(
            b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        try:
            process = await trio.lowlevel.open_process(
                asked["Cmd"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**one.spec["env"], "PATH": "/usr/bin:/bin"},
                start_new_session=True,
            )
        except OSError:
            self.codes[name] = 127
            self.processes[name] = None
            return
        self.processes[name] = process
        self.started.append(process)
        turn = trio.Lock()
        async with trio.open_nursery() as nursery:

            async def send(source: trio.abc.ReceiveStream, number: int) -> None:
                async for data in source:
                    head = b"" if asked["Tty"] else struct.pack(">B3xL", number, len(data))
                    async with turn:
                        await stream.send_all(head + data)

            async def feed() -> None:
                assert process.stdin is not None
                try:
                    while data := await stream.receive_some(65536):
                        await process.stdin.send_all(data)
                    await process.stdin.aclose()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return

            nursery.start_soon(feed)
            try:
                async with trio.open_nursery() as outputs:
                    assert process.stdout is not None
                    assert process.stderr is not None
                    outputs.start_soon(send, process.stdout, 1)
                    outputs.start_soon(send, process.stderr, 2)
            except* (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # the client has disconnected: podman keeps the command running
            code = await process.wait()
            self.codes[name] = code if code >= 0 else 128 - code
            nursery.cancel_scope.cancel()


def _packed(protocol: h11.Connection, status: int, answer: Any) -> bytes:
    said = b"" if answer is None else msgspec.json.encode(answer)
    head = [("content-length", str(len(said))), ("connection", "close")]
    events: list[Any] = [h11.Response(status_code=status, headers=head)]
    events += [h11.Data(data=said)] if said else []
    return b"".join(protocol.send(event) or b"" for event in [*events, h11.EndOfMessage()])


def _appended(path: str) -> Any:
    return open(path, "ab", buffering=0)


async def _end(process: trio.Process) -> None:
    """Kill a process with its descendants, and close its open files."""
    with suppress(ProcessLookupError):  # the process has ended
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await trio.aclose_forcefully(stream)


async def _pump(source: trio.abc.ReceiveStream, kind: bytes, file: Any) -> None:
    rest = b""
    async for data in source:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            file.write(b" ".join((STAMP, kind, b"F", line)) + b"\n")
    if rest:
        file.write(b" ".join((STAMP, kind, b"P", rest)) + b"\n")


def _places(spec: dict[str, Any]) -> dict[str, str]:
    """Return the mounts as environment variables, because the process has no mount namespace."""
    return {
        "AT" + mount["destination"].replace("/", "_"): mount["source"]
        for mount in spec["mounts"]
        if mount["type"] == "bind"
    }


def _check(spec: dict[str, Any]) -> None:
    for name, value in spec.items():
        if name not in SPEC or not isinstance(value, SPEC[name]):
            raise Refusal(400, f"create: {name} = {value!r}")
        for part in value if name in PARTS else ():
            if unknown := part.keys() - PARTS[name]:
                raise Refusal(400, f"create: {name}: {unknown}")
    for name, value in spec["env"].items():
        if not isinstance(value, str):
            raise Refusal(400, f"create: env {name}")
    if unknown := spec["resource_limits"].keys() - {"cpu", "memory", "pids"}:
        raise Refusal(400, f"create: resource_limits {unknown}")


@asynccontextmanager
async def serve_podman(socket: str) -> AsyncIterator[FakePodman]:
    """Serve at a socket while the block runs."""
    async with trio.open_nursery() as nursery:
        fake = FakePodman(nursery)
        listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listening.bind(socket)
        listening.listen(64)
        listeners = [trio.SocketListener(listening)]
        await nursery.start(trio.serve_listeners, fake.serve, listeners)
        try:
            yield fake
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for process in fake.started:
                    await _end(process)

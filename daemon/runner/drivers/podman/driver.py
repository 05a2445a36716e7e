"""The driver `podman`: tasks as containers.

Podman's monitor process outlives the daemon. The name of a container identifies its attempt, so a
restarted daemon finds it. A container is removed after its end is recorded. Containers of purged
allocations are found by their labels.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec
import trio

from daemon.launcher.messages import Whose
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    ExitResult,
    Fingerprint,
    StartFailed,
    TaskHandle,
)
from daemon.runner.core.resource_usage import CpuAccount, UsageReading
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import driver_config
from daemon.runner.drivers.limits import CONTROLLERS, limits_of
from daemon.runner.drivers.podman import container_spec
from daemon.runner.drivers.podman.api import (
    Container,
    InterfaceStats,
    PodmanClient,
    PodmanFailed,
    PodmanInfo,
)
from daemon.runner.drivers.podman.container_spec import PodmanConfig
from daemon.runner.drivers.podman.logs import ContainerLogReader
from daemon.runner.drivers.process_handle import signal_number
from storage.records import durations
from storage.records.base import SECOND
from storage.records.driver import spellings
from storage.records.usage import MemoryUsage

_NAMES = spellings("podman")
_PLACES = TaskDirectories(shared="/alloc", local=container_spec.HOME, secrets="/secrets")
_OUTPUT = "podman."  # prefix of the output file of podman's monitor
_AGAIN = 1.0  # seconds between retries when podman does not answer
_ANSWERS_WITHIN = 10.0
_SIGNALLED = 128
_OOM = "OOM Killed"  # Nomad's message
_GONE = ExitResult(
    code=137, signal=9, message="the container was removed: the result of the task is unknown"
)

_log = logging.getLogger("steward.runner")


class PodmanDriver:
    """The driver `podman`. `found` is podman's description, or the reason why it is unusable.

    A container gets only some variables of `inherited`, the agent's environment, because images
    define their own.
    """

    file_owner_rule: Whose = "anybody"
    is_prompt = False  # an image may have to be pulled first

    def __init__(
        self,
        name: str,
        podman: PodmanClient,
        info: PodmanInfo | str,
        *,
        inherited: Mapping[str, str] = MappingProxyType({}),
        volumes: bool = False,
        processes: int = 0,
    ) -> None:
        self.name = name
        self._inherited = inherited
        self._podman, self._found = podman, info
        self._volumes, self._processes = volumes, processes

    def fingerprint(self) -> Fingerprint:
        """Return the node attributes of the driver."""
        if isinstance(self._found, str):
            return Fingerprint(trouble=self._found)
        host, prefix = self._found.host, f"driver.{self.name}"
        there = set(host.cgroup_controllers or ())
        attributes = {
            "version": self._found.version.version,
            "rootless": str(host.security.rootless).lower(),
        }
        for kind, controller in CONTROLLERS.items():
            if controller in there:
                attributes[f"enforced.{kind}"] = f"cgroup {host.cgroup_version} ({controller})"
            else:
                attributes[f"unenforced.{kind}"] = f"podman has no controller {controller}"
        return Fingerprint(
            attributes={
                prefix: "true",
                **{f"{prefix}.{key}": text for key, text in attributes.items()},
            }
        )

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories inside the container."""
        return _PLACES

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless containers can be created from this configuration."""
        self._settings(block)

    def _settings(self, block: Mapping[str, object]) -> PodmanConfig:
        settings = driver_config.read(PodmanConfig, block)
        container_spec.check(settings, volumes=self._volumes)
        return settings

    async def start(self, attempt: Attempt) -> TaskHandle:
        """Pull the image if needed, and start the container unless it was started before."""
        settings = self._settings(attempt.config)
        limits = limits_of(attempt.resources, attempt.cores, attempt.mhz, self._processes)
        if isinstance(self._found, PodmanInfo) and "cpuset" not in (
            self._found.host.cgroup_controllers or ()
        ):
            limits = msgspec.structs.replace(limits, cores=())
        env = {
            name: text for name, text in attempt.env.items() if self._inherited.get(name) != text
        }
        spec = container_spec.container(
            msgspec.structs.replace(attempt, env=env), settings, limits, _output(attempt)
        )
        name = container_spec.container_name(attempt)
        try:
            os.makedirs(attempt.beside, mode=0o700, exist_ok=True)
            if attempt.number:  # podman may have started the previous attempt without a response
                before = msgspec.structs.replace(attempt, number=attempt.number - 1)
                await self._podman.remove(container_spec.container_name(before))
            if await self._podman.find(name) is None:
                await self._fetch(settings)
                await self._podman.create(spec)
            await self._podman.start(name)
        except OSError as error:
            raise StartFailed(
                f"cannot create {attempt.beside}: {error.strerror}", recoverable=True
            ) from error
        except PodmanFailed as error:
            if error.status:  # remove a container that cannot start
                await self._forget(name)
            raise StartFailed(f"podman: {error}", recoverable=not error.status) from error
        return self._running(attempt)

    async def _fetch(self, settings: PodmanConfig) -> None:
        image = settings.image.removeprefix("docker://")
        if not settings.force_pull and await self._podman.has_image(image):
            return
        with trio.move_on_after(
            durations.nanoseconds(settings.image_pull_timeout) / SECOND
        ) as time:
            await self._podman.pull(
                container_spec.full_name(settings.image), container_spec.credentials(settings)
            )
        if time.cancelled_caught:
            raise StartFailed(
                f"the image {image} was not pulled within {settings.image_pull_timeout}",
                recoverable=True,
            )

    async def _forget(self, name: str) -> None:
        try:
            await self._podman.remove(name)
        except PodmanFailed as error:
            _log.warning("container %s cannot be removed: %s", name, error)

    def _running(self, attempt: Attempt) -> "ContainerTask":
        return ContainerTask(self._podman, attempt)

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        """Re-attach to the container of an attempt; return None if the container does not exist."""
        name = container_spec.container_name(attempt)
        while True:
            try:
                container = await self._podman.find(name)
            except PodmanFailed as error:
                # The container may be running. Treating it as lost would start the task twice.
                _log.warning("cannot search for container %s: %s", name, error)
                await trio.sleep(_AGAIN)
                continue
            return self._running(attempt) if container is not None else None

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        """Run a command in the container, in the task's working directory and as its user."""
        settings = self._settings(attempt.config)
        exec_settings: dict[str, object] = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": tty,
            "Cmd": list(command),
            # Podman uses the container's directory and user in place of empty texts.
            "WorkingDir": settings.work_dir or settings.working_dir,
            "User": attempt.user,
        }
        # Imported late, because it is rarely needed.
        from daemon.runner.drivers.podman.exec import open_session

        return await open_session(
            self._podman, container_spec.container_name(attempt), exec_settings, tty=tty
        )

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Remove all containers of a purged allocation."""
        try:
            for name_of_container in await self._podman.labelled(
                container_spec.labels_of(alloc_id, directory)
            ):
                await self._podman.remove(name_of_container)
        except PodmanFailed as error:
            _log.warning("containers of allocation %s cannot be removed: %s", alloc_id, error)


def _output(attempt: Attempt) -> str:
    return f"{attempt.beside}/{_OUTPUT}{attempt.task}.{attempt.number}"


class ContainerTask:
    """An attempt with a started container."""

    def __init__(self, podman: PodmanClient, attempt: Attempt) -> None:
        self._podman, self._name = podman, container_spec.container_name(attempt)
        self._output = ContainerLogReader(_output(attempt), attempt.logs)
        self._ended = trio.Event()
        # Senders of signals do not wait. The buffer is larger than users can fill by hand.
        self._signals, self._sent = trio.open_memory_channel[str](64)

    @property
    def handle(self) -> bytes:
        """Return the name of the container."""
        return msgspec.json.encode({"container": self._name})

    async def wait(self) -> ExitResult:
        """Wait until the container has ended and its output is in the logs; return the result."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.follow)
            nursery.start_soon(self._send)
            container = await self._end()
            nursery.cancel_scope.cancel()
        await self._output.finish()
        self._output.remove()
        self._ended.set()
        try:
            await self._podman.remove(self._name)
        except PodmanFailed as error:
            _log.warning("container %s cannot be removed: %s", self._name, error)
        return _GONE if container is None else exit_result(container)

    async def _end(self) -> Container | None:
        """Wait until the container has ended, and return it; return None if it was removed."""
        while True:
            try:
                await self._podman.wait(self._name)
                container = await self._podman.find(self._name)
                if container is None or not container.state.running:
                    return container
            except PodmanFailed as error:
                _log.warning("cannot watch container %s: %s", self._name, error)
            await trio.sleep(_AGAIN)

    async def _send(self) -> None:
        async for name in self._sent:
            await self._kill(name)

    async def _kill(self, signal: str) -> str:
        """Send a signal; return the error or an empty string."""
        try:
            await self._podman.kill(self._name, signal)
        except PodmanFailed as error:
            return str(error)
        return ""

    async def signal(self, name: str) -> None:
        """Send a signal to the first process of the container; an unknown name means SIGINT."""
        try:
            self._signals.send_nowait(signal_number(name).name)
        except trio.WouldBlock:
            _log.warning("container %s: too many signals wait to be sent", self._name)

    async def stop(self, signal: str, grace: float) -> str:
        """Signal the first process, and kill all processes after `grace` seconds."""
        with trio.move_on_after(grace):
            await self._kill(signal_number(signal).name)
            await self._ended.wait()
            return ""
        while not self._ended.is_set():
            problem = await self._kill("SIGKILL")
            with trio.move_on_after(_ANSWERS_WITHIN):
                await self._ended.wait()
                return ""
            if problem:
                return problem
        return ""

    async def usage(self) -> UsageReading:
        """Return the usage of the container."""
        container_stats = await self._podman.stats(self._name)
        if container_stats is None:
            return UsageReading()
        memory = MemoryUsage(measured=("Usage",), usage=container_stats.memory)
        return UsageReading(
            account=CpuAccount(
                user=container_stats.cpu - container_stats.system,
                system=container_stats.system,
                memory=memory,
            ),
            traffic=_traffic(container_stats.networks),
        )

    async def pause(self) -> None:
        """Pause writing to the logs."""
        await self._output.pause()

    async def resume(self) -> None:
        """Resume writing to the logs."""
        await self._output.resume()

    def release(self) -> None:
        """Stop watching; podman's monitor continues."""


def _traffic(networks: Mapping[str, InterfaceStats] | None) -> tuple[int, int] | None:
    """Return the received and sent bytes; None for a container on the host's network."""
    if not networks:
        return None
    interfaces = networks.values()
    return sum(interface.received for interface in interfaces), sum(
        interface.sent for interface in interfaces
    )


def exit_result(container: Container) -> ExitResult:
    """Return the exit result of a container."""
    state = container.state
    number = state.exit_code - _SIGNALLED
    return ExitResult(
        code=state.exit_code,
        signal=number if 0 < number <= _SIGNALLED // 2 else 0,
        oom_killed=state.oom_killed,
        message=state.error or (_OOM if state.oom_killed else ""),
    )


async def find(
    socket: str,
    inherited: Mapping[str, str],
    dial: Callable[[], Awaitable[trio.SocketStream]] | None = None,
    *,
    volumes: bool,
    processes: int,
) -> list[PodmanDriver]:
    """Query podman, and return a driver for each driver name, usable or not.

    `dial` connects to the socket if the daemon has no permission to do so.
    """
    podman = PodmanClient(socket, dial)
    podman_info: PodmanInfo | str = (
        f"podman does not answer at {socket} within {_ANSWERS_WITHIN:.0f} seconds"
    )
    with trio.move_on_after(_ANSWERS_WITHIN):
        try:
            podman_info = await podman.info()
        except PodmanFailed as error:
            podman_info = str(error)
    return [
        PodmanDriver(
            name, podman, podman_info, inherited=inherited, volumes=volumes, processes=processes
        )
        for name in _NAMES
    ]

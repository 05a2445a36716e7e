"""The driver: tasks as containers that podman runs, watches and keeps account of.

Podman's own watcher outlives the daemon, so a container is found again by its name, which says whose
attempt it is. It is removed when its end was seen; one that nobody knows any more by its labels.
"""

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec
import trio

from daemon.launcher.directories import ANYBODY
from daemon.launcher.messages import Owner
from daemon.runner.drivers import config
from daemon.runner.drivers.driver import (
    Attempt,
    Exit,
    Fingerprint,
    Running,
    Session,
    StartFailed,
)
from daemon.runner.drivers.limits import CONTROLLERS, limits_of
from daemon.runner.drivers.podman import spec
from daemon.runner.drivers.podman.api import Container, Info, Podman, PodmanFailed
from daemon.runner.drivers.podman.logs import Output
from daemon.runner.drivers.podman.spec import Settings
from daemon.runner.drivers.process import signal_number
from daemon.runner.env import Directories
from daemon.runner.logs import TaskLog
from daemon.runner.usage import Account, Use
from storage.records import durations
from storage.records.base import SECOND
from storage.records.driver import spellings
from storage.records.usage import MemoryUsage

_NAMES = spellings("podman")
_PLACES = Directories(shared="/alloc", local=spec.HOME, secrets="/secrets")
_OUTPUT = ".podman."  # begins the name of the file that podman's watcher writes
_AGAIN = 1.0  # seconds until podman is asked again that did not answer
_ANSWERS_WITHIN = 10.0
_SIGNALLED = 128
_OOM = "OOM Killed"  # the peer's word
_GONE = Exit(code=137, signal=9, message="the container was removed: how the task ended is unknown")

_log = logging.getLogger("steward.runner")


class PodmanDriver:
    """The driver. `found` is what podman said of itself, or why it cannot be used.

    `inherited` is what tasks get of the agent's environment: an image has its own.
    """

    is_prompt = False  # an image may have to be fetched first

    def __init__(
        self,
        name: str,
        podman: Podman,
        found: Info | str,
        *,
        inherited: Mapping[str, str] = MappingProxyType({}),
        volumes: bool = False,
        processes: int = 0,
    ) -> None:
        self.name = name
        self._inherited = inherited
        self._podman, self._found = podman, found
        self._volumes, self._processes = volumes, processes

    def fingerprint(self) -> Fingerprint:
        """Return what a node says of the driver."""
        if isinstance(self._found, str):
            return Fingerprint(trouble=self._found)
        host, prefix = self._found.host, f"driver.{self.name}"
        there = set(host.cgroup_controllers or ())
        said = {
            "version": self._found.version.version,
            "rootless": str(host.security.rootless).lower(),
        }
        for kind, controller in CONTROLLERS.items():
            if controller in there:
                said[f"enforced.{kind}"] = f"cgroup {host.cgroup_version} ({controller})"
            else:
                said[f"unenforced.{kind}"] = f"podman has no controller {controller}"
        return Fingerprint(
            attributes={prefix: "true", **{f"{prefix}.{key}": text for key, text in said.items()}}
        )

    def places(self, directory: str, task: str) -> Directories:
        """Return where a task finds its directories, in its container."""
        return _PLACES

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return `ANYBODY`: users are the image's."""
        return ANYBODY

    def check(self, block: Mapping[str, object]) -> None:
        """Raise `InvalidConfig` unless containers with this block can be run."""
        self._settings(block)

    def _settings(self, block: Mapping[str, object]) -> Settings:
        settings = config.read(Settings, block)
        spec.check(settings, volumes=self._volumes)
        return settings

    async def start(self, attempt: Attempt) -> Running:
        """Fetch the image if need be, and start the container, unless it was started before."""
        settings = self._settings(attempt.config)
        limits = limits_of(attempt.resources, attempt.cores, attempt.mhz, self._processes)
        if isinstance(self._found, Info) and "cpuset" not in (
            self._found.host.cgroup_controllers or ()
        ):
            limits = msgspec.structs.replace(limits, cores=())
        env = {
            name: text for name, text in attempt.env.items() if self._inherited.get(name) != text
        }
        wanted = spec.container(
            msgspec.structs.replace(attempt, env=env), settings, limits, _output(attempt)
        )
        name = spec.container_name(attempt)
        try:
            if attempt.number:  # podman may have started it, and not been able to say so
                before = msgspec.structs.replace(attempt, number=attempt.number - 1)
                await self._podman.remove(spec.container_name(before))
            if await self._podman.find(name) is None:
                await self._fetch(settings)
                await self._podman.create(wanted)
            await self._podman.start(name)
        except PodmanFailed as error:
            if error.status:  # nothing of a container that could not be started stays
                await self._forget(name)
            raise StartFailed(f"podman: {error}", recoverable=not error.status) from error
        return self._running(attempt)

    async def _fetch(self, settings: Settings) -> None:
        image = settings.image.removeprefix("docker://")
        if not settings.force_pull and await self._podman.has_image(image):
            return
        with trio.move_on_after(
            durations.nanoseconds(settings.image_pull_timeout) / SECOND
        ) as time:
            await self._podman.pull(spec.full_name(settings.image), spec.credentials(settings))
        if time.cancelled_caught:
            raise StartFailed(
                f"the image {image} did not come within {settings.image_pull_timeout}",
                recoverable=True,
            )

    async def _forget(self, name: str) -> None:
        try:
            await self._podman.remove(name)
        except PodmanFailed as error:
            _log.warning("container %s cannot be removed: %s", name, error)

    def _running(self, attempt: Attempt) -> "Contained":
        return Contained(self._podman, attempt)

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        """Find the container of an attempt; None when there is none."""
        name = spec.container_name(attempt)
        while True:
            try:
                found = await self._podman.find(name)
            except PodmanFailed as error:
                # It may well run: who takes it for gone would start it twice.
                _log.warning("container %s cannot be looked for: %s", name, error)
                await trio.sleep(_AGAIN)
                continue
            return self._running(attempt) if found is not None else None

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command in the container, as the task runs."""
        settings = self._settings(attempt.config)
        wanted: dict[str, object] = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": tty,
            "Cmd": list(command),
        }
        if directory := settings.work_dir or settings.working_dir:
            wanted["WorkingDir"] = directory
        if attempt.user:
            wanted["User"] = attempt.user
        from daemon.runner.drivers.podman.session import open_session  # few need it, and late

        return await open_session(self._podman, spec.container_name(attempt), wanted, tty=tty)

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Remove every container of an allocation that nobody knows any more."""
        try:
            for one in await self._podman.labelled(spec.labels_of(alloc_id, directory)):
                await self._podman.remove(one)
        except PodmanFailed as error:
            _log.warning("containers of allocation %s cannot be removed: %s", alloc_id, error)


def _output(attempt: Attempt) -> str:
    return f"{attempt.directory}/{_OUTPUT}{attempt.task}.{attempt.number}"


class Contained:
    """An attempt whose container was started."""

    def __init__(self, podman: Podman, attempt: Attempt) -> None:
        self._podman, self._name = podman, spec.container_name(attempt)
        logs = {
            kind: TaskLog(attempt.directory, attempt.task, kind, attempt.log)
            for kind in (() if attempt.log.disabled else ("stdout", "stderr"))
        }
        self._output = Output(_output(attempt), logs)
        self._ended = trio.Event()
        # Whoever signals does not wait; nobody sends more than a person types.
        self._signals, self._sent = trio.open_memory_channel[str](64)

    @property
    def handle(self) -> bytes:
        """Return the name of the container."""
        return msgspec.json.encode({"container": self._name})

    async def wait(self) -> Exit:
        """Return how the container ended, once all it printed was moved into the logs."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.follow)
            nursery.start_soon(self._send)
            found = await self._end()
            nursery.cancel_scope.cancel()
        await self._output.finish()
        self._output.remove()
        self._ended.set()
        try:
            await self._podman.remove(self._name)
        except PodmanFailed as error:
            _log.warning("container %s cannot be removed: %s", self._name, error)
        return _GONE if found is None else how_it_ended(found)

    async def _end(self) -> Container | None:
        """Return the container that has ended; None when it is gone."""
        while True:
            try:
                await self._podman.wait(self._name)
                found = await self._podman.find(self._name)
                if found is None or not found.state.running:
                    return found
            except PodmanFailed as error:
                _log.warning("container %s: %s", self._name, error)
            await trio.sleep(_AGAIN)

    async def _send(self) -> None:
        async for name in self._sent:
            await self._kill(name)

    async def _kill(self, signal: str) -> str:
        """Send a signal; return why that was not possible, or nothing."""
        try:
            await self._podman.kill(self._name, signal)
        except PodmanFailed as error:
            return str(error)
        return ""

    async def signal(self, name: str) -> None:
        """Send a signal to the container's first process; an unknown name means SIGINT."""
        try:
            self._signals.send_nowait(signal_number(name).name)
        except trio.WouldBlock:
            _log.warning("container %s: too many signals wait to be sent", self._name)

    async def stop(self, signal: str, grace: float) -> str:
        """Signal the first process, and kill all after `grace` seconds."""
        with trio.move_on_after(grace):
            await self._kill(signal_number(signal).name)
            await self._ended.wait()
            return ""
        while not self._ended.is_set():
            trouble = await self._kill("SIGKILL")
            with trio.move_on_after(_ANSWERS_WITHIN):
                await self._ended.wait()
                return ""
            if trouble:
                return trouble
        return ""

    async def usage(self) -> Use:
        """Return what the container has used."""
        found = await self._podman.stats(self._name)
        if found is None:
            return Use()
        memory = MemoryUsage(measured=("Usage",), usage=found.memory)
        return Use(
            account=Account(user=found.cpu - found.system, system=found.system, memory=memory)
        )

    async def pause(self) -> None:
        """Let nothing be written to its logs for a moment."""
        await self._output.pause()

    async def resume(self) -> None:
        """Let it be written again."""
        await self._output.resume()

    def release(self) -> None:
        """Let go of it: podman watches it."""


def how_it_ended(found: Container) -> Exit:
    """Return the end of a container, in the words of a task's."""
    state = found.state
    number = state.exit_code - _SIGNALLED
    return Exit(
        code=state.exit_code,
        signal=number if 0 < number <= _SIGNALLED // 2 else 0,
        oom_killed=state.oom_killed,
        message=state.error or (_OOM if state.oom_killed else ""),
    )


async def find(
    socket: str, inherited: Mapping[str, str], *, volumes: bool, processes: int
) -> list[PodmanDriver]:
    """Return the driver under both of its names, with what podman says at a socket of itself."""
    podman = Podman(socket)
    if not socket or not await trio.Path(socket).exists():
        why = f"there is no socket of podman at {socket}" if socket else "podman_socket is none"
        return [PodmanDriver(name, podman, why) for name in _NAMES]
    found: Info | str = f"podman does not answer at {socket} within {_ANSWERS_WITHIN:.0f} seconds"
    with trio.move_on_after(_ANSWERS_WITHIN):
        try:
            found = await podman.info()
        except PodmanFailed as error:
            found = str(error)
    return [
        PodmanDriver(name, podman, found, inherited=inherited, volumes=volumes, processes=processes)
        for name in _NAMES
    ]

"""What drivers share that run tasks as processes of this machine.

A task is started by a shell (`shim.py`) that waits for it, writes its exit status down and needs
a fifth of a MiB; the daemon waits for the shell, and so for processes that it did not start
itself just as well. Whether an attempt was started is decided by its claim (`claim.py`) alone: so
nothing starts twice, and nothing is lost, wherever the daemon was killed.
"""

import os
import resource
from collections.abc import Mapping, Sequence
from errno import EAGAIN, EBUSY, EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC

import trio

from daemon.launcher.client import Launcher
from daemon.launcher.messages import Owner, Start
from daemon.runner.drivers import claim, session, shim
from daemon.runner.drivers.cgroup import Cgroup
from daemon.runner.drivers.claim import Trace
from daemon.runner.drivers.driver import Attempt, Fingerprint, Running, Session, StartFailed
from daemon.runner.drivers.group import Group, Groups
from daemon.runner.drivers.limits import UNLIMITED, Bounds, Limits, data_limit, limits_of
from daemon.runner.drivers.permitted import EVERYBODY, TaskUsers
from daemon.runner.drivers.process import SOON, Bounded, Process, Started, open_process
from daemon.runner.env import Directories
from daemon.runner.taskdir import CLAIM, directories

Line = tuple[list[str], dict[str, str]]  # arguments and environment

_PATIENCE = 10.0  # seconds for a shim to go when its task is dead
_NULL = "/dev/null"
_NEEDED = "sh, setsid or env"
_TERMINAL = "xterm"  # what a terminal that somebody opens into a task is, unless the task says so
# Errors after which another attempt may go better: of what the machine lacks at the moment.
_PASSING = frozenset({ENOSPC, EDQUOT, EAGAIN, ENOMEM, EMFILE, ENFILE, EIO, EBUSY})


class Local:
    """Such a driver.

    `inherited` is what tasks get of the agent's environment, `launcher` what starts them, `processes`
    how many a task may have where that can be enforced.
    """

    name = ""
    is_prompt = True

    def __init__(
        self,
        groups: Groups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: Bounds = UNLIMITED,
        processes: int = 0,
        *,
        users: TaskUsers = EVERYBODY,
    ) -> None:
        self._groups, self._bounds = groups, bounds
        self._launcher = launcher
        self._processes, self._users = processes, users
        self._inherited = inherited
        self._tools = shim.find_tools()
        # The daemon raises its own limit; tasks get the one that it was started with.
        self._open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    # ---- what a driver decides for itself -----------------------------------------------------

    def _line(self, attempt: Attempt, entry: str) -> Line:
        """Return what starts the task. Raises `InvalidConfig`, `StartFailed` or `OSError`."""
        raise NotImplementedError

    def _session_line(
        self, attempt: Attempt, command: Sequence[str], entry: str, trace: Trace
    ) -> tuple[Line, int]:
        """Return what starts a command inside it, and who owns its terminal; raises as above."""
        raise NotImplementedError

    def _process(self, started: Started, descriptor: int | None) -> Process:
        return Process(self._launcher, started, descriptor)

    def _filter(self, attempt: Attempt) -> bytes:
        """Return the filter of system calls that the task is started with; nothing: none."""
        del attempt
        return b""

    def owner(self, user: str, alloc_id: str) -> Owner | None:
        """Return whom the files of a task are to belong to. Raises `StartFailed`."""
        found = self._users.find(self.name, user) if user else None
        return (found.uid, found.gid) if found else None

    def places(self, directory: str, task: str) -> Directories:
        """Return where a task finds its directories."""
        return directories(directory, task)

    def _limits(self, attempt: Attempt) -> Limits:
        """Return what a task may have at most."""
        return limits_of(attempt.resources, attempt.cores, attempt.mhz, self._processes)

    # ---- what is the same for all ---------------------------------------------------------------

    def _said(self, attributes: Mapping[str, str]) -> Fingerprint:
        """Return what a node says of the driver, and of how it holds processes together."""
        if self._tools is None:
            return Fingerprint(trouble=f"a program that it needs is missing: {_NEEDED}")
        prefix = f"driver.{self.name}"
        every = {**attributes, **self._groups.attributes}
        return Fingerprint(
            attributes={prefix: "true", **{f"{prefix}.{key}": text for key, text in every.items()}}
        )

    async def start(self, attempt: Attempt) -> Running:
        """Start the shell that runs the task, unless this attempt has been started before."""
        path = _claim_path(attempt)
        process = None
        try:
            if not (claim.is_held(path) or claim.read(path).shim):
                process = await self._spawn(attempt, path)
            return process or await self._find(attempt.alloc_id, attempt.task, attempt.number, path)
        except OSError as error:
            reason = f"cannot start the task: {error}"
            raise StartFailed(reason, recoverable=error.errno in _PASSING) from error
        except ValueError as error:  # a text that no process can be given
            raise StartFailed(f"cannot start the task: {error}") from error

    async def adopt(self, attempt: Attempt, handle: bytes) -> Running | None:
        """Find the attempt by its claim; None when there is none, or nothing was started."""
        del handle  # the claim says it all
        path = _claim_path(attempt)
        if claim.is_held(path) or claim.read(path).shim:
            return await self._find(attempt.alloc_id, attempt.task, attempt.number, path)
        # Its claim may have been removed under it: what is in the group would run beside the next.
        await self._groups.of(attempt.alloc_id, attempt.task).clear(Trace())
        return None

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """End every process of an allocation whose claims alone are left."""
        try:
            names = [name for name in os.listdir(directory) if name.startswith(CLAIM)]
        except OSError:
            names = []
        for name in names:
            task, _, number = name.removeprefix(CLAIM).rpartition(".")
            if number.isdecimal():
                await self._end(f"{directory}/{name}", alloc_id, task, int(number))
        await self._groups.of(alloc_id, "").clear(Trace())
        self._bounds.remove_all(alloc_id)

    async def _end(self, path: str, alloc_id: str, task: str, number: int) -> None:
        """Kill everything of an attempt, and see its shim go."""
        with trio.move_on_after(_PATIENCE):
            process = await self._find(alloc_id, task, number, path)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.wait)
                    await process.stop("SIGKILL", 0)
            finally:
                process.release()

    def _group(self, trace: Trace, alloc_id: str, task: str) -> Group:
        """Return the group that an attempt was started in, even by a daemon with other rights."""
        if trace.group.startswith("/"):
            return Cgroup(trace.group)
        return self._groups.of(alloc_id, task)

    async def _find(self, alloc_id: str, task: str, number: int, path: str) -> Process:
        """Return an attempt that was started before."""

        def process(trace: Trace, descriptor: int | None) -> Process:
            return self._process(self._started(alloc_id, task, number, path, trace), descriptor)

        while claim.is_held(path):
            trace = claim.read(path)
            if trace.shim:
                # The lock tells that the pid is still the shim's, if it is held after the opening.
                descriptor = open_process(trace.shim)
                if descriptor is not None and claim.is_held(path):
                    return process(trace, descriptor)
                if descriptor is not None:
                    os.close(descriptor)
                continue
            await trio.sleep(SOON)  # it has been started, and is about to say so
        return process(claim.read(path), None)

    def _started(self, alloc_id: str, task: str, number: int, path: str, trace: Trace) -> Started:
        bounded = Bounded(self._bounds, alloc_id, task)
        group = self._group(trace, alloc_id, task)
        return Started(
            alloc_id=alloc_id,
            task=task,
            number=number,
            path=path,
            group=group,
            bounded=bounded,
            shim=trace.shim,
        )

    async def _spawn(self, attempt: Attempt, path: str) -> Process | None:
        """Have the shell started; None when the attempt has begun. Raises `StartFailed`, `OSError`, `ValueError`."""
        limits = self._limits(attempt)
        group = self._groups.of(attempt.alloc_id, attempt.task, pinned=bool(limits.cores))
        entries = self._bounds.entries(attempt.alloc_id, attempt.task, limits)
        line = self._line(attempt, "\n".join([group.entry, *entries]))
        # Of an attempt whose claim was removed: nothing is started beside it.
        if group.is_populated() and (trouble := await group.clear(Trace())):
            raise StartFailed(f"an earlier attempt has not ended: {trouble}", recoverable=True)
        self._bounds.prepare(attempt.alloc_id, attempt.task, limits)
        group.prepare()
        request = Start(
            allocation=attempt.alloc_id,
            task=attempt.task,
            attempt=attempt.number,
            group=group.label,
            is_logged=not attempt.log.disabled,
        )
        with shim.readable(self._filter(attempt)) as filtered:
            started = await self._launcher.start(request, line, filtered)
        if started is None:
            return None
        pid, watched = started
        trace = Trace(group=group.label, shim=pid)
        return self._process(
            self._started(attempt.alloc_id, attempt.task, attempt.number, path, trace), watched
        )

    def _shell(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        attempt: Attempt,
        directory: str,
        entry: str,
        user: shim.User | None = None,
        wrap: Sequence[str] = (),
        inside: bool = False,
    ) -> Line:
        """Return the shell before a command. Raises `StartFailed`."""
        if self._tools is None:
            raise StartFailed(f"a program that {self.name} needs is missing: {_NEEDED}")
        if user is not None and not self._tools.setpriv:
            raise StartFailed("the program setpriv is missing: tasks cannot change their user")
        return shim.command_line(
            self._tools,
            command,
            env,
            directory=directory,
            entry=entry,
            open_files=self._open_files,
            data=data_limit(self._bounds, self._limits(attempt)),
            user=user,
            wrap=wrap,
            inside=inside,
        )

    async def open_session(self, attempt: Attempt, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command as the task itself runs, in the same group of processes."""
        trace = claim.read(_claim_path(attempt))
        group = self._group(trace, attempt.alloc_id, attempt.task).entry
        entry = "\n".join([group, *self._bounds.present(attempt.alloc_id, attempt.task)])
        try:
            (line, env), owner = self._session_line(attempt, command, entry, trace)
            filtered = self._filter(attempt)
            if tty:
                return session.start_with_terminal(
                    line, {"TERM": _TERMINAL, **env}, owner, filtered
                )
            return session.start(line, env, filtered)
        except (OSError, ValueError) as error:
            raise StartFailed(f"failed to start command: {error}") from error


def _claim_path(attempt: Attempt) -> str:
    return f"{attempt.directory}/{CLAIM}{attempt.task}.{attempt.number}"

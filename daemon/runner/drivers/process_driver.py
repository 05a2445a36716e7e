"""The common base of drivers that run tasks as local processes.

A task is started by a shim, a small shell script (`daemon/launcher/shim_script.py`) that needs 0.2
MiB of memory. The shim waits for the task and records its exit status. The daemon watches only the
shim, and never has to be the parent of a task, so it can be restarted while tasks run. Only the
claim file (`claim_file.py`) decides whether an attempt was started. No attempt starts twice and no
attempt is lost, no matter when the daemon is killed.
"""

import os
from collections.abc import Mapping, Sequence
from errno import EAGAIN, EBUSY, EDQUOT, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC
from typing import Any, Final

import msgspec
import trio

from daemon.launcher.channel import Refusal
from daemon.launcher.client import Launcher
from daemon.launcher.messages import (
    MOST_OUTPUTS,
    FindAttempt,
    ListClaims,
    ReadFile,
    StartTask,
    TaskCommand,
    WriteFile,
)
from daemon.launcher.messages import StartSession as Inside
from daemon.launcher.safe_open import CODE, ODD
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    Fingerprint,
    InvalidConfig,
    StartFailed,
    TaskFile,
    TaskHandle,
)
from daemon.runner.core.task_dir import CLAIM, directories
from daemon.runner.core.task_env import TaskDirectories
from daemon.runner.drivers import claim_file
from daemon.runner.drivers.cgroup_v2 import CgroupV2
from daemon.runner.drivers.claim_file import ClaimRecord
from daemon.runner.drivers.limits import (
    UNLIMITED,
    LimitEnforcer,
    ResourceLimits,
    data_limit,
    limits_of,
)
from daemon.runner.drivers.process_group import ProcessGroup, ProcessGroups
from daemon.runner.drivers.process_handle import SOON, LimitedTask, ProcessHandle, StartedTask

_PATIENCE = 10.0  # seconds for the shim of a dead task to exit
_SEPARATE = ("none", "bridge")  # network modes of groups that share a separate network
_PERSONAL: Final = ("HOME", "USER", "LOGNAME")
# Errors of temporary shortages, after which another attempt may succeed.
_PASSING = frozenset({ENOSPC, EDQUOT, EAGAIN, ENOMEM, EMFILE, ENFILE, EIO, EBUSY})

Common = dict[str, Any]  # fields of an order to the launcher


def _written(attempt: Attempt, file: TaskFile) -> WriteFile:
    return WriteFile(
        allocation=attempt.alloc_id,
        task=attempt.task,
        path=file.path,
        mode=file.mode,
        is_new=False,
        owner=None,
    )


class ProcessDriver:
    """The common base of drivers that run tasks as local processes.

    Tasks inherit `inherited` from the agent's environment. `launcher` starts them. `processes` is
    the limit on processes per task, if it can be enforced.
    """

    name = ""
    is_prompt = True
    writes_files = True

    def __init__(
        self,
        groups: ProcessGroups,
        inherited: Mapping[str, str],
        launcher: Launcher,
        bounds: LimitEnforcer = UNLIMITED,
        processes: int = 0,
    ) -> None:
        self._groups, self._bounds = groups, bounds
        self._launcher = launcher
        self._processes = processes
        self._inherited = inherited

    # --- driver-specific parts ---

    def _order(self, attempt: Attempt, common: Common) -> TaskCommand:
        """Return the launcher's command. Raises `InvalidConfig` or `StartFailed`."""
        raise NotImplementedError

    def _process(self, started: StartedTask, descriptor: int | None) -> ProcessHandle:
        return ProcessHandle(self._launcher, started, descriptor)

    def task_dirs(self, directory: str, task: str) -> TaskDirectories:
        """Return the task directories on this host."""
        return directories(directory, task)

    def _limits(self, attempt: Attempt) -> ResourceLimits:
        """Return the limits of a task."""
        return limits_of(attempt.resources, attempt.cores, attempt.mhz, self._processes)

    # --- common parts ---

    def _attributes(self, attributes: Mapping[str, str]) -> Fingerprint:
        """Return the fingerprint of the driver: `attributes` and those of the process tracking."""
        if problem := self._launcher.walls.tools:
            return Fingerprint(trouble=problem)
        prefix = f"driver.{self.name}"
        all_attributes = {**attributes, **self._groups.attributes}
        return Fingerprint(
            attributes={
                prefix: "true",
                **{f"{prefix}.{key}": text for key, text in all_attributes.items()},
            }
        )

    async def start(self, attempt: Attempt) -> TaskHandle:
        """Start the shim of the task, unless this attempt was started before."""
        try:
            return await self._spawn(attempt)
        except Refusal as error:
            await self._check_files(attempt)
            raise StartFailed(str(error)) from error
        except OSError as error:
            await self._check_files(attempt)
            reason = f"cannot start the task: {error}"
            raise StartFailed(reason, recoverable=error.errno in _PASSING) from error
        # A value that `exec` does not accept, such as a value with a zero byte.
        except ValueError as error:
            raise StartFailed(f"cannot start the task: {_null_byte(attempt) or error}") from error

    async def _check_files(self, attempt: Attempt) -> None:
        """Raise `StartFailed` if the files of an attempt are the reason why its start failed.

        For example, an earlier attempt may have left a directory or a link at the path of a file.
        The failure is recoverable, because such an obstacle may be gone at the next attempt.
        """
        for file in attempt.files:
            try:
                await self._launcher.write(_written(attempt, file), file.content)
            except OSError as error:
                reason = f"the results of earlier steps cannot be written: {error}"
                raise StartFailed(reason, recoverable=True) from error

    async def adopt(self, attempt: Attempt, handle: bytes) -> TaskHandle | None:
        """Re-attach to an attempt by its claim file; return None if it was not started."""
        del handle  # the claim file is sufficient
        if (present_task := await self._present(attempt)) is not None:
            return present_task
        # The claim file may have been deleted. Remaining processes must not run next to the next
        # attempt.
        await self._groups.of(attempt.alloc_id, attempt.task).clear(self._launcher)
        return None

    async def destroy(self, alloc_id: str, directory: str) -> None:
        """Kill all processes of an allocation, even if only its claim files are left."""
        for task, number in await self._launcher.claims(ListClaims(allocation=alloc_id)):
            await self._end(f"{directory}/{CLAIM}{task}.{number}", alloc_id, task, number)
        await self._groups.of(alloc_id, "").clear(self._launcher)
        self._bounds.remove_all(alloc_id)

    async def _end(self, path: str, alloc_id: str, task: str, number: int) -> None:
        """Kill all processes of an attempt, and wait for its shim to exit."""
        with trio.move_on_after(_PATIENCE):
            trace, descriptor = await self._find(alloc_id, task, number)
            started = self._started_task(alloc_id, task, number, path, trace)
            process = self._process(started, descriptor)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(process.wait)
                    await process.stop("SIGKILL", 0)
            finally:
                process.release()

    def _group(self, trace: ClaimRecord, alloc_id: str, task: str) -> ProcessGroup:
        """Return the process group that a claim file names, or the usual group of the attempt."""
        if trace.group.startswith("/"):
            return CgroupV2(trace.group)
        return self._groups.of(alloc_id, task)

    async def _find(self, alloc_id: str, task: str, number: int) -> tuple[ClaimRecord, int | None]:
        """Return the claim record of an attempt, and a pidfd of its shim if the shim is alive."""
        request = FindAttempt(allocation=alloc_id, task=task, attempt=number)
        while True:
            claimed, descriptor = await self._launcher.adopt(request)
            if descriptor is not None or not claimed.is_held:
                return claim_file.parse(claimed.text.decode(errors="replace")), descriptor
            await trio.sleep(SOON)  # the shim is running and about to write its line

    async def _present(self, attempt: Attempt) -> ProcessHandle | None:
        """Return the handle of an attempt that was started before, or None."""
        trace, descriptor = await self._find(attempt.alloc_id, attempt.task, attempt.number)
        if descriptor is None and not trace.shim:
            return None
        return self._process(self._started(attempt, trace), descriptor)

    def _started(self, attempt: Attempt, trace: ClaimRecord) -> StartedTask:
        path = f"{attempt.directory}/{CLAIM}{attempt.task}.{attempt.number}"
        names = (attempt.alloc_id, attempt.task, attempt.number)
        outputs = None
        if attempt.outputs:
            outputs = ReadFile(
                allocation=attempt.alloc_id,
                task=attempt.task,
                path=attempt.outputs,
                most=MOST_OUTPUTS,
            )
        return self._started_task(*names, path, trace, outputs)

    def _started_task(
        self,
        alloc_id: str,
        task: str,
        number: int,
        path: str,
        trace: ClaimRecord,
        outputs: ReadFile | None = None,
    ) -> StartedTask:
        return StartedTask(
            alloc_id=alloc_id,
            task=task,
            number=number,
            path=path,
            group=self._group(trace, alloc_id, task),
            bounded=LimitedTask(self._bounds, alloc_id, task),
            shim=trace.shim,
            outputs=outputs,
        )

    async def _spawn(self, attempt: Attempt) -> ProcessHandle:
        """Start the shim of an attempt, unless it was started before; return the handle.

        Raises `StartFailed`, `InvalidConfig`, `OSError`, `ValueError`.
        """
        limits = self._limits(attempt)
        group = self._groups.of(attempt.alloc_id, attempt.task, pinned=bool(limits.cores))
        entries = self._bounds.entries(attempt.alloc_id, attempt.task, limits)
        try:
            task_command = self._order(attempt, self._common(attempt, [group.entry, *entries]))
        # After an earlier start of the attempt, an input of the start may be gone.
        except (StartFailed, InvalidConfig, OSError):
            if (present_task := await self._present(attempt)) is not None:
                return present_task
            raise
        if group.is_populated():
            if (present_task := await self._present(attempt)) is not None:
                return present_task
            # If the claim file was deleted, processes may be left. Start nothing next to them.
            if problem := await group.clear(self._launcher):
                raise StartFailed(f"an earlier attempt has not ended: {problem}", recoverable=True)
        self._bounds.prepare(attempt.alloc_id, attempt.task, limits)
        group.prepare()
        request = StartTask(
            allocation=attempt.alloc_id,
            task=attempt.task,
            attempt=attempt.number,
            group=group.label,
            is_logged=not attempt.log.disabled,
            keeps=max((log.keeps for log in attempt.logs.values()), default=0),
        )
        started = await self._launcher.start(request, task_command)
        if started is None:
            trace, descriptor = await self._find(attempt.alloc_id, attempt.task, attempt.number)
            return self._process(self._started(attempt, trace), descriptor)
        pid, watched = started
        trace = ClaimRecord(group=group.label, shim=pid)
        return self._process(self._started(attempt, trace), watched)

    def _common(self, attempt: Attempt, entries: Sequence[str]) -> Common:
        """Return the command fields that all drivers share; `entries` are the cgroups to enter."""
        env = attempt.env
        return {
            "user": attempt.user,
            "env": {name.encode(CODE, ODD): value.encode(CODE, ODD) for name, value in env.items()},
            "personal": [name for name in _PERSONAL if env.get(name) == self._inherited.get(name)],
            "network": attempt.network_mode if attempt.network_mode in _SEPARATE else "host",
            "entries": [*entries],
            "data": data_limit(self._bounds, self._limits(attempt)),
            "files": [(_written(attempt, file), file.content) for file in attempt.files],
        }

    async def open_session(
        self, attempt: Attempt, command: Sequence[str], *, tty: bool
    ) -> ExecStream:
        """Run a command in the same environment and group as the task."""
        trace, descriptor = await self._find(attempt.alloc_id, attempt.task, attempt.number)
        if descriptor is not None:
            os.close(descriptor)
        group = self._group(trace, attempt.alloc_id, attempt.task).entry
        entries = [group, *self._bounds.present(attempt.alloc_id, attempt.task)]
        words = [os.fsencode(word) for word in command]
        task_command = msgspec.structs.replace(
            self._order(attempt, self._common(attempt, entries)),
            command=words[0],
            args=words[1:],
            files=[],
        )
        request = Inside(
            allocation=attempt.alloc_id, task=attempt.task, attempt=attempt.number, is_terminal=tty
        )
        try:
            number, ends = await self._launcher.open_session(request, task_command)
        except Refusal as error:
            raise StartFailed(str(error)) from error
        except (OSError, ValueError) as error:
            raise StartFailed(f"failed to start command: {error}") from error
        # Imported late, because sessions are rare.
        from daemon.runner.drivers.local_exec import PassedSession

        return PassedSession(self._launcher, number, *ends)


def _null_byte(attempt: Attempt) -> str:
    """Return a message about the first value with a null byte; empty if no value has one."""
    values = {"command": attempt.config.get("command"), "work_dir": attempt.config.get("work_dir")}
    args = attempt.config.get("args")
    values |= {f"args[{n}]": text for n, text in enumerate(args if isinstance(args, list) else ())}
    values |= {
        f"environment variable {name!r}": name + value for name, value in attempt.env.items()
    }
    named = (name for name, text in values.items() if isinstance(text, str) and "\0" in text)
    field = next(named, "")
    return f"{field} contains a null byte" if field else ""

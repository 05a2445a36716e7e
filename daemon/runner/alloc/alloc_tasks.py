"""The tasks of one allocation: requests of users, and stopping all tasks in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import trio

from daemon.runner.alloc.task_runner import TaskRunner
from daemon.runner.core.background import start_detached
from daemon.runner.core.driver import ExecStream
from daemon.runner.core.lifecycle import hook, kill_order
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.core.task_script import ScriptResult, run_script
from storage.errors import Refused, StorageUnavailable
from storage.records.task import Hook

_NOT_RUNNING = "Task not running"  # Nomad's text


class AllocTasks:
    """The task runners of one allocation; empty until the allocation directory is prepared.

    `instance` returns the current allocation. `is_ending` returns whether the allocation is
    stopping.
    """

    def __init__(self, instance: Callable[[], TaskInstance], is_ending: Callable[[], bool]) -> None:
        self._instance, self._is_ending = instance, is_ending
        self._runners: dict[str, TaskRunner] = {}
        self._nursery: trio.Nursery | None = None

    def __iter__(self) -> Iterator[TaskRunner]:
        return iter(self._runners.values())

    def add(self, runners: Iterable[TaskRunner]) -> None:
        """Add task runners without starting them."""
        self._runners = {runner.name: runner for runner in runners}

    def start(self, nursery: trio.Nursery) -> None:
        """Start all tasks; each waits until its predecessors in the lifecycle let it begin."""
        self._nursery = nursery
        for runner in self:
            nursery.start_soon(runner.run)
            if runner.is_stopping:
                start_detached(nursery, runner.continue_stop)

    def close(self) -> None:
        """Accept no further requests, because all tasks are dead."""
        self._nursery = None

    @property
    def are_dead(self) -> bool:
        """Return whether all tasks are dead; true if there are no tasks."""
        return all(runner.dead.is_set() for runner in self)

    @property
    def are_over(self) -> bool:
        """Return whether at least one task exists and all tasks are dead."""
        return bool(self._runners) and self.are_dead

    @property
    def live(self) -> list[TaskRunner]:
        """Return the runners of all live tasks except poststop tasks."""
        return [runner for runner in self._without_poststop() if not runner.dead.is_set()]

    def _without_poststop(self) -> list[TaskRunner]:
        tasks = self._instance().tasks
        return [self._runners[task.name] for task in tasks if hook(task) != Hook.POSTSTOP]

    # --- requests ---

    async def restart(self, name: str | None, *, all_tasks: bool = False) -> None:
        """Restart the named task; without a name, restart all running tasks.

        With `all_tasks`, also run the ended tasks again.

        The store has the request when this returns, so that a later daemon continues the restart.
        Raises `Refused`, also if there is no task to restart. Raises `StorageUnavailable`.
        """
        await self._settled()
        if name is None:
            tasks = [task for task in self if task.is_running]
        elif name in self._runners:
            tasks = [self._runners[name]]
        else:
            raise Refused(f"Could not find task runner for task: {name}")
        ended = self._ended_early() if all_tasks else []
        is_idle = not (tasks or ended)
        if self._nursery is None or is_idle or not all(task.is_running for task in tasks):
            raise Refused(_NOT_RUNNING)
        await self._restart_running(tasks)
        if all_tasks:
            await self._run_again(self._ended_early())

    async def _restart_running(self, tasks: Sequence[TaskRunner]) -> None:
        """Restart running tasks as soon as the store has the request. Raises `StorageUnavailable`.

        A request that is not stored has no effect.
        """
        for task in tasks:
            task.request_restart()
        try:
            await self._stored(tasks)
        except StorageUnavailable:
            for task in tasks:
                task.withdraw_restart()
            raise
        for task in tasks:
            if self._nursery is not None:
                start_detached(self._nursery, task.stop_attempt)

    async def _run_again(self, tasks: Sequence[TaskRunner]) -> None:
        """Run ended tasks again. Raises `StorageUnavailable` if a later daemon would not know it."""
        for task in tasks:
            if self._nursery is not None:
                task.prepare_rerun()
                start_detached(self._nursery, task.run)
        await self._stored(tasks)

    async def _stored(self, tasks: Sequence[TaskRunner]) -> None:
        """Wait until the store has the reports. Raises `StorageUnavailable`."""
        if tasks:
            await tasks[0].require_stored()  # all tasks share one report

    async def _settled(self) -> None:
        for task in self:
            await task.settled()

    def _ended_early(self) -> list[TaskRunner]:
        """Return the dead tasks of an allocation that still runs; empty if it is stopping."""
        if self._is_ending():  # a task that runs again would never be stopped
            return []
        return [task for task in self._without_poststop() if task.dead.is_set()]

    def restart_unhealthy(self, name: str, reason: str) -> None:
        """Restart a running task, as its restart policy permits.

        An empty name selects all running tasks.
        """
        for task in self:
            if name in ("", task.name) and task.is_running and self._nursery is not None:
                start_detached(self._nursery, task.restart, reason)

    async def signal(self, name: str | None, number: str) -> None:
        """Send a signal to the main process of one task, or of all running tasks.

        Raises `Refused`, also if no task is running.
        """
        await self._settled()
        if name is None:
            running = [task for task in self if task.is_running]
            if not running:
                raise Refused(_NOT_RUNNING)
            for task in running:
                if task.is_running:
                    await task.signal(number)
        elif name in self._runners:
            await self._runners[name].signal(number)
        else:
            raise Refused("Task not found")

    async def open_session(self, name: str, command: Sequence[str], *, tty: bool) -> ExecStream:
        """Run a command inside a task. Raises `Refused`, `NotFound` or `StartFailed`."""
        if name not in self._runners:
            raise Refused("task not found")
        return await self._runners[name].open_session(command, tty=tty)

    async def run_inside(self, name: str, command: Sequence[str]) -> ScriptResult:
        """Run a command inside a task until the command ends; return its result.

        Raises the same errors as `open_session`.
        """
        return await run_script(await self.open_session(name, command, tty=False))

    # --- the end ---

    def fail(self, tasks: Iterable[TaskRunner]) -> None:
        """Stop the tasks and mark them as failed, without waiting for their end."""
        for task in tasks:
            if self._nursery is not None:
                start_detached(self._nursery, task.fail)

    async def abort(self, at_most: float | None = None) -> None:
        """Stop all tasks concurrently, each within `at_most` seconds; None means no limit."""
        async with trio.open_nursery() as nursery:
            for task in self:
                nursery.start_soon(partial(task.kill, at_most=at_most))

    async def kill_in_order(self) -> None:
        """Stop all tasks, in the order of the lifecycle."""
        for step in kill_order(self._instance().tasks):
            async with trio.open_nursery() as nursery:
                for task in step:
                    nursery.start_soon(self._runners[task.name].kill)

"""Stop the tasks of an allocation at the end of `max_run_duration`."""

from collections.abc import Callable

import trio

from daemon.clock import seconds_left
from daemon.runner.alloc.alloc_tasks import AllocTasks
from daemon.runner.core import task_events
from daemon.runner.core.background import start_detached
from daemon.runner.core.lifecycle import first_start_time
from daemon.runner.core.notifier import Notifier
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup.runtime import RuntimeContext
from storage.records.allocation import OVERTIME


class RunLimit:
    """Stops all tasks of one allocation, including poststop tasks, at `max_run_duration`."""

    def __init__(
        self,
        host: RuntimeContext,
        instance: Callable[[], TaskInstance],
        report: AllocReport,
        changes: Notifier,
        tasks: AllocTasks,
    ) -> None:
        self._host, self._instance, self._report, self._changes = host, instance, report, changes
        self._tasks, self._is_started = tasks, False

    def start(self, nursery: trio.Nursery | None) -> None:
        """Start the timer if the job sets the limit and the timer was not started before."""
        is_limited = self._instance().group.max_run_duration is not None
        if nursery is not None and is_limited and not self._is_started:
            self._is_started = True
            start_detached(nursery, self._run)

    async def _run(self) -> None:
        while (left := self._time_left()) > 0:
            with trio.move_on_after(left):
                await self._changes.wait()
        longest = self._instance().group.max_run_duration or 0
        self._report.ended_for = OVERTIME
        for task in self._tasks.live:
            task.record(task_events.max_run_exceeded(self._host.clock.now(), longest))
        await self._tasks.abort()

    def _time_left(self) -> float:
        """Return the seconds until `max_run_duration` ends; infinite without a limit.

        The limit includes times at which the daemon is not running.
        """
        longest = self._instance().group.max_run_duration
        since: int | None = self._instance().allocation.create_time
        if self._host.capacity is None:  # time in the queue of a cluster does not count
            since = first_start_time(self._report.states.values())
        if longest is None or since is None:
            return float("inf")
        return seconds_left(since, longest, self._host.clock.now())

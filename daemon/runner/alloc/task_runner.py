"""Run one task of an allocation from its first attempt to its final state.

The runner starts the task, waits for it, and restarts it according to the restart policy until the
task finishes, fails or is killed. It records each start, end and restart as a task event, with
Nomad's text.

This module handles requests and restarts; `task_attempts.py` runs a single attempt. After a
daemon restart, the runner resumes from the state in the store.
"""

from collections.abc import Sequence

import msgspec
import trio

from daemon.clock import seconds_left
from daemon.runner.alloc.task_attempts import TaskAttempts
from daemon.runner.alloc.task_states import SETTLING, RunnerState
from daemon.runner.core import task_events
from daemon.runner.core.driver import (
    ExecStream,
    is_queued,
)
from daemon.runner.core.lifecycle import is_one_shot, may_start
from daemon.runner.core.notifier import Notifier, wait_any
from daemon.runner.core.resource_usage import UsageReading, UsageSample, task_usage
from daemon.runner.core.restart_policy import (
    AttemptOutcome,
    RestartAction,
    RestartDecision,
    decide_restart,
    restore_history,
)
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_instance import RestoredState, TaskInstance
from daemon.runner.setup.change_actions import ChangeAction, apply_change
from daemon.runner.setup.runtime import RuntimeContext
from storage.errors import NotFound, Refused
from storage.records.allocation import AttemptStop, StopCause, TaskEvent, TaskPhase
from storage.records.base import SECOND
from storage.records.times import rfc3339
from storage.records.usage import TaskUsage

_DEFAULT_SIGNAL = "SIGINT"
_STRENGTHS = [*StopCause]  # a stronger cause, later in this list, replaces a weaker one


class TaskRunner(TaskAttempts):
    """The state machine of one task; `task_states.py` has the table of its states."""

    def __init__(
        self,
        host: RuntimeContext,
        instance: TaskInstance,
        name: str,
        report: AllocReport,
        changes: Notifier,
        past: RestoredState,
    ) -> None:
        super().__init__(host, instance, name, report, changes, past)
        self.dead = trio.Event()
        began = instance.allocation.create_time or host.clock.now()
        self._history = restore_history(self.task.restart_policy, began, past.restarts)
        self._hurried = trio.Event()  # set to skip a shutdown delay
        self._kill_error = ""
        self._active_stops = 0  # calls of `_stop` that have not returned
        self._looked: dict[str, UsageSample] = {}  # the previous usage sample of each reader

    def _is_prompt(self) -> bool:
        driver = self._host.drivers.get(self.task.driver)
        return driver is not None and driver.is_prompt

    @property
    def is_stopping(self) -> bool:
        """Return whether a stop of the current attempt is unfinished."""
        return self._cause is not None

    # --- requests ---

    def update(self, instance: TaskInstance) -> None:
        """Apply a new version of the job, and the desired state that the scheduler has set."""
        self._instance = instance
        for log in self._logs():
            self._host.sweeper.update(log)
        if instance.allocation.desired.transition.no_shutdown_delay:
            self._hurried.set()

    def record(self, event: TaskEvent) -> None:
        """Record an event of the task, unless the task is dead."""
        if not self.dead.is_set() and not self._killed.is_set():
            self._report.event(self.name, event)

    def forbid_attempts(self) -> None:
        """Prevent further attempts of the task. A running attempt continues until it is killed."""
        if self._killed.is_set() or self.dead.is_set():
            return
        self._emit(task_events.killing(self._now(), self.task.kill_timeout))
        self._killed.set()
        self._record_stop(StopCause.KILL)
        self._changes.announce()

    async def kill(self, *, at_most: float | None = None) -> None:
        """Stop the task permanently and return when it is dead.

        The task gets its shutdown delay, kill signal and kill timeout. If `at_most` is given, the
        delay is skipped and the timeout is at most that many seconds.
        """
        self.forbid_attempts()
        while self._running is None and not self.dead.is_set():
            await self._changes.wait()
        if self._running is not None:
            if at_most is None:
                await self._delay_shutdown()
            await self._stop(at_most)
        await self.dead.wait()

    def prepare_rerun(self) -> None:
        """Prepare a task that ended successfully for another run; the caller then calls `run`."""
        self.dead = trio.Event()
        self._enter(RunnerState.WAITING)
        self._emit(task_events.restart_signaled(now := self._now(), task_events.BY_USER))
        self._set(
            state=TaskPhase.PENDING, restarts=self.state.restarts + 1, last_restart=rfc3339(now)
        )

    async def restart(self, reason: str = "", *, description: str = task_events.BY_USER) -> None:
        """Stop the current attempt, if any, and start the next immediately.

        With a `reason`, the restart counts as a failure and the restart policy decides. Without a
        reason, the restart does not count, and `description` is the text of the event. An attempt
        that is being restarted already gets no second request.
        """
        await self.settled()
        if self._running is None:
            return
        if self._is_new(StopCause.UNHEALTHY if reason else StopCause.RESTART):
            self.request_restart(reason, description=description)
            await self._report.stored_soon()
        await self._stop(None)

    def request_restart(self, reason: str = "", *, description: str = task_events.BY_USER) -> None:
        """Record a restart of the running attempt, as `restart` does, without stopping it.

        If the attempt ends now, the next attempt starts. `stop_attempt` stops it.
        """
        self._emit(task_events.restart_signaled(self._now(), reason or description))
        self._record_stop(StopCause.UNHEALTHY if reason else StopCause.RESTART)

    def withdraw_restart(self) -> None:
        """Withdraw a restart that `request_restart` has recorded."""
        if self._active_stops == 0 and self._cause is StopCause.RESTART:
            self._report.stops.pop(self.name, None)
            self._report.publish()

    async def stop_attempt(self) -> None:
        """Stop the running attempt, if any, for the recorded cause."""
        await self._stop(None)

    async def require_stored(self) -> None:
        """Wait until the store has all reports of the allocation. Raises `StorageUnavailable`."""
        await self._report.require_stored()

    async def continue_stop(self) -> None:
        """Continue the stop of an attempt that an earlier daemon has begun."""
        await self.settled()
        await (self.kill() if self._killed.is_set() else self._stop(None))

    async def fail(self) -> None:
        """Stop the current attempt, if any, and start no other attempt."""
        self._record_stop(StopCause.FAIL)
        await self._report.stored_soon()
        await self._stop(None)

    async def settled(self) -> None:
        """Wait until the driver has answered a pending start.

        Before the answer, the task may run although this runner has no handle. Do not wait for a
        driver whose starts may be slow.
        """
        while self._machine.state in SETTLING and self._is_prompt():
            await self._changes.wait()

    async def signal(self, name: str) -> None:
        """Send a signal to the main process of the task. Raises `Refused`."""
        await self.settled()
        if self._running is None:
            raise Refused("Task not running")
        self._emit(task_events.signaling(self._now(), name))
        self._report.publish()
        await self._running.signal(name)

    async def usage(self, reader: str = "") -> TaskUsage | None:
        """Return the resource usage, averaged since the previous call with the same `reader`.

        Return None if the task is not running.
        """
        await self.settled()
        if self._running is None:
            return None
        now = UsageSample(self._now(), await self._running.usage())
        before = self._looked.get(reader) or UsageSample(self._started_at(), UsageReading())
        self._looked[reader] = now
        return task_usage(before, now, self._host.mhz)

    async def open_session(self, command: Sequence[str], *, tty: bool) -> ExecStream:
        """Run a command inside the task.

        Raises `NotFound` when the task is not running, `StartFailed` when the command cannot start.
        """
        await self.settled()
        driver = self._host.drivers.get(self.task.driver)
        if self._running is None or driver is None:
            raise NotFound(f'task "{self.name}" is not running.')
        session = await driver.open_session(self._prepared(), command, tty=tty)
        self._sessions.add(session)
        return session

    # --- stops ---

    @property
    def _cause(self) -> StopCause | None:
        """Return the cause of the unfinished stop of the current attempt."""
        stop = self._report.stops.get(self.name)
        return stop.cause if stop else None

    def _record_stop(self, cause: StopCause) -> None:
        """Record and publish that the current attempt is being stopped for a cause.

        A later daemon continues the stop. A stronger earlier cause remains.
        """
        if self._is_new(cause):
            self._change_stop(cause=cause)
        self._report.publish()

    def _is_new(self, cause: StopCause) -> bool:
        """Return whether a cause is stronger than that of the unfinished stop, if there is one."""
        before = self._cause
        return before is None or _STRENGTHS.index(cause) > _STRENGTHS.index(before)

    def _change_stop(self, **changes: object) -> None:
        before = self._report.stops.get(self.name) or AttemptStop(cause=StopCause.KILL)
        self._report.stops[self.name] = msgspec.structs.replace(before, **changes)

    async def _delay_shutdown(self) -> None:
        delay = self.task.shutdown_delay
        stop = self._report.stops.get(self.name)
        if not delay or (stop is not None and stop.signaled_at):
            return
        if self._hurried.is_set():
            self._emit(task_events.skipping_shutdown(self._now(), delay))
            return
        if stop is None or not stop.delayed_at:
            self._emit(task_events.waiting_for_shutdown(self._now(), delay))
            self._change_stop(delayed_at=self._now())
            self._report.publish()
        began = self._report.stops[self.name].delayed_at
        with trio.move_on_after(seconds_left(began, delay, self._now())):
            await wait_any(self._hurried.wait, self.dead.wait)

    async def _stop(self, at_most: float | None) -> None:
        """Stop the current attempt, if it has not ended.

        The kill timeout begins with the first stop of the attempt. `at_most` limits the seconds
        between the signal and the kill. Without it, a stop that is in progress is not repeated.
        """
        if self._running is None or (at_most is None and self._active_stops):
            return
        task, stop = self.task, self._report.stops.get(self.name)
        if stop is not None and not stop.signaled_at:
            self._change_stop(signaled_at=self._now())
            self._report.publish()
        began = self._report.stops[self.name].signaled_at if stop else self._now()
        grace = seconds_left(began, task.kill_timeout, self._now())
        if at_most is not None:
            grace = min(grace, at_most)
        self._active_stops += 1
        try:
            self._kill_error = await self._running.stop(task.kill_signal or _DEFAULT_SIGNAL, grace)
        finally:
            self._active_stops -= 1

    # --- state machine ---

    async def run(self) -> None:
        """Run the task until it is dead. When cancelled, release the task and leave it running."""
        try:
            if self.state.state == TaskPhase.DEAD:
                self._enter(RunnerState.DEAD)
                self.dead.set()
            else:
                await self._live()
        finally:
            if self._running is not None:
                self._running.release()

    async def _live(self) -> None:
        if self._machine.state is RunnerState.REATTACHING:
            outcome = await self._resume()
        elif await self._wait_for_turn():
            outcome = await self._attempt()
        else:
            return self._die(failed=False)
        while (step := self._next(outcome)).action is RestartAction.RESTART:
            self._emit(task_events.restarting(now := self._now(), step.reason, step.delay))
            self._report.stops.pop(self.name, None)
            self._set(
                state=TaskPhase.PENDING,
                restarts=self.state.restarts + 1,
                last_restart=rfc3339(now),
            )
            if not await self._wait(step.delay):
                return self._die(failed=False)
            outcome = await self._attempt()
        for event in (
            await self._provisions.keep_files(self._delivered) if self.state.started_at else ()
        ):
            self._emit(event)
        return self._finish(step)

    async def _wait_for_turn(self) -> bool:
        """Wait for predecessor tasks; return whether the task may start."""
        while not may_start(self.task, self._instance.tasks, self._report.states):
            if self._killed.is_set():
                return False
            self._report.publish()
            await self._changes.wait()
        if self._past.delay:
            return await self._wait(self._past.delay)
        return not self._killed.is_set()

    async def _wait(self, delay: int) -> bool:
        """Wait `delay` nanoseconds before another attempt; return whether to start it.

        First wait until the store has the state of the previous attempt. Otherwise, after a crash,
        the new attempt could be mistaken for the previous one.
        """
        self._enter(RunnerState.DELAYED)

        async def be_ready() -> None:
            await trio.sleep(delay / SECOND)
            await self._report.stored()

        await wait_any(be_ready, self._killed.wait)
        return not self._killed.is_set()

    async def _run_change_actions(self, change_actions: list[ChangeAction]) -> None:
        """Run the task's change actions, such as a signal, after its inputs changed."""
        # A queued attempt sees the new inputs anyway when it starts.
        if self._machine.state is RunnerState.ANSWERED:
            self._postponed += [
                change_action
                for change_action in change_actions
                if change_action.script is not None
            ]
            return
        if is_queued(self._running):
            await self._running.refresh()
        await apply_change(self, change_actions, self._emit_now, self._now)

    # --- transitions ---

    def _next(self, outcome: AttemptOutcome) -> RestartDecision:
        step, self._history = decide_restart(
            self.task.restart_policy,
            self._history,
            AttemptOutcome.KILLED if self._killed.is_set() else outcome,
            once=is_one_shot(self._instance.job.type, self.task),
            now=self._now(),
            random=self._host.chance(),
        )
        return step

    def _finish(self, step: RestartDecision) -> None:
        if step.action is RestartAction.FAIL:
            self._emit(task_events.not_restarting(self._now(), step.reason))
        elif step.action is RestartAction.ACCEPT:
            self._emit(task_events.killed(self._now(), self._kill_error))
        self._die(failed=step.action is RestartAction.FAIL)

    def _die(self, *, failed: bool) -> None:
        self._report.stops.pop(self.name, None)
        self._set(
            state=TaskPhase.DEAD, failed=failed, finished_at=rfc3339(self._ended_at or self._now())
        )
        self._enter(RunnerState.DEAD)
        self.dead.set()

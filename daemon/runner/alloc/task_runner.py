"""Run one task of an allocation from its first attempt to its final state.

The runner starts the task, waits for it, and restarts it according to the restart policy until the
task has finished, failed or been killed. It records all steps as task events, with Nomad's texts.

After a daemon restart, the runner resumes from the state in the store. The driver re-attaches to a
started attempt and never starts it a second time.
"""

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec
import trio

from daemon.runner.alloc.attempt_queue import wait_until_scheduled
from daemon.runner.alloc.task_states import SETTLING, TABLE, RunnerState, first_state
from daemon.runner.core import file_descriptors, task_events
from daemon.runner.core.driver import (
    Attempt,
    ExecStream,
    ExitResult,
    InvalidConfig,
    QueuedTask,
    StartFailed,
    TaskHandle,
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
from daemon.runner.core.state_machine import StateMachine
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_instance import RestoredState, TaskInstance
from daemon.runner.core.task_log import TaskLog
from daemon.runner.logs.rotation import recover_all_rotations
from daemon.runner.setup.change_actions import ChangeAction, apply_change
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.task_setup import TaskSetup, missing_inputs
from daemon.text.masking import Matcher
from storage import request_context
from storage.errors import NotFound, Refused
from storage.records.allocation import TaskEvent, TaskPhase, TaskState
from storage.records.base import SECOND
from storage.records.task import Task
from storage.records.times import nanoseconds, rfc3339
from storage.records.usage import TaskUsage

# The exit result of a task that no driver knows: it was killed, or ended with a host reboot.
_LOST = ExitResult(
    code=137,
    signal=9,
    message="the task is gone, as after a restart of the machine: its end is unknown",
)
_DEFAULT_SIGNAL = "SIGINT"
# Bytes read before the kept ones, to recognize a secret that begins there.
_LONGEST_SECRET = 16 * 1024
_KEPT_ERROR = 2048  # bytes of standard error stored with a failed attempt


def _began(instance: TaskInstance, host: RuntimeContext) -> int:
    """Return the start time of the first interval of the restart policy."""
    return instance.allocation.create_time or host.clock.now()


class TaskRunner:
    """The state machine of one task; `task_states.py` has its table."""

    def __init__(
        self,
        host: RuntimeContext,
        instance: TaskInstance,
        name: str,
        report: AllocReport,
        changes: Notifier,
        past: RestoredState,
    ) -> None:
        self.name = name
        self.dead = trio.Event()
        self._host, self._instance, self._past = host, instance, past
        self._report, self._changes = report, changes
        self._history = restore_history(
            self.task.restart_policy, _began(instance, host), past.restarts
        )
        self._provisions = TaskSetup(
            host, lambda: self._instance, self.task, self._emit_now, self._tell
        )
        self._running: TaskHandle | None = None
        self._machine = StateMachine(
            f"task {name} of allocation {instance.allocation.id}",
            TABLE,
            first_state(self.state.state),
        )
        self._postponed: list[ChangeAction] = []  # until a queued attempt has begun
        self._restart_wanted = False
        self._is_doomed = False
        self._killed = trio.Event()
        self._hurried = trio.Event()  # set to skip a shutdown delay
        self._kill_error = ""
        self._sessions: weakref.WeakSet[ExecStream] = weakref.WeakSet()
        self._looked: dict[str, UsageSample] = {}  # the previous sample of each reader
        self._ended_at = 0  # end time of the current attempt
        # Offset in stderr after the last failed attempt; later bytes belong to later attempts.
        self._stderr_end = 0

    def _is_prompt(self) -> bool:
        driver = self._host.drivers.get(self.task.driver)
        return driver is not None and driver.is_prompt

    @property
    def task(self) -> Task:
        """Return the current definition of the task."""
        task = self._instance.group.task(self.name)
        # A version without the task would not update this allocation in place.
        assert task is not None  # noqa: S101
        return task

    @property
    def state(self) -> TaskState:
        """Return the current state of the task."""
        return self._report.states[self.name]

    @property
    def is_running(self) -> bool:
        """Return whether an attempt is running."""
        return self._machine.state is RunnerState.RUNNING

    # --- requests ---

    def update(self, instance: TaskInstance) -> None:
        """Apply a new version of the job and the new desired state of the scheduler."""
        self._instance = instance
        for log in self._logs():
            self._host.sweeper.update(log)
        if instance.allocation.desired.transition.no_shutdown_delay:
            self._hurried.set()

    def note(self, event: TaskEvent) -> None:
        """Record an event of the task, unless the task is dead."""
        if not self.dead.is_set() and not self._killed.is_set():
            self._report.event(self.name, event)

    def condemn(self) -> None:
        """Allow no further attempt. A running attempt continues until it is killed."""
        if self._killed.is_set() or self.dead.is_set():
            return
        self._emit(task_events.killing(self._now(), self.task.kill_timeout))
        self._killed.set()
        self._report.publish()
        self._changes.announce()

    async def kill(self, *, at_most: float | None = None) -> None:
        """Stop the task permanently and return when it is dead.

        The task gets its shutdown delay, kill signal and kill timeout. If `at_most` is given, the
        delay is skipped and the timeout is at most that many seconds.
        """
        self.condemn()
        while self._running is None and not self.dead.is_set():
            await self._changes.wait()
        if self._running is not None:
            if at_most is None:
                await self._delay_shutdown()
            await self._stop(at_most)
        await self.dead.wait()

    def revive(self) -> None:
        """Prepare a task that ended successfully for another run; the caller then calls `run`."""
        self.dead = trio.Event()
        self._enter(RunnerState.WAITING)
        self._emit(task_events.restart_signaled(now := self._now(), task_events.BY_USER))
        self._set(
            state=TaskPhase.PENDING, restarts=self.state.restarts + 1, last_restart=rfc3339(now)
        )

    async def restart(self, reason: str = "", *, said: str = task_events.BY_USER) -> None:
        """Stop the current attempt, if any, and start another one immediately.

        With a `reason`, the restart counts as a failure and the restart policy decides. Without
        one, it does not count, and `said` is the text of the event.
        """
        await self.settled()
        if self._running is None:
            return
        self._restart_wanted = not reason
        self._emit(task_events.restart_signaled(self._now(), reason or said))
        self._report.publish()
        await self._stop(None)

    async def fail(self) -> None:
        """Stop the current attempt, if any, and start no other one."""
        self._is_doomed = True
        await self._stop(None)

    async def settled(self) -> None:
        """Wait until the driver has answered a pending start, if its starts are prompt.

        Before that, the task may be running and known to other programs, but not to this runner.
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
        """Return the resource usage, averaged since the previous call of the same `reader`.

        None if the task is not running.
        """
        await self.settled()
        if self._running is None:
            return None
        now = UsageSample(self._now(), await self._running.usage())
        before = self._looked.get(reader) or UsageSample(self._began(), UsageReading())
        self._looked[reader] = now
        return task_usage(before, now, self._host.mhz)

    def _began(self) -> int:
        return nanoseconds(self.state.started_at) if self.state.started_at else self._now()

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

    async def _delay_shutdown(self) -> None:
        delay = self.task.shutdown_delay
        if not delay:
            return
        if self._hurried.is_set():
            self._emit(task_events.skipping_shutdown(self._now(), delay))
            return
        self._emit(task_events.waiting_for_shutdown(self._now(), delay))
        self._report.publish()
        with trio.move_on_after(delay / SECOND):
            await wait_any(self._hurried.wait, self.dead.wait)

    async def _stop(self, at_most: float | None) -> None:
        """Stop the current attempt, if it has not ended."""
        if self._running is None:
            return
        task = self.task
        grace = task.kill_timeout / SECOND
        if at_most is not None:
            grace = min(grace, at_most)
        self._kill_error = await self._running.stop(task.kill_signal or _DEFAULT_SIGNAL, grace)

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
            self._set(
                state=TaskPhase.PENDING,
                restarts=self.state.restarts + 1,
                last_restart=rfc3339(now),
            )
            if not await self._wait(step.delay):
                return self._die(failed=False)
            outcome = await self._attempt()
        return self._finish(step)

    def _enter(self, state: RunnerState) -> None:
        """Change the state, and wake the callers that wait for the driver's answer or the start."""
        before = self._machine.state
        self._machine.enter(state)
        if before in SETTLING or state is RunnerState.RUNNING:
            self._changes.announce()

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
        """Wait before another attempt; return whether to start it.

        The store must have the state of the previous attempt first. Otherwise, after a crash, the
        new attempt could be mistaken for the previous one.
        """
        self._enter(RunnerState.DELAYED)

        async def be_ready() -> None:
            await trio.sleep(delay / SECOND)
            await self._report.stored()

        await wait_any(be_ready, self._killed.wait)
        return not self._killed.is_set()

    async def _resume(self) -> AttemptOutcome:
        """Resume an attempt that an earlier daemon started."""
        try:
            with self._traced(self._began()):
                return await self._adopted()
        finally:
            if self._machine.state is RunnerState.REATTACHING:
                self._enter(RunnerState.ENDED)

    def _traced(self, since: int) -> AbstractContextManager[None]:
        """Record an attempt that began at `since`, if traces are on. The task knows the span's ID."""
        if (recorder := request_context.TRACING.recorder) is None:
            return nullcontext()
        one, parts = self._instance.allocation, self._provisions.span_parts(self.state.restarts)
        about: request_context.Attributes = {
            "steward.allocation": one.id,
            "steward.attempt": self.state.restarts,
        }
        # The allocation's own span is the parent, also in a daemon that has just started.
        origin = request_context.origin()
        return recorder.unit(origin, parts, f"task {self.name}", since, about)

    async def _adopted(self) -> AttemptOutcome:
        driver = self._host.drivers.get(self.task.driver)
        running = await driver.adopt(self._prepared(), self._past.handle) if driver else None
        if running is not None:
            # It is in the queue since its start, so only report its progress from now on.
            if is_queued(running):
                await running.begun(self._note_engine)
            for log in self._logs():
                await recover_all_rotations(log, running)
            await self._provisions.recall(self.state.started_at or "")
            return await self._accompany(running)
        self._emit(task_events.terminated(self._now(), _LOST))
        return AttemptOutcome.KILLED if self._killed.is_set() else AttemptOutcome.FAILED

    async def _attempt(self) -> AttemptOutcome:
        """Start the task and wait until it ends."""
        self._enter(RunnerState.SETUP)
        with self._traced(self._now()):
            outcome = await self._try_attempt()
        self._enter(RunnerState.ENDED)
        return outcome

    async def _try_attempt(self) -> AttemptOutcome:
        self._ended_at = 0
        if not self.state.restarts and not self._past.handle:
            self._emit(task_events.task_setup(self._now()))
        if trouble := self._past.trouble or missing_inputs(self.task):
            self._emit(task_events.setup_failure(self._now(), trouble))
            return AttemptOutcome.UNRECOVERABLE
        if not await self._wait_for_descriptors():
            return AttemptOutcome.KILLED
        if (outcome := await self._provide()) is not None:
            return outcome
        began: int | None = None
        try:
            with request_context.span("start"):
                running = await self._start()
            if running is None:
                return AttemptOutcome.KILLED
            if is_queued(running):
                began = await self._wait_in_queue(running)
            else:
                began = self._now()
        except InvalidConfig as error:
            said = (await self._provisions.matcher()).mask_text(str(error))
            self._emit(task_events.failed_validation(self._now(), said))
            return AttemptOutcome.UNRECOVERABLE
        except StartFailed as error:
            said = (await self._provisions.matcher()).mask_text(str(error))
            self._emit(task_events.driver_failure(self._now(), said))
            return AttemptOutcome.FAILED if error.recoverable else AttemptOutcome.UNRECOVERABLE
        self._report.handle(self.name, running.handle)
        if began is not None:
            self._emit(task_events.started(began))
            self._set(state=TaskPhase.RUNNING, started_at=rfc3339(began))
        return await self._accompany(running)

    async def _wait_in_queue(self, running: QueuedTask) -> int | None:
        """Return the start time of a queued attempt.

        None means that the attempt ended, or was killed, before it started. Raises `StartFailed`.
        """
        self._report.handle(self.name, running.handle)
        self._postponed = []
        tend = self._provisions.tend if self._provisions.may_change else None
        return await wait_until_scheduled(running, self._note_engine, self._killed.wait, tend)

    def _note_engine(self, text: str) -> None:
        self._emit_now(task_events.cluster(self._now(), text))

    async def _provide(self) -> AttemptOutcome | None:
        """Set up the task; return an outcome only if the setup failed."""
        if not self._provisions.take_time:
            return await self._provisions.bring()
        outcome: AttemptOutcome | None = None

        async def bring() -> None:
            nonlocal outcome
            outcome = await self._provisions.bring()

        await wait_any(bring, self._killed.wait)
        return AttemptOutcome.KILLED if self._killed.is_set() else outcome

    async def _wait_for_descriptors(self) -> bool:
        """Wait until file descriptors are free; return whether to start the attempt."""
        is_told = False
        while file_descriptors.is_short():
            if not is_told:
                self._emit_now(
                    task_events.driver_failure(self._now(), "the daemon has no free descriptor")
                )
                is_told = True
            if not await self._pause_for_descriptors():
                return False
        return True

    async def _pause_for_descriptors(self) -> bool:
        await wait_any(partial(trio.sleep, file_descriptors.SHORTAGE_PAUSE), self._killed.wait)
        return not self._killed.is_set()

    async def _start(self) -> TaskHandle | None:
        """Start the task and retry while the daemon lacks file descriptors.

        Return None if the task was killed in the meantime. Raises `InvalidConfig`, `StartFailed`.
        """
        driver = self._host.drivers.get(self.task.driver)
        if driver is None:
            raise StartFailed(f'driver "{self.task.driver}" is not available on this node')
        is_told = False
        while True:
            self._enter(RunnerState.STARTING)
            try:
                return await driver.start(self._prepared())
            except StartFailed as error:
                if not file_descriptors.is_shortage(error.__cause__):
                    raise
                if not is_told:
                    self._emit_now(task_events.driver_failure(self._now(), str(error)))
                    is_told = True
            finally:
                self._enter(RunnerState.ANSWERED)
            if not await self._pause_for_descriptors():
                return None

    async def _accompany(self, running: TaskHandle) -> AttemptOutcome:
        """Wait for the end of an attempt, and rotate its logs until then."""
        self._running = running
        self._enter(RunnerState.RUNNING)
        logs = self._logs()
        for log in logs:
            self._host.sweeper.add(log, running)
        late, self._postponed = self._postponed, []
        if self._provisions.may_change:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._provisions.tend)
                if late:
                    nursery.start_soon(self._tell, late)
                end = await running.wait()
                nursery.cancel_scope.cancel()
        else:
            end = await running.wait()
        self._running = None
        self._enter(RunnerState.ENDED)
        await self._end_sessions()
        for log in logs:
            self._host.sweeper.remove(log)
        now = self._now()
        self._ended_at = min(max(end.at or now, self._began()), now)
        said = ""
        if not (end.ok or self._killed.is_set()):
            matcher = await self._provisions.matcher()
            said = await self._last_lines(matcher)
            end = msgspec.structs.replace(end, message=matcher.mask_text(end.message))
        ends = {log.place[-1]: (await log.look()).span()[1] for log in logs}
        self._emit(task_events.terminated(self._ended_at, end, said, ends))
        if self._killed.is_set():
            return AttemptOutcome.KILLED
        if self._is_doomed:
            return AttemptOutcome.UNRECOVERABLE
        if self._restart_wanted:
            self._restart_wanted = False
            return AttemptOutcome.RESTART_WANTED
        return AttemptOutcome.SUCCEEDED if end.ok else AttemptOutcome.FAILED

    async def _last_lines(self, matcher: Matcher) -> str:
        """Return the last lines of standard error of the attempt, with its secrets masked."""
        log = self._host.logs.of(self._instance.allocation.id, self.task).get("stderr")
        if log is None:
            return ""
        stream = await log.look()
        first, end = stream.span()
        begin, self._stderr_end = max(self._stderr_end, end - _KEPT_ERROR), end
        if begin >= end:
            return ""
        # A secret may begin before the kept lines.
        early = max(first, begin - min(matcher.longest, _LONGEST_SECRET))
        text = b"".join(chunk.data for chunk in stream.chunks(early))
        work = partial(matcher.mask, text, is_cut=True)
        masked = work() if matcher.is_quick else await trio.to_thread.run_sync(work)
        return masked[-(end - begin) :].decode(errors="replace")

    async def _tell(self, wishes: list[ChangeAction]) -> None:
        """Run the task's change actions, such as a signal, after its inputs changed."""
        # A queued attempt sees the new inputs anyway when it starts.
        if self._machine.state is RunnerState.ANSWERED:
            self._postponed += [one for one in wishes if one.script is not None]
            return
        if is_queued(self._running):
            await self._running.refresh()
        await apply_change(self, wishes, self._emit_now, self._now)

    async def _end_sessions(self) -> None:
        """Kill the exec sessions of the ended attempt."""
        for session in [*self._sessions]:
            await session.kill()
        self._sessions.clear()

    def _logs(self) -> list[TaskLog]:
        return [*self._host.logs.of(self._instance.allocation.id, self.task).values()]

    def _prepared(self) -> Attempt:
        """Return the current attempt with its environment, mounts and limits."""
        return self._provisions.attempt(self.state.restarts)

    # --- transitions ---

    def _next(self, outcome: AttemptOutcome) -> RestartDecision:
        step, self._history = decide_restart(
            self.task.restart_policy,
            self._history,
            AttemptOutcome.KILLED if self._killed.is_set() else outcome,
            once=is_one_shot(self._instance.job.type, self.task),
            now=self._now(),
            chance=self._host.chance(),
        )
        return step

    def _finish(self, step: RestartDecision) -> None:
        if step.action is RestartAction.FAIL:
            self._emit(task_events.not_restarting(self._now(), step.reason))
        elif step.action is RestartAction.ACCEPT:
            self._emit(task_events.killed(self._now(), self._kill_error))
        self._die(failed=step.action is RestartAction.FAIL)

    def _die(self, *, failed: bool) -> None:
        self._set(
            state=TaskPhase.DEAD, failed=failed, finished_at=rfc3339(self._ended_at or self._now())
        )
        self._enter(RunnerState.DEAD)
        self.dead.set()

    def _set(self, **changes: object) -> None:
        """Change the task state, publish it and wake all waiters."""
        self._report.states[self.name] = msgspec.structs.replace(self.state, **changes)
        self._report.publish()
        self._changes.announce()

    def _emit_now(self, event: TaskEvent) -> None:
        self._emit(event)
        self._report.publish()

    def _emit(self, event: TaskEvent) -> None:
        self._report.event(self.name, event)

    def _now(self) -> int:
        return self._host.clock.now()

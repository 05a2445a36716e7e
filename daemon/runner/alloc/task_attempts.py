"""Run the attempts of one task: the states from `SETUP` and `REATTACHING` to `ENDED`.

An attempt sets up the task, starts it through its driver, and waits for its end. Each of these
stages is recorded as a task event, with Nomad's text. The driver re-attaches to an attempt that an
earlier daemon started, and never starts it a second time.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial

import msgspec
import trio

from daemon.jobspec.steward_meta.step_keys import RETRY_EXIT_CODES
from daemon.runner.alloc.attempt_queue import wait_until_scheduled
from daemon.runner.alloc.task_states import SETTLING, TABLE, RunnerState, first_state
from daemon.runner.core import file_descriptors, task_events
from daemon.runner.core.driver import (
    Attempt,
    DeliveredFiles,
    ExecStream,
    ExitResult,
    InvalidConfig,
    QueuedTask,
    StartFailed,
    TaskHandle,
    is_queued,
)
from daemon.runner.core.notifier import Notifier, wait_any
from daemon.runner.core.restart_policy import (
    AttemptOutcome,
)
from daemon.runner.core.state_machine import StateMachine
from daemon.runner.core.status_report import SHORT_TASK, AllocReport
from daemon.runner.core.task_instance import RestoredState, TaskInstance
from daemon.runner.core.task_log import TaskLog
from daemon.runner.logs.rotation import recover_all_rotations
from daemon.runner.setup.change_actions import ChangeAction
from daemon.runner.setup.runtime import RuntimeContext
from daemon.runner.setup.task_setup import TaskSetup, missing_inputs
from daemon.scheduler.reschedule import NOT_RETRIED
from daemon.text.masking import Matcher
from storage import request_context
from storage.errors import Refused, is_descriptor_shortage
from storage.records.allocation import StopCause, TaskEvent, TaskPhase, TaskState
from storage.records.job import JobType
from storage.records.task import Task
from storage.records.times import nanoseconds, rfc3339

# The exit result of a task that no driver knows: it was killed, or the host restarted.
_LOST = ExitResult(
    code=137,
    signal=9,
    message="the task no longer exists, as after a restart of the host: its result is unknown",
)
# Bytes read before the stored bytes, to recognize a secret that begins there.
_LONGEST_SECRET = 16 * 1024
_STOP_OUTCOMES = {
    StopCause.RESTART: AttemptOutcome.RESTART_WANTED,
    StopCause.FAIL: AttemptOutcome.UNRECOVERABLE,
}
_ENDING = (JobType.BATCH, JobType.SYSBATCH)
_KEPT_ERROR = 2048  # bytes of standard error stored with a failed attempt


class TaskAttempts(ABC):
    """Runs the attempts of one task. The subclass `TaskRunner` handles requests and restarts."""

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
        self._host, self._instance, self._past = host, instance, past
        self._report, self._changes = report, changes
        self._provisions = TaskSetup(
            host,
            lambda: self._instance,
            self.task,
            self._emit_now,
            self._run_change_actions,
            report,
        )
        self._running: TaskHandle | None = None
        self._machine = StateMachine(
            f"task {name} of allocation {instance.allocation.id}",
            TABLE,
            first_state(self.state.state),
        )
        # Change actions that wait until a queued attempt has begun.
        self._postponed: list[ChangeAction] = []
        self._killed = trio.Event()
        if (stop := report.stops.get(name)) and stop.cause is StopCause.KILL:
            self._killed.set()
        self._sessions: weakref.WeakSet[ExecStream] = weakref.WeakSet()
        self._delivered = DeliveredFiles()  # files that arrived with the end of the last attempt
        self._ended_at = 0  # end time of the current attempt
        # Offset in stderr after the last failed attempt; later bytes belong to later attempts.
        self._stderr_end = 0

    @property
    def task(self) -> Task:
        """Return the current definition of the task."""
        task = self._instance.group.task(self.name)
        # A version without the task would not update this allocation in place.
        assert task is not None  # noqa: S101  # for the type checker
        return task

    @property
    def state(self) -> TaskState:
        """Return the current state of the task."""
        return self._report.states[self.name]

    @property
    def is_running(self) -> bool:
        """Return whether an attempt is running."""
        return self._machine.state is RunnerState.RUNNING

    @abstractmethod
    async def _run_change_actions(self, change_actions: list[ChangeAction]) -> None:
        """Run the task's change actions, such as a signal, after its inputs changed."""

    # --- start ---

    async def _resume(self) -> AttemptOutcome:
        """Resume an attempt that an earlier daemon started."""
        try:
            with self._traced(self._started_at()):
                return await self._adopted()
        finally:
            if self._machine.state is RunnerState.REATTACHING:
                self._enter(RunnerState.ENDED)

    async def _adopted(self) -> AttemptOutcome:
        driver = self._host.drivers.get(self.task.driver)
        # The task has its step data already; the next attempt reports errors.
        with suppress(Refused):
            await self._provisions.load_step()
        running = await driver.adopt(self._prepared(), self._past.handle) if driver else None
        if running is not None:
            # A queued attempt may still be in the queue: report its progress until it starts.
            if is_queued(running):
                await running.wait_for_start(self._record_engine)
            for log in self._logs():
                await recover_all_rotations(log, running)
            await self._provisions.recall(self.state.started_at or "")
            return await self._supervise(running)
        self._emit(task_events.terminated(self._now(), _LOST))
        return self._stop_outcome() or AttemptOutcome.FAILED

    def _traced(self, since: int) -> AbstractContextManager[None]:
        """Record a span for an attempt that began at `since` (ns), if tracing is enabled."""
        if (recorder := request_context.TRACING.recorder) is None:
            return nullcontext()
        allocation, parts = (
            self._instance.allocation,
            self._provisions.span_parts(self.state.restarts),
        )
        attributes: request_context.Attributes = {
            "steward.allocation": allocation.id,
            "steward.attempt": self.state.restarts,
        }
        # The allocation's own span is the parent, including in a daemon that has just started.
        origin = request_context.origin()
        return recorder.unit(origin, parts, f"task {self.name}", since, attributes)

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
        if problem := self._past.trouble or missing_inputs(self.task):
            self._emit(task_events.setup_failure(self._now(), problem))
            return AttemptOutcome.UNRECOVERABLE
        if not await self._wait_for_descriptors():
            return AttemptOutcome.KILLED
        if (outcome := await self._provide_patiently()) is not None:
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
            message = (await self._provisions.matcher()).mask_text(str(error))
            self._emit(task_events.failed_validation(self._now(), message))
            return AttemptOutcome.UNRECOVERABLE
        except StartFailed as error:
            message = (await self._provisions.matcher()).mask_text(str(error))
            self._emit(task_events.driver_failure(self._now(), message))
            return AttemptOutcome.FAILED if error.recoverable else AttemptOutcome.UNRECOVERABLE
        self._provisions.forget_results()
        self._report.handle(self.name, running.handle)
        if began is not None:
            self._emit(task_events.started(began))
            within = SHORT_TASK if self._instance.job.type in _ENDING else 0.0
            self._set(within, state=TaskPhase.RUNNING, started_at=rfc3339(began))
        return await self._supervise(running)

    async def _wait_for_descriptors(self) -> bool:
        """Wait until file descriptors are free; return false if the task was killed first."""
        is_told = False
        while file_descriptors.is_short():
            if not is_told:
                self._report_shortage()
                is_told = True
            if not await self._pause_for_descriptors():
                return False
        return True

    def _report_shortage(self) -> None:
        self._emit_now(
            task_events.driver_failure(self._now(), "the daemon has no free file descriptor")
        )

    async def _provide_patiently(self) -> AttemptOutcome | None:
        """Set up the task, and retry while the daemon lacks file descriptors."""
        is_told = False
        while True:
            try:
                return await self._provide()
            except Exception as error:
                if not is_descriptor_shortage(error):
                    raise
            if not is_told:
                self._report_shortage()
                is_told = True
            if not await self._pause_for_descriptors():
                return AttemptOutcome.KILLED

    async def _pause_for_descriptors(self) -> bool:
        await wait_any(partial(trio.sleep, file_descriptors.SHORTAGE_PAUSE), self._killed.wait)
        return not self._killed.is_set()

    async def _provide(self) -> AttemptOutcome | None:
        """Set up the task; return an outcome only if the setup failed."""
        if not self._provisions.may_be_slow:
            return await self._provisions.prepare()
        outcome: AttemptOutcome | None = None

        async def bring() -> None:
            nonlocal outcome
            outcome = await self._provisions.prepare()

        await wait_any(bring, self._killed.wait)
        return AttemptOutcome.KILLED if self._killed.is_set() else outcome

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
                if not is_descriptor_shortage(error):
                    raise
                if not is_told:
                    self._emit_now(task_events.driver_failure(self._now(), str(error)))
                    is_told = True
            finally:
                self._enter(RunnerState.ANSWERED)
            if not await self._pause_for_descriptors():
                return None

    async def _wait_in_queue(self, running: QueuedTask) -> int | None:
        """Wait until a queued attempt starts; return its start time in nanoseconds.

        Return None if the attempt ended or was killed in the queue. Raises `StartFailed`.
        """
        self._report.handle(self.name, running.handle)
        self._postponed = []
        tend = self._provisions.keep_current if self._provisions.may_change else None
        return await wait_until_scheduled(running, self._record_engine, self._killed.wait, tend)

    def _record_engine(self, text: str) -> None:
        self._emit_now(task_events.cluster(self._now(), text))

    # --- run and end ---

    async def _supervise(self, running: TaskHandle) -> AttemptOutcome:
        """Rotate the logs of an attempt until the attempt ends, and return its outcome."""
        self._running = running
        self._enter(RunnerState.RUNNING)
        logs = self._logs()
        for log in logs:
            self._host.sweeper.add(log, running)
        late, self._postponed = self._postponed, []
        if self._provisions.may_change:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._provisions.keep_current)
                if late:
                    nursery.start_soon(self._run_change_actions, late)
                end = await running.wait()
                nursery.cancel_scope.cancel()
        else:
            end = await running.wait()
        self._running, self._delivered = None, end.delivered
        self._enter(RunnerState.ENDED)
        await self._end_sessions()
        known_ends = self._end_logs(logs, end)
        now = self._now()
        self._ended_at = min(max(end.at or now, self._started_at()), now)
        message = ""
        if not (end.ok or self._killed.is_set()):
            matcher = await self._provisions.matcher()
            message = await self._last_lines(matcher)
            end = msgspec.structs.replace(end, message=matcher.mask_text(end.message))
        ends = known_ends or {log.kind: (await log.current()).span()[1] for log in logs}
        self._emit(task_events.terminated(self._ended_at, end, message, ends))
        return self._stop_outcome() or await self._judged(end)

    def _stop_outcome(self) -> AttemptOutcome | None:
        """Return the outcome of a stopped attempt; None if its own end determines the outcome."""
        if self._killed.is_set():
            return AttemptOutcome.KILLED
        stop = self._report.stops.get(self.name)
        return _STOP_OUTCOMES.get(stop.cause) if stop else None

    def _end_logs(self, logs: Sequence[TaskLog], end: ExitResult) -> dict[str, int]:
        """Stop the rotation of the logs; return the end offsets of the logs by kind.

        Return an empty dictionary if an end offset is unknown. A log above its size limit may have
        been rotated after its size was recorded in the exit result.
        """
        sizes = end.log_sizes
        moved = self._host.logs.moved_names(self._instance.allocation.id) if sizes else ()
        ends = {log.kind: log.end_at(sizes[log.kind], moved) for log in logs if sizes}
        if any(ends[log.kind] > log.limit for log in logs if sizes):
            ends = {}
        for log in logs:
            self._host.sweeper.remove(log, ends.get(log.kind))
        return ends

    async def _judged(self, end: ExitResult) -> AttemptOutcome:
        """Record the outputs of an attempt that was not stopped, and return its outcome."""
        fault = await self._provisions.collect_outputs(self._report, end)
        if end.ok and fault:
            self._emit(task_events.output_failure(self._now(), fault))
            return AttemptOutcome.FAILED
        if end.ok:
            return AttemptOutcome.SUCCEEDED
        codes = RETRY_EXIT_CODES.of(self._instance.group.meta)
        if codes and not any(first <= end.code <= last for first, last in codes):
            self._report.ended_for = NOT_RETRIED
            return AttemptOutcome.NOT_RETRIED
        return AttemptOutcome.FAILED

    async def _last_lines(self, matcher: Matcher) -> str:
        """Return the last lines of standard error of the attempt, with its secrets masked."""
        log = self._host.logs.of(self._instance.allocation.id, self.task).get("stderr")
        if log is None:
            return ""
        stream = await log.current()
        first, end = stream.span()
        begin, self._stderr_end = max(self._stderr_end, end - _KEPT_ERROR), end
        if begin >= end:
            return ""
        # A secret may begin before the stored lines.
        early = max(first, begin - min(matcher.longest, _LONGEST_SECRET))
        text = b"".join(chunk.data for chunk in stream.chunks(early))
        work = partial(matcher.mask, text, is_cut=True)
        masked = work() if matcher.is_quick else await trio.to_thread.run_sync(work)
        return masked[-(end - begin) :].decode(errors="replace")

    async def _end_sessions(self) -> None:
        """Kill the exec sessions of the ended attempt."""
        for session in [*self._sessions]:
            await session.kill()
        self._sessions.clear()

    def _prepared(self) -> Attempt:
        """Return the current attempt with its environment, mounts and limits."""
        return self._provisions.attempt(self.state.restarts)

    # --- state and events ---

    def _enter(self, state: RunnerState) -> None:
        """Change the state, and wake the callers that wait for the start of the attempt."""
        before = self._machine.state
        self._machine.enter(state)
        if before in SETTLING or state is RunnerState.RUNNING:
            self._changes.announce()

    def _set(self, within: float = 0.0, /, **changes: object) -> None:
        """Change fields of the task state, publish the state and wake all waiters.

        The state is stored within `within` seconds.
        """
        self._report.states[self.name] = msgspec.structs.replace(self.state, **changes)
        self._report.publish(within=within)
        self._changes.announce()

    def _emit_now(self, event: TaskEvent) -> None:
        self._emit(event)
        self._report.publish()

    def _emit(self, event: TaskEvent) -> None:
        self._report.event(self.name, event)

    def _now(self) -> int:
        return self._host.clock.now()

    def _started_at(self) -> int:
        return nanoseconds(self.state.started_at) if self.state.started_at else self._now()

    def _logs(self) -> list[TaskLog]:
        return [*self._host.logs.of(self._instance.allocation.id, self.task).values()]

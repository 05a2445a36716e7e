"""One task of an allocation, from its first start to its end for good.

The task is started, waited for, and started again as its policy says, until it has finished,
failed or been killed. All that happens is noted in the report, in the peer's words. After a
restart of the daemon the same walk begins where the report of the store says it was: an attempt
that was started is found again by its driver, and never started a second time.
"""

import weakref
from collections.abc import Sequence
from functools import partial

import msgspec
import trio

from daemon.runner import events, machine
from daemon.runner.changes import Changes, first_of
from daemon.runner.drivers.driver import (
    Attempt,
    Exit,
    InvalidConfig,
    Queued,
    Running,
    Session,
    StartFailed,
    is_queued,
)
from daemon.runner.host import Host
from daemon.runner.instance import Instance, Past
from daemon.runner.lifecycle import may_start, runs_once
from daemon.runner.logs import TaskLog
from daemon.runner.provisions import Provisions, lacking
from daemon.runner.queueing import wait_for_turn
from daemon.runner.report import Report
from daemon.runner.restarts import Action, Outcome, Step, next_step, recall
from daemon.runner.rotation import finish_move
from daemon.runner.usage import NOTHING, Look, Use, of_task
from daemon.runner.wishes import Wish, tell
from storage.errors import NotFound, Refused
from storage.records.allocation import TaskEvent, TaskPhase, TaskState
from storage.records.base import SECOND
from storage.records.task import Task
from storage.records.times import nanoseconds, rfc3339
from storage.records.usage import TaskUsage

# What is said of a task that no driver knows any more: it ended with the machine, or was killed.
_LOST = Exit(
    code=137,
    signal=9,
    message="the task is gone, as after a restart of the machine: its end is unknown",
)
_DEFAULT_SIGNAL = "SIGINT"


def _began(instance: Instance, host: Host) -> int:
    """Return when the first interval of a restart policy began."""
    return instance.allocation.create_time or host.clock.now()


class TaskRunner:
    """Runs one task."""

    def __init__(
        self,
        host: Host,
        instance: Instance,
        name: str,
        report: Report,
        changes: Changes,
        past: Past,
    ) -> None:
        self.name = name
        self.dead = trio.Event()
        self._host, self._instance, self._past = host, instance, past
        self._report, self._changes = report, changes
        self._history = recall(self.task.restart_policy, _began(instance, host), past.restarts)
        self._provisions = Provisions(
            host, lambda: self._instance, self.task, self._emit_now, self._tell
        )
        self._running: Running | None = None
        self._is_launched = False  # a start of this moment is not answered yet
        self._postponed: list[Wish] | None = None  # until the attempt has begun
        self._restart_wanted = False
        self._is_doomed = False
        self._killed = trio.Event()
        self._hurried = trio.Event()  # ends a shutdown delay
        self._kill_error = ""
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._looked = NOTHING  # at what the task uses
        self._ended_at = 0  # when the present attempt has ended

    @property
    def task(self) -> Task:
        """Return the task's present definition."""
        task = self._instance.group.task(self.name)
        assert task is not None  # noqa: S101  # a version without it would be another allocation's
        return task

    @property
    def state(self) -> TaskState:
        """Return what the task is doing."""
        return self._report.states[self.name]

    @property
    def is_running(self) -> bool:
        """Tell whether there is an attempt that has not ended."""
        return self._running is not None

    # ---- what others want of it ---------------------------------------------------------------

    def update(self, instance: Instance) -> None:
        """Go by a new version of the definition, and by what the scheduler wants now."""
        self._instance = instance
        for log in self._logs():
            self._host.sweeper.update(log)
        if instance.allocation.desired.transition.no_shutdown_delay:
            self._hurried.set()

    def note(self, event: TaskEvent) -> None:
        """Note something that concerns the task, unless it is over."""
        if not self.dead.is_set() and not self._killed.is_set():
            self._report.event(self.name, event)

    def condemn(self) -> None:
        """Let there be no other attempt; one that runs goes on until it is killed."""
        if self._killed.is_set() or self.dead.is_set():
            return
        self._emit(events.killing(self._now(), self.task.kill_timeout))
        self._killed.set()
        self._report.publish()
        self._changes.announce()

    async def kill(self, *, at_most: float | None = None) -> None:
        """End the task for good; return when it is dead.

        It has its shutdown delay, its signal and its time to react; `at_most` seconds of that time,
        and no delay, when that is given.
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
        """Let the task, which has ended well, run once more; `run` follows."""
        self.dead = trio.Event()
        self._emit(events.restart_signaled(now := self._now(), events.BY_USER))
        self._set(
            state=TaskPhase.PENDING, restarts=self.state.restarts + 1, last_restart=rfc3339(now)
        )

    async def restart(self, reason: str = "", *, said: str = events.BY_USER) -> None:
        """End the present attempt, if it has not ended, and begin another one at once.

        With a `reason` it counts as a failure: the task's policy says what follows. Otherwise it
        does not, and `said` is why.
        """
        await self.settled()
        if self._running is None:
            return
        self._restart_wanted = not reason
        self._emit(events.restart_signaled(self._now(), reason or said))
        self._report.publish()
        await self._stop(None)

    async def fail(self) -> None:
        """End the present attempt, if it has not ended, and begin no other."""
        self._is_doomed = True
        await self._stop(None)

    async def settled(self) -> None:
        """Return when the answer to a start is known, where that takes but a moment.

        Until then the task may run already, and have told others so, and is not known to run.
        """
        while self._is_launched:
            await self._changes.wait()

    async def signal(self, name: str) -> None:
        """Send a signal to the task's main process. Raises `Refused`."""
        await self.settled()
        if self._running is None:
            raise Refused("Task not running")
        self._emit(events.signaling(self._now(), name))
        self._report.publish()
        await self._running.signal(name)

    async def usage(self) -> TaskUsage | None:
        """Return what the task uses, on average since the last question; None when it rests."""
        await self.settled()
        if self._running is None:
            return None
        now = Look(self._now(), await self._running.usage())
        before = self._looked if self._looked.at else Look(self._began(), Use())
        self._looked = now
        return of_task(before, now, self._host.mhz)

    def _began(self) -> int:
        return nanoseconds(self.state.started_at) if self.state.started_at else self._now()

    async def open_session(self, command: Sequence[str], *, tty: bool) -> Session:
        """Run a command inside the task. Raises `NotFound` when it does not run, `StartFailed`."""
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
            self._emit(events.skipping_shutdown(self._now(), delay))
            return
        self._emit(events.waiting_for_shutdown(self._now(), delay))
        self._report.publish()
        with trio.move_on_after(delay / SECOND):
            await first_of(self._hurried.wait, self.dead.wait)

    async def _stop(self, at_most: float | None) -> None:
        """Stop the present attempt, if it has not ended."""
        if self._running is None:
            return
        task = self.task
        grace = task.kill_timeout / SECOND
        if at_most is not None:
            grace = min(grace, at_most)
        self._kill_error = await self._running.stop(task.kill_signal or _DEFAULT_SIGNAL, grace)

    # ---- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the task until it is dead. When cancelled, let go of it: it runs on."""
        try:
            if self.state.state == TaskPhase.DEAD:
                self.dead.set()
            else:
                await self._live()
        finally:
            if self._running is not None:
                self._running.release()

    async def _live(self) -> None:
        if self.state.state == TaskPhase.RUNNING:
            outcome = await self._resume()
        elif await self._wait_for_turn():
            outcome = await self._attempt()
        else:
            return self._die(failed=False)
        while (step := self._next(outcome)).action is Action.RESTART:
            self._emit(events.restarting(now := self._now(), step.reason, step.delay))
            self._set(
                state=TaskPhase.PENDING,
                restarts=self.state.restarts + 1,
                last_restart=rfc3339(now),
            )
            if not await self._wait(step.delay):
                return self._die(failed=False)
            outcome = await self._attempt()
        return self._finish(step)

    async def _wait_for_turn(self) -> bool:
        """Wait for the tasks that come first; tell whether the task's turn came at all."""
        while not may_start(self.task, self._instance.tasks, self._report.states):
            if self._killed.is_set():
                return False
            self._report.publish()
            await self._changes.wait()
        if self._past.delay:
            return await self._wait(self._past.delay)
        return not self._killed.is_set()

    async def _wait(self, delay: int) -> bool:
        """Wait before another attempt; tell whether there shall be one.

        What the store does not know yet of the last attempt must be there first: so after a crash
        nobody takes that one for the new one.
        """

        async def be_ready() -> None:
            await trio.sleep(delay / SECOND)
            await self._report.stored()

        await first_of(be_ready, self._killed.wait)
        return not self._killed.is_set()

    async def _resume(self) -> Outcome:
        """Go on with an attempt that an earlier daemon started."""
        driver = self._host.drivers.get(self.task.driver)
        running = await driver.adopt(self._prepared(), self._past.handle) if driver else None
        if running is not None:
            if is_queued(running):  # it began long ago; from now on it says how it goes
                await running.begun(self._note_engine)
            for log in self._logs():
                await finish_move(log, running)
            await self._provisions.recall(self.state.started_at or "")
            return await self._accompany(running)
        self._emit(events.terminated(self._now(), _LOST))
        return Outcome.KILLED if self._killed.is_set() else Outcome.FAILED

    async def _attempt(self) -> Outcome:
        """Start the task and stay with it to its end."""
        self._ended_at = 0
        if not self.state.restarts and not self._past.handle:
            self._emit(events.task_setup(self._now()))
        if trouble := self._past.trouble or lacking(self.task):
            self._emit(events.setup_failure(self._now(), trouble))
            return Outcome.UNRECOVERABLE
        if not await self._wait_for_descriptors():
            return Outcome.KILLED
        if (outcome := await self._provide()) is not None:
            return outcome
        began: int | None = None
        try:
            running = await self._start()
            if running is None:
                return Outcome.KILLED
            if is_queued(running):
                began = await self._wait_in_queue(running)
            else:
                began = self._now()
        except InvalidConfig as error:
            self._emit(events.failed_validation(self._now(), str(error)))
            return Outcome.UNRECOVERABLE
        except StartFailed as error:
            self._emit(events.driver_failure(self._now(), str(error)))
            return Outcome.FAILED if error.recoverable else Outcome.UNRECOVERABLE
        self._report.handle(self.name, running.handle)
        if began is not None:
            self._emit(events.started(began))
            self._set(state=TaskPhase.RUNNING, started_at=rfc3339(began))
        return await self._accompany(running)

    async def _wait_in_queue(self, running: Queued) -> int | None:
        """Return when an attempt began; None: it has ended, or is to end, before. Raises `StartFailed`."""
        self._report.handle(self.name, running.handle)
        self._postponed = []
        tend = self._provisions.tend if self._provisions.may_change else None
        return await wait_for_turn(running, self._note_engine, self._killed.wait, tend)

    def _note_engine(self, text: str) -> None:
        self._emit_now(events.cluster(self._now(), text))

    async def _provide(self) -> Outcome | None:
        """Bring what the task needs; return how the attempt ended if that cannot be had."""
        if not self._provisions.take_time:
            return await self._provisions.bring()
        outcome: Outcome | None = None

        async def bring() -> None:
            nonlocal outcome
            outcome = await self._provisions.bring()

        await first_of(bring, self._killed.wait)
        return Outcome.KILLED if self._killed.is_set() else outcome

    async def _wait_for_descriptors(self) -> bool:
        """Wait until the daemon has free descriptors; tell whether there shall still be an attempt."""
        is_told = False
        while machine.is_short():
            if not is_told:
                self._emit_now(
                    events.driver_failure(self._now(), "the daemon has no free descriptor")
                )
                is_told = True
            if not await self._pause_for_descriptors():
                return False
        return True

    async def _pause_for_descriptors(self) -> bool:
        await first_of(partial(trio.sleep, machine.SHORTAGE_PAUSE), self._killed.wait)
        return not self._killed.is_set()

    async def _start(self) -> Running | None:
        """Start the task; a shortage of descriptors costs no attempt. None: it was killed meanwhile.

        Raises `InvalidConfig`, `StartFailed`.
        """
        driver = self._host.drivers.get(self.task.driver)
        if driver is None:
            raise StartFailed(f'driver "{self.task.driver}" is not available on this node')
        is_told = False
        while True:
            self._is_launched = driver.is_prompt
            try:
                return await driver.start(self._prepared())
            except StartFailed as error:
                if not machine.is_shortage(error.__cause__):
                    raise
                if not is_told:
                    self._emit_now(events.driver_failure(self._now(), str(error)))
                    is_told = True
            finally:
                self._is_launched = False
                self._changes.announce()
            if not await self._pause_for_descriptors():
                return None

    async def _accompany(self, running: Running) -> Outcome:
        """Wait for the end of an attempt, and keep its logs within their limits until then."""
        self._running = running
        self._changes.announce()
        logs = self._logs()
        for log in logs:
            self._host.sweeper.add(log, running)
        late, self._postponed = self._postponed, None
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
        self._end_sessions()
        for log in logs:
            self._host.sweeper.remove(log)
        now = self._now()
        self._ended_at = min(max(end.at or now, self._began()), now)
        self._emit(events.terminated(self._ended_at, end))
        if self._killed.is_set():
            return Outcome.KILLED
        if self._is_doomed:
            return Outcome.UNRECOVERABLE
        if self._restart_wanted:
            self._restart_wanted = False
            return Outcome.RESTART_WANTED
        return Outcome.SUCCEEDED if end.ok else Outcome.FAILED

    async def _tell(self, wishes: list[Wish]) -> None:
        """Tell the task, as it wishes, that something it was given has changed."""
        if self._postponed is not None:  # what has not begun will get it as it is then
            self._postponed += [one for one in wishes if one.script is not None]
            return
        if is_queued(self._running):
            await self._running.refresh()
        await tell(self, wishes, self._emit_now, self._now)

    def _end_sessions(self) -> None:
        """Kill the commands that somebody runs inside the attempt that has ended."""
        for session in self._sessions:
            session.kill()
        self._sessions.clear()

    def _logs(self) -> list[TaskLog]:
        config = self.task.log_config
        if config.disabled:
            return []
        directory = self._host.directory(self._instance.allocation.id)
        return [TaskLog(directory, self.name, kind, config) for kind in ("stdout", "stderr")]

    def _prepared(self) -> Attempt:
        """Return the present attempt with everything that belongs to it."""
        return self._provisions.attempt(self.state.restarts)

    # ---- what follows, and saying so ------------------------------------------------------------

    def _next(self, outcome: Outcome) -> Step:
        step, self._history = next_step(
            self.task.restart_policy,
            self._history,
            Outcome.KILLED if self._killed.is_set() else outcome,
            once=runs_once(self._instance.job.type, self.task),
            now=self._now(),
            chance=self._host.chance(),
        )
        return step

    def _finish(self, step: Step) -> None:
        if step.action is Action.FAIL:
            self._emit(events.not_restarting(self._now(), step.reason))
        elif step.action is Action.ACCEPT:
            self._emit(events.killed(self._now(), self._kill_error))
        self._die(failed=step.action is Action.FAIL)

    def _die(self, *, failed: bool) -> None:
        self._set(
            state=TaskPhase.DEAD, failed=failed, finished_at=rfc3339(self._ended_at or self._now())
        )
        self.dead.set()

    def _set(self, **changes: object) -> None:
        """Change the task's state, and let everyone know."""
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

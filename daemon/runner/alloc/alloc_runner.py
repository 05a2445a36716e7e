"""Run one allocation: its directory, its tasks in order, its health, and its end.

The actions of the runner depend on the states of the tasks (`lifecycle.py`, `health_watch.py`) and
on the desired state of the allocation. The runner reacts immediately to every change of these
states.
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec
import trio

from daemon.clock import seconds_left
from daemon.runner.alloc.alloc_dir import prepare_alloc_dir
from daemon.runner.alloc.alloc_states import TABLE, AllocState
from daemon.runner.alloc.alloc_tasks import AllocTasks
from daemon.runner.alloc.health_watch import HealthWatch
from daemon.runner.alloc.run_limit import RunLimit
from daemon.runner.alloc.task_runner import TaskRunner
from daemon.runner.core import task_dir, task_events
from daemon.runner.core.background import start_detached
from daemon.runner.core.lifecycle import (
    GroupShutdown,
    group_shutdown_cause,
)
from daemon.runner.core.notifier import Notifier, wait_any
from daemon.runner.core.resource_usage import TrafficSample, network_usage, of_allocation
from daemon.runner.core.state_machine import StateMachine
from daemon.runner.core.status_report import AllocReport
from daemon.runner.core.task_instance import RestoredState, TaskInstance
from daemon.runner.services.discovery import ServiceRegistrar
from daemon.runner.setup.group_network import has_network, mode_of
from daemon.runner.setup.runtime import RuntimeContext
from storage import request_context
from storage.errors import describe_error, is_descriptor_shortage
from storage.records.allocation import (
    AllocatedResources,
    Allocation,
    DesiredStatus,
    TaskPhase,
    TaskState,
)
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.service import CheckResult
from storage.records.task import Task
from storage.records.times import rfc3339
from storage.records.usage import AllocationUsage, AllocationUsageLine, NetworkUsage

_log = logging.getLogger("steward.runner")


class AllocRunner:
    """The state machine of one allocation; `alloc_states.py` has the table of its states.

    The allocation starts when its predecessors have ended.
    """

    def __init__(
        self,
        host: RuntimeContext,
        allocation: Allocation,
        job: Job,
        pasts: Mapping[str, RestoredState],
        predecessors: Iterable[trio.Event] = (),
    ) -> None:
        group = job.group(allocation.task_group) or TaskGroup(name=allocation.task_group)
        self._host, self.node_id = host, host.node_id
        self._instance = TaskInstance(allocation=allocation, job=job, group=group)
        self._machine = StateMachine(f"allocation {allocation.id}", TABLE, AllocState.WAITING)
        self._predecessors = list(predecessors)
        self._changes = Notifier()
        self._pasts = dict(pasts)
        self._stop_wanted = trio.Event()
        self.tasks = AllocTasks(lambda: self._instance, self._stop_wanted.is_set)
        self._nursery: trio.Nursery | None = None
        self._is_offering = False
        self._is_overfull = False  # whether exceeding the disk limit was already reported
        self.is_purged = False
        # Why `run` released the tasks before their end, because no file descriptor was free.
        self.interruption = ""
        self._traffic: dict[str, TrafficSample] = {}  # traffic samples on the bridge, by reader
        self.disk_used = 0  # bytes of the allocation directory, when they were last measured
        self.ended = trio.Event()
        self._report = AllocReport(host.reports, allocation, lambda: self._discovery.offers())
        self._discovery = ServiceRegistrar(
            host,
            lambda: self._instance,
            self._report,
            self._stop_wanted.is_set,
            self._changes,
            self.tasks.restart_unhealthy,
            self.tasks.run_inside,
        )
        self._health = HealthWatch(
            host.clock,
            lambda: self._instance,
            self._report,
            self._changes,
            self._stop_wanted.is_set,
            self._discovery.healthy_since,
            self._discovery.failing_checks,
        )
        self._limit = RunLimit(
            host, lambda: self._instance, self._report, self._changes, self.tasks
        )
        self._want(allocation)

    @property
    def id(self) -> str:
        """Return the ID of the allocation."""
        return self._instance.allocation.id

    @property
    def namespace(self) -> str:
        """Return the namespace of the allocation."""
        return self._instance.allocation.namespace

    @property
    def job_id(self) -> str:
        """Return the ID of the allocation's job."""
        return self._instance.allocation.job_id

    @property
    def has_network(self) -> bool:
        """Return whether the tasks share a network namespace."""
        return has_network(self._instance.group) and self._host.capacity is not None

    @property
    def is_ending(self) -> bool:
        """Return whether the allocation is stopping."""
        return self._stop_wanted.is_set()

    @property
    def directory(self) -> str:
        """Return the allocation directory."""
        return self._host.directory(self.id)

    @property
    def disk(self) -> int:
        """Return the disk limit of the allocation directory in bytes."""
        return self.resources.shared.disk_mb * 1024 * 1024

    @property
    def resources(self) -> AllocatedResources:
        """Return the resources that the allocation holds until it has ended."""
        return self._instance.allocation.placement.resources

    # --- requests ---

    def update(self, allocation: Allocation, job: Job) -> None:
        """Apply a new version of the job and a new desired state."""
        before = self._instance.allocation
        group = job.group(allocation.task_group) or self._instance.group
        self._instance = TaskInstance(allocation=allocation, job=job, group=group)
        for task in self.tasks:
            task.update(self._instance)
        if allocation.deployment_id != before.deployment_id:
            self._report.reset_health(allocation)
            self._health.start(self._nursery)
        self._watch_services()
        self._limit.start(self._nursery)
        self._want(allocation)
        if self._nursery is not None:
            self._report.publish_services()
        self._changes.announce()

    def purge(self) -> None:
        """Stop an allocation that was purged from the store."""
        self.is_purged = True
        self._stop_wanted.set()
        self._changes.announce()

    def _want(self, allocation: Allocation) -> None:
        if allocation.desired_status != DesiredStatus.RUN:
            self._stop_wanted.set()

    @property
    def checks(self) -> list[CheckResult]:
        """Return the latest result of each service check."""
        return self._discovery.results

    async def usage(self, reader: str = "") -> AllocationUsage:
        """Return the resource usage of the tasks since the previous call with the same `reader`."""
        readings = {task.name: await task.usage(reader) for task in self.tasks}
        tasks = {name: usage for name, usage in readings.items() if usage}
        return of_allocation(tasks, self._now(), self._network_usage(reader))

    def _network_usage(self, reader: str) -> NetworkUsage | msgspec.UnsetType:
        """Return the rates of the allocation's traffic since the last call with the same `reader`.

        The result is unset if the allocation has no interface on the bridge.
        """
        if mode_of(self._instance.group) != "bridge" or self._host.capacity is None:
            return msgspec.UNSET
        before, now = self._traffic.get(reader), self._host.traffic(self.id)
        if now is None:
            return msgspec.UNSET
        self._traffic[reader] = now
        if before is None:
            before = TrafficSample(self._instance.allocation.create_time, 0, 0)
        return network_usage(before, now)

    @property
    def restarts(self) -> int:
        """Return the number of restarts of all tasks."""
        return sum(state.restarts for state in self._report.states.values())

    async def brief_usage(self) -> AllocationUsageLine:
        """Return the total CPU and memory usage of the tasks, and the number of their restarts."""
        used = (await self.usage()).resource_usage
        memory = used.memory_stats
        return AllocationUsageLine(
            id=self.id,
            cpu_percent=used.cpu_stats.percent,
            memory=memory.usage or memory.rss,
            restarts=self.restarts,
        )

    async def report_over_limit(self, used: int) -> None:
        """Report that the allocation exceeds its disk limit.

        If the agent enforces the limit, stop the allocation. `used` is in bytes.
        """
        living = [task for task in self.tasks.live if task.is_running]
        for task in () if self._is_overfull else living:
            task.record(task_events.disk_exceeded(self._now(), used, self.disk))
        self._is_overfull = True
        self._report.publish()
        if self._host.disk_is_limit:
            # This runs in the background, so that the checks of other allocations continue.
            self.tasks.fail(living)

    @property
    def is_over(self) -> bool:
        """Return whether all tasks of the allocation are dead."""
        return self.tasks.are_over

    async def reported(self) -> None:
        """Wait until the store has the final report of the allocation."""
        await self._report.stored()

    # --- main loop ---

    async def run(self) -> None:
        """Run the allocation until all its tasks are dead. When cancelled, release the tasks.

        If no file descriptor is free, release the tasks too and set `interruption`. Another runner
        can then continue, as after a restart of the daemon.
        """
        if (recorder := request_context.TRACING.recorder) is None:
            return await self._run()
        allocation = self._instance.allocation
        attributes = {
            "steward.allocation": allocation.id,
            "steward.namespace": allocation.namespace,
            "steward.job": allocation.job_id,
            "steward.group": allocation.task_group,
        }
        created = allocation.create_time
        with recorder.unit(
            allocation.request_id, (allocation.id,), "allocation", created, attributes
        ):
            return await self._run()

    async def _run(self) -> None:
        try:
            await self._live()
            self._machine.enter(AllocState.ENDED)
        except Exception as error:
            if is_descriptor_shortage(error):
                self.interruption = describe_error(error)
                return
            # An error in one allocation must not stop the daemon.
            _log.exception("allocation %s failed", self.id)
            self._machine.enter(AllocState.FAILED)
            await self._give_up(describe_error(error))
            self._machine.enter(AllocState.ENDED)
        finally:
            if self._machine.state is not AllocState.ENDED:
                self._machine.enter(AllocState.RELEASED)
            if not self.interruption:
                self.ended.set()

    async def _live(self) -> None:
        tasks = self._instance.tasks
        for task in tasks:
            if task.name not in self._report.states:
                self._report.states[task.name] = TaskState()
                self._report.event(task.name, task_events.received(self._now()))
        await self._wait_for_predecessors()
        self._machine.enter(AllocState.PREPARING)
        inherited = task_dir.exists(self.directory)
        await self._prepare()
        self.tasks.add(self._runner(task) for task in tasks)
        for name, text in self._discovery.faults():
            self._report.event(name, task_events.hook_failed(self._now(), text))
        for name, text in () if inherited else self._discovery.port_conflicts():
            self._report.event(name, task_events.port_in_use(self._now(), text))
        if self._stop_wanted.is_set() and not self._has_started():
            for runner in self.tasks:
                runner.forbid_attempts()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._machine.enter(AllocState.RUNNING)
            self.tasks.start(nursery)
            self._health.start(self._nursery)
            self._watch_services()
            self._limit.start(self._nursery)
            await self._apply_lifecycle(nursery)
            nursery.cancel_scope.cancel()
        self._nursery = None
        self.tasks.close()
        self._machine.enter(AllocState.CLEANING)
        if inherited:
            # Processes of a start that an earlier daemon did not report belong to no task runner.
            await self._host.destroy(self.id)

    async def _wait_for_predecessors(self) -> None:
        for ended in self._predecessors:
            if not ended.is_set() and not self._stop_wanted.is_set():
                self._report.publish()
                await wait_any(ended.wait, self._stop_wanted.wait)

    def _runner(self, task: Task) -> TaskRunner:
        past = self._pasts.get(task.name, RestoredState())
        return TaskRunner(self._host, self._instance, task.name, self._report, self._changes, past)

    async def _apply_lifecycle(self, nursery: trio.Nursery) -> None:
        """Stop tasks as the lifecycle rules require, until all are dead."""
        leaving = None
        while not self.tasks.are_dead:
            if self._stop_wanted.is_set() and not self._is_stopping:
                self._machine.enter(AllocState.STOPPING)
                self._report.publish()  # deregister the services before the tasks stop
                nursery.start_soon(self._stop)
            reason = group_shutdown_cause(self._instance.tasks, self._report.states)
            if reason is not None and reason != leaving and not self._is_stopping:
                leaving = reason
                self._machine.enter(AllocState.LEAVING)
                nursery.start_soon(self._stop_remaining, reason)
            await self._changes.wait()
        self._health.close()

    @property
    def _is_stopping(self) -> bool:
        return self._machine.state is AllocState.STOPPING

    async def _stop_remaining(self, reason: GroupShutdown) -> None:
        """Stop the remaining tasks because another task ended."""
        for task in self.tasks.live:
            task.record(task_events.stopped_with_group(self._now(), reason))
        await self.tasks.kill_in_order()

    async def _stop(self) -> None:
        """Stop the tasks because the allocation is no longer desired."""
        if not self._has_started():  # nothing to clean up
            await self.tasks.abort()
            return
        if self._discovery.exists:
            await self._report.stored_soon()
        allocation, group = self._instance.allocation, self._instance.group
        if group.shutdown_delay and not allocation.desired.transition.no_shutdown_delay:
            with trio.move_on_after(self._shutdown_delay_left(group.shutdown_delay)):
                await self._until_hurried()
        await self.tasks.kill_in_order()

    def _shutdown_delay_left(self, delay: int) -> float:
        """Return the seconds left of the group's shutdown delay.

        An earlier daemon may have begun the delay.
        """
        if not self._report.shutdown_at:
            self._report.shutdown_at = self._now()
            self._report.publish()
        return seconds_left(self._report.shutdown_at, delay, self._now())

    def _has_started(self) -> bool:
        return any(state.started_at for state in self._report.states.values())

    async def _until_hurried(self) -> None:
        while not self._instance.allocation.desired.transition.no_shutdown_delay:
            await self._changes.wait()

    # --- services ---

    def _watch_services(self) -> None:
        """Start watching the services, if the group has any."""
        if self._nursery is not None and self._discovery.exists and not self._is_offering:
            self._is_offering = True
            start_detached(self._nursery, self._discovery.run)

    # --- directory ---

    async def _prepare(self) -> None:
        """Create the directories of the allocation.

        This happens before any task runs, because a task could replace directories by links.
        """
        if self._stop_wanted.is_set():
            return
        for name, problem in (await prepare_alloc_dir(self._host, self._instance)).items():
            past = self._pasts.get(name, RestoredState())
            self._pasts[name] = msgspec.structs.replace(past, trouble=problem)

    async def _give_up(self, reason: str) -> None:
        """Stop all tasks and report them as failed, because the runner itself has failed."""
        await self._host.destroy(self.id)
        self._report.stops.clear()
        for name, state in self._report.states.items():
            if state.state != TaskPhase.DEAD:
                self._report.event(name, task_events.setup_failure(self._now(), reason))
                self._report.states[name] = msgspec.structs.replace(
                    state,
                    state=TaskPhase.DEAD,
                    failed=True,
                    finished_at=rfc3339(self._now()),
                )
        self._report.publish()

    def _now(self) -> int:
        return self._host.clock.now()

"""Run the allocations that the scheduler has placed on this host and on cluster pools.

`open_runner` registers the host as a node. The runner then makes the allocations match their
desired state in the store. It starts new allocations, and updates running ones. It stops purged
allocations, and removes their directories. Tasks that an earlier daemon started are re-attached and
keep running undisturbed.
"""

import logging
import os
import random
import sys
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from daemon.app.context import MessageChannel
from daemon.clock import Clock
from daemon.config.data_directory import STAGING
from daemon.config.settings import DISK_FAIL, DISK_OFF, Settings
from daemon.fences import TOPIC, Fences
from daemon.launcher.alloc_removal import GONE
from daemon.launcher.client import Launcher
from daemon.net import egress_policy
from daemon.runner.alloc import disk_usage
from daemon.runner.alloc.alloc_gc import enforce_retention, retain_logs
from daemon.runner.alloc.alloc_runner import AllocRunner
from daemon.runner.alloc.desired_allocs import DesiredAllocation, load_desired
from daemon.runner.alloc.predecessors import predecessors_of
from daemon.runner.core.background import start_detached
from daemon.runner.core.driver import Driver
from daemon.runner.core.file_descriptors import SHORTAGE_PAUSE, raise_fd_limit, set_cloexec
from daemon.runner.core.resource_usage import IDLE, host_usage, of_allocation, sample_cpus
from daemon.runner.core.status_report import ReportQueue
from daemon.runner.core.task_env import inherited_environment, node_values
from daemon.runner.core.task_log import Logs, TaskLog
from daemon.runner.host_usage import BridgeTraffic, HostMeter
from daemon.runner.logs.rotation import LogRotator
from daemon.runner.node_registration import (
    drivers_of,
    fetcher_of,
    file_keeper_of,
    fingerprints,
    git_isolation,
    git_sandbox_of,
    register,
    restore_unreadable,
)
from daemon.runner.setup import group_network
from daemon.runner.setup.given_secrets import SecretKeeper
from daemon.runner.setup.runtime import (
    Listeners,
    RuntimeContext,
    TokenProvider,
    VariableReader,
    no_listeners,
    unguarded,
)
from daemon.runner.setup.secrets_tmpfs import SecretsTmpfs
from daemon.runner.setup.workload_identity import IdentitySigner
from daemon.runner.task_containment import TaskCgroups, hold
from daemon.runner.usage_history import MeasuredRunner, UsageRecorder
from storage.errors import NotFound, Refused
from storage.queries import allocations, nodes
from storage.read_pool import ReadSnapshot
from storage.records.allocation import TaskPhase
from storage.records.base import SECOND
from storage.records.service import CheckResult
from storage.records.task import Task
from storage.records.usage import AllocationUsage, AllocationUsageLine, HostStats
from storage.records.usage_history import SeriesKey, UsageBlock
from storage.store import Store

if TYPE_CHECKING:
    from daemon.runner.cluster_nodes import ClusterNodes
    from daemon.runner.task_egress import TaskEgressPolicy

_log = logging.getLogger("steward.runner")

_REMOVED_TOGETHER = 2  # directories at a time; more would only queue for the same disk
_RECENT = 12  # reader of usage samples for short usage lines
_MOST_SESSIONS = 1024  # exec sessions; each needs a process and up to six file descriptors

# In development mode the daemon stops its tasks when it exits. Each task has `_DEV_GRACE` seconds
# to react, all tasks together have `_DEV_END`.
_DEV_GRACE = 3.0
_DEV_END = 4.0
_DEV_LAST = 0.5  # seconds to kill the remaining processes

_FENCED = "allocation"
_FENCED_REMOVAL = "removal of an allocation"
# Seconds that startup waits for allocations that were purged while no daemon was running.
_LEAVING = 3.0


class NodeRunner:
    """The running allocations of this host and of its cluster pools."""

    def __init__(
        self, store: Store, host: RuntimeContext, clusters: Iterable[RuntimeContext] = ()
    ) -> None:
        """Initialize with the local host and the clusters; all share one allocation directory."""
        self.node_id = host.node_id
        self._store, self._host = store, host
        self._hosts = {cluster.node_id: cluster for cluster in (host, *clusters)}
        self._running: dict[str, AllocRunner] = {}
        self._seen = -1  # index of the last scheduler change that was applied
        self._failed: set[str] = set()  # allocations whose last change could not be applied
        self._nodes_seen = -1  # index of the last node change whose metadata was applied
        self._nursery: trio.Nursery | None = None
        self._looked = IDLE  # the previous sample of host usage
        self._collection = trio.Event()  # set when garbage collection is requested
        self._removing = trio.CapacityLimiter(_REMOVED_TOGETHER)
        self._sessions = 0  # running exec sessions
        self.recorder: UsageRecorder | None = None  # None if the configuration turns it off

    # --- requests from API and scheduler ---

    async def restart(
        self, alloc_id: str, task: str | None = None, *, all_tasks: bool = False
    ) -> None:
        """Restart the named task of an allocation; without a name, restart all running tasks.

        With `all_tasks`, also run the ended tasks again.

        Raises `NotFound` when the allocation is unknown, `Refused` when it or the task has ended,
        `StorageUnavailable` when the request cannot be stored.
        """
        await self._find(alloc_id).tasks.restart(task, all_tasks=all_tasks)

    async def create_volume(self, volume_id: str, mode: int, owner: tuple[int, int]) -> None:
        """Create the directory of a volume. In `owner`, -1 means the ID of the launcher's user.

        Raises `OSError`.
        """
        await self._host.launcher.create_volume(volume_id, mode, owner)

    async def remove_volume(self, volume_id: str) -> None:
        """Delete the directory of a volume with all its files. Raises `OSError`."""
        await self._host.launcher.remove_volume(volume_id)

    async def signal(self, alloc_id: str, task: str | None, name: str) -> None:
        """Send a signal to the main process of one task, or of all running tasks.

        An unknown signal name means SIGINT, as in Nomad. Raises `NotFound` or `Refused`.
        """
        await self._find(alloc_id).tasks.signal(task, name)

    async def usage(self, alloc_id: str) -> AllocationUsage:
        """Return the resource usage of an allocation. Raises `NotFound` when it is unknown."""
        try:
            return await self._find(alloc_id).usage()
        except Refused:  # the allocation has ended
            return of_allocation({}, self._host.clock.now())

    async def brief_usages(
        self, ids: Iterable[str], sees: Callable[[str], bool]
    ) -> list[AllocationUsageLine]:
        """Return one usage line for each running allocation among `ids`.

        `sees` returns whether the caller may read the allocations of a namespace.
        """
        usage_lines = []
        for alloc_id in ids:
            runner = self._running.get(alloc_id)
            if runner is not None and not runner.is_over and sees(runner.namespace):
                usage_lines.append(self._with_recent(await runner.brief_usage(), runner.namespace))
            await trio.lowlevel.checkpoint()
        return usage_lines

    def _with_recent(self, line: AllocationUsageLine, namespace: str) -> AllocationUsageLine:
        if self.recorder is None:
            return line
        recent = self.recorder.recent_cpu(line.id, namespace, _RECENT)
        return msgspec.structs.replace(
            line, recent=[None if value is None else value / 10 for value in recent]
        )

    async def usage_history(
        self, key: SeriesKey, begin: int, end: int, step: int
    ) -> dict[str, UsageBlock] | None:
        """Return the usage samples of an object by task, as `UsageRecorder.read` does.

        Return None if the configuration disables the recorder.
        """
        return await self.recorder.read(key, begin, end, step) if self.recorder else None

    def checks(self, alloc_id: str) -> list[CheckResult]:
        """Return the last results of the service checks of an allocation."""
        runner = self._running.get(alloc_id)
        return runner.checks if runner is not None else []

    def host_usage(self) -> HostStats:
        """Return the host's resource usage, averaged since the previous call."""
        before, self._looked = self._looked, sample_cpus()
        return host_usage(
            before,
            self._looked,
            mhz=self._host.mhz,
            alloc_dir=self._host.alloc_dir,
            time=self._host.clock.now(),
        )

    def egress(self) -> tuple[bool, str]:
        """Return whether the egress policy is enforced as configured, with an explanation."""
        return self._host.egress()

    def git_isolation(self) -> tuple[bool, str]:
        """Return whether git runs in its own sandbox, and the reason if it does not."""
        return self._host.git

    async def collect(self, alloc_id: str) -> None:
        """Remove the directory of a terminal allocation.

        Raises `NotFound` when the allocation is unknown, `Refused` when it is running.
        """
        if not self._is_known(alloc_id):
            raise NotFound(f'Unknown allocation "{alloc_id}"')
        if alloc_id in self._running:
            raise Refused("No such allocation on client, or allocation not eligible for GC")
        await self.remove_directory(alloc_id)

    def collect_all(self) -> None:
        """Request removal of the directories of all terminal allocations.

        The removal runs in the background: thousands of directories take seconds.
        """
        self._collection.set()

    async def _follow_collections(self) -> None:
        """Remove the directories of all terminal allocations after each request.

        All requests during a sweep share the next sweep.
        """
        while True:
            await self._collection.wait()
            self._collection = trio.Event()
            for alloc_id in await self.ended():
                with self._host.fences.around(_FENCED_REMOVAL, alloc_id):
                    await self.remove_directory(alloc_id)

    async def ended(self) -> list[str]:
        """Return the IDs of terminal allocations that still have a directory, oldest first."""
        present = await self._host.launcher.present()
        ended = await self._store.read_long(partial(allocations.terminal, ids=present))
        return [alloc_id for alloc_id in ended if alloc_id not in self._running]

    async def owners(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return the namespace and the job ID of each allocation, by allocation ID."""
        return await self._store.read_long(partial(allocations.owning_jobs, ids=ids))

    def present(self) -> list[AllocRunner]:
        """Return the allocations that are running on this host or its clusters."""
        return [runner for runner in self._running.values() if not runner.is_over]

    def _is_known(self, alloc_id: str) -> bool:
        return self._store.read(lambda db: allocations.find(db, alloc_id)) is not None

    async def run_exec_session(
        self, alloc_id: str, task: str, command: Sequence[str], line: MessageChannel, *, tty: bool
    ) -> None:
        """Run a command inside a task and connect it to a client.

        Raises `NotFound` when the allocation is unknown, `Refused` when it is not running or the
        limit on sessions is reached.
        """
        if self._sessions >= _MOST_SESSIONS:
            raise Refused(f"{_MOST_SESSIONS} exec sessions are open: close one, or try again later")
        self._sessions += 1
        try:
            session = await self._find(alloc_id).tasks.open_session(task, command, tty=tty)
            # Imported late, because sessions are rare.
            from daemon.runner.exec_session import run_exec_session

            await run_exec_session(session, line)
        finally:
            self._sessions -= 1

    def has_ended(self, alloc_id: str, task: str) -> bool:
        """Return whether a task has stopped writing to its logs."""
        allocation = self._store.read(lambda db: allocations.find(db, alloc_id))
        if allocation is None or allocation.client_terminal:
            return True
        state = (allocation.client.task_states or {}).get(task)
        return state is not None and state.state == TaskPhase.DEAD

    def log(self, alloc_id: str, task: Task, kind: str) -> TaskLog:
        """Return the log of one output stream of a task; `kind` is `stdout` or `stderr`."""
        return self.logs.log(alloc_id, task.name, kind, task.log_config)

    @property
    def logs(self) -> Logs:
        """Return the object that gives access to the logs of all tasks."""
        return self._host.logs

    def _find(self, alloc_id: str) -> AllocRunner:
        runner = self._running.get(alloc_id)
        if runner is not None and not runner.is_over:
            return runner
        if self._is_known(alloc_id):
            raise Refused("Task not running")
        raise NotFound(f'Unknown allocation "{alloc_id}"')

    # --- main loop ---

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Apply the desired state of the store until cancelled.

        Cancelling releases the tasks: they keep running.
        """
        await self._stop_purged()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            keep_running = self._host.fences.keep_running
            nursery.start_soon(keep_running, "removed allocations", self._follow_removals)
            nursery.start_soon(keep_running, "collected allocations", self._follow_collections)
            await nursery.start(self._follow_changes)
            task_status.started()

    async def _follow_changes(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Apply the changes of the scheduler.

        Running tasks are not affected if this loop restarts after an error.
        """
        topics = [allocations.node_topic(node_id) for node_id in self._hosts]
        topics += [TOPIC, *(f"nodes/{node_id}" for node_id in self._hosts)]

        async def follow() -> None:
            nonlocal task_status
            while True:
                with self._store.watch(*topics) as changes:
                    self._renew_metadata()
                    self._sync()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    with trio.move_on_after(self._until_next_attempt()):
                        await changes.wait()

        await self._host.fences.keep_running("allocations", follow)

    def _until_next_attempt(self) -> float:
        """Return the seconds until an allocation that failed to start is retried."""
        retry_time = self._host.fences.next_time(_FENCED)
        return (
            float("inf")
            if retry_time is None
            else max(retry_time - self._host.clock.now(), 0) / SECOND
        )

    def _renew_metadata(self) -> None:
        """Update the node metadata, which tasks see when they start."""
        index = self._store.read(lambda db: db.table_index("nodes"))
        if index == self._nodes_seen:
            return
        self._nodes_seen = index
        for node_id, host in self._hosts.items():
            if node := self._store.read(partial(nodes.find, node_id=node_id)):
                host.renew_metadata(node.meta)

    def _sync(self) -> None:
        """Apply all changes of the scheduler since the previous call."""
        load = partial(
            load_desired,
            node_ids=self._hosts,
            after=self._seen,
            failed=self._failed,
            running_ids=self._running,
            now=self._host.clock.now(),
        )
        self._seen, desired, unreadable = self._store.read(load)
        fences = self._host.fences
        for row in unreadable:
            with fences.unless_paused(_FENCED, row.id) as has_turn:
                if has_turn:
                    raise row.error
        # Stop allocations first, because new ones may have to wait for their end.
        for alloc in sorted(desired, key=lambda alloc: alloc.is_to_run):
            allocation = alloc.allocation
            with fences.unless_paused(_FENCED, allocation.id) as has_turn:
                if not has_turn:
                    pass
                elif running := self._running.get(allocation.id):
                    running.update(allocation, alloc.job)
                elif not allocation.client_terminal:
                    self._begin(alloc)
        # These changes are applied again.
        ids = (*(row.id for row in unreadable), *(alloc.allocation.id for alloc in desired))
        self._failed = {alloc_id for alloc_id in ids if fences.of(_FENCED, alloc_id) is not None}

    def _begin(self, alloc: DesiredAllocation) -> None:
        host, running = self._hosts[alloc.allocation.node_id], self._running.values()
        before = predecessors_of(alloc.allocation, running, host.capacity, self._is_known)
        runner = AllocRunner(host, alloc.allocation, alloc.job, alloc.pasts, before)
        self._running[runner.id] = runner
        assert self._nursery is not None  # noqa: S101  # set by `run`
        start_detached(self._nursery, self._run_allocation, runner)

    async def _run_allocation(self, runner: AllocRunner) -> None:
        fences = self._host.fences
        await runner.run()
        while runner.interruption and (continued := await self._continued(runner)):
            runner = continued
            await runner.run()
        with fences.around(_FENCED_REMOVAL, runner.id):
            await self._host.secret_dirs.release(runner.id)
            if runner.has_network:
                await group_network.release(self._host.launcher, runner.id)
        # Keep the runner until the store has the final status. Otherwise, the next change of the
        # allocation would start it again.
        await runner.reported()
        del self._running[runner.id]
        if runner.is_purged:
            with fences.around(_FENCED_REMOVAL, runner.id):
                await self.remove_directory(runner.id)

    async def _continued(self, interrupted: AllocRunner) -> AllocRunner | None:
        """Return a runner that continues an allocation for which no file descriptor was free.

        It begins with the stored state, like a runner of a later daemon. Return None if the
        allocation was purged.
        """
        _log.warning(
            "no file descriptor is free for allocation %s, so it continues later: %s",
            *(interrupted.id, interrupted.interruption),
        )
        await interrupted.reported()
        await trio.sleep(SHORTAGE_PAUSE)
        load = partial(
            load_desired,
            node_ids=(),
            after=self._seen,
            failed={interrupted.id},
            running_ids=(),
            now=self._host.clock.now(),
        )
        _, desired, _ = self._store.read(load)
        if not desired:  # purged
            await self._hosts[interrupted.node_id].destroy(interrupted.id)
            interrupted.interruption = ""
            interrupted.ended.set()
            return None
        (alloc,) = desired
        host = self._hosts[interrupted.node_id]
        runner = AllocRunner(host, alloc.allocation, alloc.job, alloc.pasts)
        runner.ended = interrupted.ended  # other allocations may wait for it
        self._running[runner.id] = runner
        return runner

    async def end_all(self) -> None:
        """Stop every task without reporting its end.

        The ends are not reported, because the daemon is exiting and the tasks did not end on their
        own.
        """
        self._host.reports.stop_storing()
        async with trio.open_nursery() as nursery:
            for runner in self._running.values():
                nursery.start_soon(runner.tasks.abort, _DEV_GRACE)

    async def release_networks(self) -> None:
        """Remove the networks of all allocations. Call it only after all tasks have ended."""
        for alloc_id, runner in self._running.items():
            if runner.has_network:
                await group_network.release(self._host.launcher, alloc_id)

    async def destroy_all(self) -> None:
        """Kill the remaining processes of the tasks of all allocations."""
        async with trio.open_nursery() as nursery:
            for alloc_id, runner in self._running.items():
                if not runner.is_over:
                    nursery.start_soon(self._hosts[runner.node_id].destroy, alloc_id)

    # --- purged allocations ---

    async def _follow_removals(self) -> None:
        """Clean up at startup, and whenever allocations are purged from the store."""
        topics = [allocations.removed_topic(node_id) for node_id in self._hosts]
        while True:
            with self._store.watch(*topics) as removals:
                await self._tidy()
                await removals.wait()

    async def _stop_purged(self) -> None:
        """Stop the runners of purged allocations.

        Their resources and ports may be assigned to other allocations already.
        """
        with trio.move_on_after(_LEAVING):
            async with trio.open_nursery() as nursery:
                for alloc_id in await self._forgotten():
                    nursery.start_soon(self._host.destroy, alloc_id)

    async def _tidy(self) -> None:
        """Stop the processes and remove the directories of unknown allocations."""
        # Stop purged allocations first, because new allocations may reuse their resources.
        existing = self._store.read(partial(allocations.existing_ids, ids=self._running))
        for alloc_id in self._running.keys() - existing:
            self._running[alloc_id].purge()
        for alloc_id in await self._finished_ids(self._host.secret_dirs.allocations()):
            await self._host.secret_dirs.release(alloc_id)
        async with trio.open_nursery() as nursery:
            for alloc_id in await self._forgotten():
                nursery.start_soon(self._remove, alloc_id)

    async def _finished_ids(self, ids: Set[str]) -> Set[str]:
        """Return the `ids` of allocations without a runner that have ended or are not in the store.

        Having no runner is not sufficient: when a daemon starts, no allocation has one yet.
        """

        def look(db: ReadSnapshot) -> set[str]:
            return {*(ids - allocations.existing_ids(db, ids)), *allocations.terminal(db, ids)}

        return await self._store.read_long(look) - self._running.keys()

    async def _forgotten(self) -> set[str]:
        """Return the allocations that have local files or processes but are not in the store."""
        present = await self._host.launcher.present()
        existing = await self._store.read_long(partial(allocations.existing_ids, ids=present))
        return set(present) - existing - set(self._running) - self._host.workshops

    async def _remove(self, alloc_id: str) -> None:
        with self._host.fences.around(_FENCED_REMOVAL, alloc_id):
            for host in self._hosts.values():
                await host.destroy(alloc_id)
            await self.remove_directory(alloc_id)

    async def remove_directory(self, alloc_id: str) -> None:
        """Remove the directory of a terminal allocation and retain its logs."""
        alloc_id, launcher = alloc_id.removesuffix(GONE), self._host.launcher
        async with self._removing:
            try:
                await launcher.retain_logs(alloc_id)
            except OSError as error:
                _log.warning("the logs of allocation %s cannot be retained: %s", alloc_id, error)
            try:
                await launcher.remove(alloc_id)
            except OSError as error:
                _log.warning("files of allocation %s cannot be removed: %s", alloc_id, error)


class RunnerDependencies(msgspec.Struct, frozen=True, kw_only=True):
    """The parts and settings that the runner uses. Tests and simulations replace some of them.

    `drivers` replace the host's drivers. `holding` has the cgroups of tasks and `guard` the egress
    policy; both are created by default. Tasks inherit an allow-listed part of `environment`, the
    agent's own environment. `listeners` returns the listening sockets on given ports. `chance`
    returns random numbers in [0, 1). `pool_drivers` are the drivers of each cluster pool.
    `is_separated` means that the launcher has privileges that the daemon lacks. `secret_keeper`
    stores the secrets of tasks, so that their output can be masked.
    """

    store: Store
    clock: Clock
    config: Settings
    ids: Iterator[str]
    signer: IdentitySigner
    variables: VariableReader
    credentials: TokenProvider
    launcher: Launcher
    drivers: Mapping[str, Driver] | None = None
    holding: TaskCgroups | None = None
    guard: "TaskEgressPolicy | None" = None
    environment: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    listeners: Listeners = no_listeners
    chance: Callable[[], float] = random.SystemRandom().random
    pool_drivers: Mapping[str, Mapping[str, Driver]] = MappingProxyType({})
    fences: Fences | None = None
    is_separated: bool = False
    secret_keeper: SecretKeeper | None = None


@asynccontextmanager
async def open_runner(needs: RunnerDependencies) -> AsyncIterator[NodeRunner]:
    """Register this host as a node and run its allocations.

    When the block ends, tasks keep running, and the next runner re-attaches to them. In development
    mode, the runner stops the tasks. The end of the block takes less than five seconds.
    """
    config, launcher = needs.config, needs.launcher
    fences = needs.fences or Fences(needs.clock)
    holding = needs.holding or hold(config, (os.geteuid(), os.getegid()))
    host = await _open_host(needs, holding, fences)
    clusters = await _find_clusters(needs, host)
    runner = NodeRunner(needs.store, host, clusters.hosts if clusters else ())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fences.keep_running, "reports of tasks", host.reports.run)
            nursery.start_soon(fences.keep_running, "logs of tasks", host.sweeper.run)
            await nursery.start(runner.run)
            if needs.store.read(lambda db: db.table_index("host_volumes")):
                # Imported late, because few hosts have volumes.
                from daemon.runner.unfinished_volumes import remove_unfinished
                from storage.queries import host_volumes

                # Read before the API can create volumes.
                unfinished = needs.store.read(host_volumes.unfinished)
                nursery.start_soon(remove_unfinished, needs.store, launcher, unfinished)
            if clusters:
                nursery.start_soon(clusters.mirror.run)  # fenced: its loops survive errors
            removing = (runner.ended, runner.owners, runner.remove_directory)
            retention = partial(enforce_retention, config, *removing, measure=launcher.measure)
            nursery.start_soon(fences.keep_running, "directories of ended allocations", retention)
            if config.usage_history:
                runner.recorder = _recorder(runner, needs)
                nursery.start_soon(fences.keep_running, "usage history", runner.recorder.run)
            logs = partial(retain_logs, config, needs.clock, launcher, needs.secret_keeper)
            nursery.start_soon(fences.keep_running, "logs of ended allocations", logs)
            if config.alloc_disk_limit != DISK_OFF:
                period = config.alloc_disk_seconds
                watch = partial(disk_usage.watch, runner.present, launcher.measure, period, fences)
                nursery.start_soon(fences.keep_running, "disk usage", watch)
            try:
                yield runner
            finally:
                if config.dev:
                    with trio.move_on_after(_DEV_END):
                        await runner.end_all()
                nursery.cancel_scope.cancel()
    finally:
        if config.dev:
            await _clean_up(runner, host)
        holding.release()


def _recorder(runner: NodeRunner, needs: RunnerDependencies) -> UsageRecorder:
    config = needs.config
    meter = HostMeter(needs.clock, config.alloc_dir, config.bridge_network_name)

    def present() -> list[MeasuredRunner]:
        return [*runner.present()]

    return UsageRecorder(needs.store, needs.clock, runner.node_id, present, meter.measure)


async def _open_host(
    needs: RunnerDependencies, holding: TaskCgroups, fences: Fences
) -> RuntimeContext:
    """Register this host as a node, and return the runtime of its allocations."""
    store, config, launcher, guard = needs.store, needs.config, needs.launcher, needs.guard
    inherited = inherited_environment(
        needs.environment, config.task_environment, bundled=getattr(sys, "frozen", False)
    )
    if needs.drivers is None:
        drivers, detected = await drivers_of(holding, inherited, launcher, config)
    else:
        drivers, detected = {**needs.drivers}, fingerprints(needs.drivers)
    raise_fd_limit()
    set_cloexec()
    attributes = {
        "launcher.separated": str(needs.is_separated).lower(),
        **(guard.attributes if guard else {}),
        **group_network.bridge_attributes(await launcher.why_no_bridge()),
    }
    fresh_id = await restore_unreadable(store) or next(needs.ids)
    node = await register(store, config, detected, fresh_id, needs.clock.now(), attributes)
    await trio.to_thread.run_sync(_discard_staging, config)
    resources = node.node_resources
    has_root = needs.is_separated or os.geteuid() == 0
    git = git_isolation(config, launcher, has_root=has_root)
    workshops: set[str] = set()
    git_sandbox = partial(git_sandbox_of, config, launcher, holding, needs.ids, workshops)
    return RuntimeContext(
        node_id=node.id,
        capacity=node.capacity,
        alloc_dir=config.alloc_dir,
        logs_dir=config.logs_dir,
        logs=Logs(launcher, config.output_dir),
        store=store,
        variables=needs.variables,
        credentials=needs.credentials,
        launcher=launcher,
        secret_dirs=SecretsTmpfs(str(config.alloc_dir), launcher),
        rendering=trio.CapacityLimiter(1),
        clock=needs.clock,
        fences=fences,
        drivers={name: driver for name, driver in drivers.items() if node.drivers[name].healthy},
        reports=ReportQueue(store, needs.clock, needs.ids, fences),
        sweeper=LogRotator(fences=fences),
        fetcher=partial(fetcher_of, config, git_sandbox if git[0] else None),
        git=git,
        workshops=workshops,
        file_keeper=partial(file_keeper_of, config, store) if node.capacity else None,
        permit=partial(egress_policy.check, own_ports=egress_policy.own_ports(config)),
        volumes={host_volume.name: host_volume for host_volume in config.host_volumes},
        values=node_values(node, config.region),
        environment=inherited,
        parent_cgroup=holding.groups.parent,
        mhz=resources.cpu.cpu_shares / max(1, resources.cpu.total_cpu_cores),
        signer=needs.signer,
        issuer=config.issuer,
        claims=config.identity_claims,
        disk_is_limit=config.alloc_disk_limit == DISK_FAIL,
        task_socket=config.task_socket_path,
        listeners=needs.listeners,
        chance=needs.chance,
        traffic=BridgeTraffic(needs.clock).of,
        egress=guard.check if guard else unguarded,
        secret_keeper=needs.secret_keeper,
    )


def _discard_staging(config: Settings) -> None:
    """Delete the artifacts that a killed daemon was downloading."""
    if (staging := config.store_dir / STAGING).exists():
        from daemon.runner.setup.artifacts.install import discard

        discard(str(staging))


async def _find_clusters(needs: RunnerDependencies, host: RuntimeContext) -> "ClusterNodes | None":
    """Return the cluster nodes, or None if neither the settings nor the store have a pool."""
    if not needs.config.pools and not any(node.engine for node in needs.store.read(nodes.list_all)):
        return None
    # Imported late, because few hosts have clusters.
    from daemon.runner.cluster_nodes import find_clusters

    path = needs.environment.get("PATH", os.defpath)
    return await find_clusters(host, needs.config, needs.pool_drivers, needs.ids, path)


async def _clean_up(runner: NodeRunner, host: RuntimeContext) -> None:
    """Clean up after development mode: kill the remaining processes, and delete the secrets."""
    with trio.move_on_after(_DEV_LAST, shield=True):
        await runner.destroy_all()
    with trio.CancelScope(shield=True):
        for alloc_id in host.secret_dirs.allocations():
            await host.secret_dirs.release(alloc_id)
        await runner.release_networks()

"""The node: this machine, and the allocations that should run on it.

`open_runner` registers the machine and keeps its allocations as the store wants them: those that
are new are started, those that run are told of changes, those that are purged are ended and their
directories removed. What an earlier daemon started is found again and goes on undisturbed.
"""

import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config import DISK_FAIL, DISK_OFF, Config
from daemon.listening import Listener
from daemon.parts import Line
from daemon.runner import disk, events, kept_logs, taskdir
from daemon.runner.alloc import AllocRunner
from daemon.runner.drivers import cgroup
from daemon.runner.drivers.driver import Driver
from daemon.runner.drivers.group import Groups
from daemon.runner.drivers.scan import Scanner
from daemon.runner.env import node_values, passed_on
from daemon.runner.host import Credentials, Host, Listeners, Variables
from daemon.runner.identities import Signer
from daemon.runner.inside import converse
from daemon.runner.instance import Past
from daemon.runner.logs import TaskLog
from daemon.runner.machine import (
    drivers_of,
    fetcher_of,
    keep_descriptors,
    raise_limit,
    register,
)
from daemon.runner.report import Reports
from daemon.runner.room import keep_logs, keep_room
from daemon.runner.rotation import Sweeper
from daemon.runner.secret_dirs import SecretDirs
from daemon.runner.turns import ends_before
from daemon.runner.usage import IDLE, look_at_machine, of_allocation, of_machine
from storage.errors import NotFound, Refused
from storage.queries import allocations, jobs
from storage.readers import Snapshot
from storage.records.allocation import Allocation, DesiredStatus, TaskPhase, TaskState
from storage.records.job import Job
from storage.records.node import Node
from storage.records.service import CheckResult
from storage.records.task import Task
from storage.records.usage import AllocationUsage, MachineUsage
from storage.store import Store

_log = logging.getLogger("steward.runner")

_MOST_SESSIONS = 1024  # each needs a process and up to six descriptors
_REMEMBERED = 200  # events of a task that say how often it was restarted lately

# A development daemon ends its tasks: each has this long to react, all together have a bit more.
_DEV_GRACE = 3.0
_DEV_END = 4.0
_DEV_LAST = 0.5  # seconds to kill what is left


class _Wanted(msgspec.Struct, frozen=True):
    """An allocation as the store has it, with its definition."""

    allocation: Allocation
    job: Job
    pasts: Mapping[str, Past]


class Runner:
    """The allocations that run on this node."""

    def __init__(self, store: Store, host: Host, node: Node) -> None:
        self.node_id, self._capacity = node.id, node.capacity
        self._store, self._host = store, host
        self._running: dict[str, AllocRunner] = {}
        self._seen = -1  # the last change of the scheduler that was looked at
        self._nursery: trio.Nursery | None = None
        self._looked = IDLE  # at what the machine does
        self._collection = trio.Event()  # somebody wants what has ended removed
        self._sessions = 0  # commands that somebody runs inside tasks

    # ---- what can be asked of it ------------------------------------------------------------------

    def restart(self, alloc_id: str, task: str | None = None, *, all_tasks: bool = False) -> None:
        """Begin another attempt at one task of an allocation, or at those that run, or at all.

        Raises `NotFound` when the allocation is unknown, `Refused` when it or the task has ended.
        """
        self._find(alloc_id).restart(task, all_tasks=all_tasks)

    def signal(self, alloc_id: str, task: str | None, name: str) -> None:
        """Send a signal to the main process of one task, or of all that run; errors as above.

        An unknown signal name means SIGINT, as with the peer.
        """
        self._find(alloc_id).signal(task, name)

    async def usage(self, alloc_id: str) -> AllocationUsage:
        """Return what an allocation uses. Raises `NotFound` when it is unknown."""
        try:
            return await self._find(alloc_id).usage()
        except Refused:  # it has ended
            return of_allocation({}, self._host.clock.now())

    def checks(self, alloc_id: str) -> list[CheckResult]:
        """Return what the checks of an allocation's services found last."""
        runner = self._running.get(alloc_id)
        return runner.checks if runner is not None else []

    def machine_usage(self) -> MachineUsage:
        """Return what the machine uses, on average since the last question."""
        before, self._looked = self._looked, look_at_machine()
        return of_machine(
            before,
            self._looked,
            mhz=self._host.mhz,
            alloc_dir=self._host.alloc_dir,
            at=self._host.clock.now(),
        )

    async def collect(self, alloc_id: str) -> None:
        """Remove the directory of an allocation that has ended.

        Raises `NotFound` when it is unknown, `Refused` when it runs.
        """
        if not self._is_known(alloc_id):
            raise NotFound(f'Unknown allocation "{alloc_id}"')
        if alloc_id in self._running:
            raise Refused("No such allocation on client, or allocation not eligible for GC")
        await self.remove_directory(alloc_id)

    def collect_all(self) -> None:
        """Have the directories of all that has ended removed; thousands take seconds, so soon."""
        self._collection.set()

    async def _follow_collections(self) -> None:
        """Remove what has ended whenever somebody asks, one sweep at a time."""
        while True:
            await self._collection.wait()
            self._collection = trio.Event()
            for one in await self.ended():
                await self.remove_directory(one)

    async def ended(self) -> list[str]:
        """Return the allocations that have ended and a directory, the oldest first."""
        present = await trio.to_thread.run_sync(taskdir.present, self._host.alloc_dir)
        ended = await self._store.read_long(partial(allocations.ended, ids=present))
        return [one for one in ended if one not in self._running]

    async def owners(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        """Return namespace and id of the job of each of these allocations."""
        return await self._store.read_long(partial(allocations.owners, ids=ids))

    def present(self) -> list[AllocRunner]:
        """Return the allocations that run here."""
        return [one for one in self._running.values() if not one.is_over]

    def _is_known(self, alloc_id: str) -> bool:
        return self._store.read(lambda db: allocations.find(db, alloc_id)) is not None

    async def converse(
        self, alloc_id: str, task: str, command: Sequence[str], line: Line, *, tty: bool
    ) -> None:
        """Run a command inside a task and let a client talk with it. Raises `Refused` as above."""
        if self._sessions >= _MOST_SESSIONS:
            raise Refused(f"{_MOST_SESSIONS} commands run inside tasks already: try again later")
        self._sessions += 1
        try:
            session = await self._find(alloc_id).open_session(task, command, tty=tty)
            await converse(session, line)
        finally:
            self._sessions -= 1

    def has_ended(self, alloc_id: str, task: str) -> bool:
        """Tell whether a task writes nothing to its log any more."""
        allocation = self._store.read(lambda db: allocations.find(db, alloc_id))
        if allocation is None or allocation.client_terminal:
            return True
        state = (allocation.client.task_states or {}).get(task)
        return state is not None and state.state == TaskPhase.DEAD

    def log(self, alloc_id: str, task: Task, kind: str) -> TaskLog:
        """Return a task's standard output or error; `kind` is stdout or stderr."""
        return TaskLog(self._host.directory(alloc_id), task.name, kind, task.log_config)

    def _find(self, alloc_id: str) -> AllocRunner:
        runner = self._running.get(alloc_id)
        if runner is not None and not runner.is_over:
            return runner
        if self._is_known(alloc_id):
            raise Refused("Task not running")
        raise NotFound(f'Unknown allocation "{alloc_id}"')

    # ---- its life -----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the node's allocations as the store wants them, until cancelled; then let go."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._follow_removals)
            nursery.start_soon(self._follow_collections)
            while True:
                with self._store.watch(allocations.node_topic(self.node_id)) as changes:
                    self._sync()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await changes.wait()

    def _sync(self) -> None:
        """Look at everything that the scheduler has changed since the last time."""
        # Those that end first: what begins may have to wait for them.
        for wanted in sorted(self._store.read(self._changed), key=_is_to_run):
            allocation = wanted.allocation
            self._seen = max(self._seen, allocation.alloc_modify_index)
            if known := self._running.get(allocation.id):
                known.update(allocation, wanted.job)
            elif not allocation.client_terminal:
                self._begin(wanted)

    def _changed(self, db: Snapshot) -> list[_Wanted]:
        if self._seen < 0:
            found = allocations.to_run(db, self.node_id)
        else:
            ids = allocations.changed(db, self.node_id, self._seen)
            found = [one for alloc_id in ids if (one := allocations.find(db, alloc_id))]
        definitions: dict[tuple[str, str, int], Job | None] = {}
        wanted = []
        for one in found:
            key = (one.namespace, one.job_id, one.job_version)
            if key not in definitions:
                definitions[key] = jobs.version(db, *key)
            job = definitions[key]
            if job is not None:
                wanted.append(_Wanted(one, job, self._pasts(db, one)))
        return wanted

    def _pasts(self, db: Snapshot, allocation: Allocation) -> dict[str, Past]:
        """Return what an earlier daemon knew of the tasks of an allocation."""
        states = allocation.client.task_states
        if not states or allocation.id in self._running:
            return {}
        handles = allocations.handles(db, allocation.id)
        return {
            task: self._past(db, allocation.id, task, handles.get(task, b""), state)
            for task, state in states.items()
        }

    def _past(
        self, db: Snapshot, alloc_id: str, task: str, handle: bytes, state: TaskState
    ) -> Past:
        if not state.restarts:
            return Past(handle=handle)
        happened = allocations.newest_events(db, alloc_id, task, _REMEMBERED)
        restarts = [event for event in happened if event.type == events.RESTARTING]
        delay = 0
        if state.state == TaskPhase.PENDING and restarts:
            delay = restarts[-1].time + restarts[-1].start_delay - self._host.clock.now()
        return Past(
            handle=handle,
            restarts=tuple(event.time for event in restarts if event.restart_reason),
            delay=max(0, delay),
        )

    def _begin(self, wanted: _Wanted) -> None:
        runner = AllocRunner(
            self._host,
            wanted.allocation,
            wanted.job,
            wanted.pasts,
            ends_before(wanted.allocation, self._running.values(), self._capacity, self._is_known),
        )
        self._running[runner.id] = runner
        assert self._nursery is not None  # noqa: S101  # set by `run`
        self._nursery.start_soon(self._run_allocation, runner)

    async def _run_allocation(self, runner: AllocRunner) -> None:
        await runner.run()
        await self._host.secret_dirs.release(self._host.directory(runner.id))
        # As long as the store does not know its end, it would take a change for a reason to begin.
        await runner.reported()
        del self._running[runner.id]
        if runner.is_purged:
            await self.remove_directory(runner.id)

    async def end_all(self) -> None:
        """End every task, and say nothing of it: it is the daemon that ends, not they."""
        self._host.reports.silence()
        async with trio.open_nursery() as nursery:
            for runner in self._running.values():
                nursery.start_soon(runner.abort, _DEV_GRACE)

    async def destroy_all(self) -> None:
        """Kill what is left of every task."""
        async with trio.open_nursery() as nursery:
            for alloc_id, runner in self._running.items():
                if not runner.is_over:
                    nursery.start_soon(self._host.destroy, alloc_id)

    # ---- what is not known any more -----------------------------------------------------------------

    async def _follow_removals(self) -> None:
        """Tidy up at the start, and whenever the store has forgotten allocations."""
        while True:
            with self._store.watch(allocations.removed_topic(self.node_id)) as removals:
                await self._tidy()
                await removals.wait()

    async def _tidy(self) -> None:
        """End what runs and remove what lies here of allocations that the store does not know."""
        # Before anything else begins in the room that they are to leave.
        known = self._store.read(partial(allocations.known, ids=self._running))
        for alloc_id in self._running.keys() - known:
            self._running[alloc_id].purge()
        for alloc_id in self._host.secret_dirs.allocations() - self._running.keys():
            await self._host.secret_dirs.release(self._host.directory(alloc_id))
        present = await trio.to_thread.run_sync(taskdir.present, self._host.alloc_dir)
        known = await self._store.read_long(partial(_all_on, node_id=self.node_id))
        async with trio.open_nursery() as nursery:
            for alloc_id in set(present) - known - set(self._running):
                nursery.start_soon(self._remove, alloc_id)

    async def _remove(self, alloc_id: str) -> None:
        await self._host.destroy(alloc_id)
        await self.remove_directory(alloc_id)

    async def remove_directory(self, alloc_id: str) -> None:
        """Remove the directory of an allocation that has ended; its logs are put aside."""
        await trio.to_thread.run_sync(self._remove_directory, alloc_id)

    def _remove_directory(self, alloc_id: str) -> None:
        root = self._host.directory(alloc_id)
        try:
            kept_logs.keep(root, self._host.logs_dir / alloc_id)
        except OSError as error:
            _log.warning("the logs of allocation %s cannot be kept: %s", alloc_id, error)
        taskdir.remove(root)


def _is_to_run(wanted: _Wanted) -> bool:
    return wanted.allocation.desired_status == DesiredStatus.RUN


def _all_on(db: Snapshot, node_id: str) -> set[str]:
    return set(allocations.changed(db, node_id, -1))


def _nobody(ports: Set[int]) -> list[Listener]:
    return []


@asynccontextmanager
async def open_runner(
    store: Store,
    clock: Clock,
    config: Config,
    ids: Iterator[str],
    signer: Signer,
    variables: Variables,
    credentials: Credentials,
    *,
    drivers: Mapping[str, Driver] | None = None,
    groups: Groups | None = None,
    environment: Mapping[str, str] = os.environ,
    listeners: Listeners = _nobody,
    chance: Callable[[], float] | None = None,
) -> AsyncIterator[Runner]:
    """Register this machine as a node and run its allocations.

    At the end of the block tasks live on, and are found again by the next runner; in development
    they are ended. Either takes less than five seconds. `drivers` and `groups` replace those of the
    machine; of `environment`, the agent's own, tasks get what is neither secret nor its own affair.
    `listeners` tells who listens on ports already; `chance` gives random numbers from 0 up to 1.
    """
    inherited = passed_on(environment, bundled=getattr(sys, "frozen", False))
    groups = groups or cgroup.find(config.alloc_dir) or Scanner()
    if drivers is None:
        drivers = await drivers_of(groups, inherited, config)
    taskdir.make_root(config.alloc_dir)
    raise_limit()
    keep_descriptors()
    node = await register(store, config, drivers, next(ids), clock.now())
    resources = node.node_resources
    reports = Reports(store, clock, ids)
    host = Host(
        alloc_dir=config.alloc_dir,
        logs_dir=config.logs_dir,
        store=store,
        variables=variables,
        credentials=credentials,
        secret_dirs=SecretDirs(str(config.alloc_dir)),
        rendering=trio.CapacityLimiter(1),
        clock=clock,
        drivers={name: driver for name, driver in drivers.items() if node.drivers[name].healthy},
        reports=reports,
        sweeper=Sweeper(),
        fetcher=fetcher_of(config),
        volumes={one.name: one for one in config.host_volumes},
        values=node_values(node, config.region),
        environment=inherited,
        parent_cgroup=groups.parent,
        mhz=resources.cpu.cpu_shares / max(1, resources.cpu.total_cpu_cores),
        signer=signer,
        issuer=config.issuer,
        claims=config.identity_claims,
        disk_is_limit=config.alloc_disk_limit == DISK_FAIL,
        task_socket=config.task_socket_path,
        listeners=listeners,
        chance=chance or random.SystemRandom().random,
    )
    runner = Runner(store, host, node)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reports.run)
            nursery.start_soon(host.sweeper.run)
            await nursery.start(runner.run)
            nursery.start_soon(
                keep_room, config, runner.ended, runner.owners, runner.remove_directory
            )
            nursery.start_soon(keep_logs, config, clock)
            if config.alloc_disk_limit != DISK_OFF:
                nursery.start_soon(disk.watch, runner.present, config.alloc_disk_seconds)
            try:
                yield runner
            finally:
                if config.dev:
                    with trio.move_on_after(_DEV_END):
                        await runner.end_all()
                nursery.cancel_scope.cancel()
    finally:
        if config.dev:
            with trio.move_on_after(_DEV_LAST, shield=True):
                await runner.destroy_all()
            with trio.CancelScope(shield=True):
                await host.secret_dirs.release()
        groups.release()

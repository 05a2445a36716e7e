"""The node: this machine, and the allocations that should run on it.

`open_runner` registers the machine and keeps its allocations as the store wants them: those that
are new are started, those that run are told of changes, those that are purged are ended and their
directories removed. What an earlier daemon started is found again and goes on undisturbed.
"""

import logging
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType

import trio

from daemon.clock import Clock
from daemon.config import DISK_FAIL, DISK_OFF, OPEN, Config
from daemon.launcher.client import Launcher
from daemon.parts import Line
from daemon.runner import disk, kept_logs, taskdir
from daemon.runner.alloc import AllocRunner
from daemon.runner.drivers import cgroup
from daemon.runner.drivers.driver import Driver
from daemon.runner.drivers.group import Groups
from daemon.runner.drivers.scan import Scanner
from daemon.runner.env import node_values, passed_on
from daemon.runner.host import Credentials, Host, Listeners, Variables, nobody, unguarded
from daemon.runner.identities import Signer
from daemon.runner.inside import converse
from daemon.runner.logs import TaskLog
from daemon.runner.machine import (
    drivers_of,
    fetcher_of,
    find_bounds,
    keep_descriptors,
    raise_limit,
    register,
)
from daemon.runner.report import Reports
from daemon.runner.room import keep_logs, keep_room
from daemon.runner.rotation import Sweeper
from daemon.runner.secret_dirs import SecretDirs
from daemon.runner.turns import ends_before
from daemon.runner.uids import open_uids
from daemon.runner.usage import IDLE, look_at_machine, of_allocation, of_machine
from daemon.runner.wanted import Wanted, wanted
from storage.errors import NotFound, Refused
from storage.queries import allocations, nodes
from storage.records.allocation import TaskPhase
from storage.records.service import CheckResult
from storage.records.task import Task
from storage.records.usage import AllocationUsage, MachineUsage
from storage.store import Store

_log = logging.getLogger("steward.runner")

_REMOVED_TOGETHER = 2  # directories; a thread for each of hundreds would only wait for the others
_MOST_SESSIONS = 1024  # each needs a process and up to six descriptors

# A development daemon ends its tasks: each has this long to react, all together have a bit more.
_DEV_GRACE = 3.0
_DEV_END = 4.0
_DEV_LAST = 0.5  # seconds to kill what is left

_LEAVING = 3.0  # seconds that a start waits for the end of what was forgotten while no daemon lived


class Runner:
    """The allocations that run on this machine, and on the clusters that it has pools of."""

    def __init__(self, store: Store, host: Host, clusters: Iterable[Host] = ()) -> None:
        """`host` is this machine; all have one directory for allocations."""
        self.node_id = host.node_id
        self._store, self._host = store, host
        self._hosts = {one.node_id: one for one in (host, *clusters)}
        self._running: dict[str, AllocRunner] = {}
        self._seen = -1  # the last change of the scheduler that was looked at
        self._nodes_seen = -1  # the last change of a node whose metadata were looked at
        self._nursery: trio.Nursery | None = None
        self._looked = IDLE  # at what the machine does
        self._collection = trio.Event()  # somebody wants what has ended removed
        self._removing = trio.CapacityLimiter(_REMOVED_TOGETHER)
        self._sessions = 0  # commands that somebody runs inside tasks

    # ---- what can be asked of it ------------------------------------------------------------------

    async def restart(
        self, alloc_id: str, task: str | None = None, *, all_tasks: bool = False
    ) -> None:
        """Begin another attempt at one task of an allocation, or at those that run, or at all.

        Raises `NotFound` when the allocation is unknown, `Refused` when it or the task has ended.
        """
        await self._find(alloc_id).restart(task, all_tasks=all_tasks)

    async def signal(self, alloc_id: str, task: str | None, name: str) -> None:
        """Send a signal to the main process of one task, or of all that run; errors as above.

        An unknown signal name means SIGINT, as with the peer.
        """
        await self._find(alloc_id).signal(task, name)

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

    def egress(self) -> tuple[bool, str]:
        """Return whether tasks are kept from some addresses as the settings ask, and how or why not."""
        return self._host.egress()

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
        await self._make_room()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._follow_removals)
            nursery.start_soon(self._follow_collections)
            topics = [allocations.node_topic(node_id) for node_id in self._hosts]
            topics += [f"nodes/{node_id}" for node_id in self._hosts]
            while True:
                with self._store.watch(*topics) as changes:
                    self._renew_metadata()
                    self._sync()
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await changes.wait()

    def _renew_metadata(self) -> None:
        """Have tasks that begin find the metadata that their node has now."""
        index = self._store.read(lambda db: db.table_index("nodes"))
        if index == self._nodes_seen:
            return
        self._nodes_seen = index
        for node_id, host in self._hosts.items():
            if node := self._store.read(partial(nodes.find, node_id=node_id)):
                host.renew_metadata(node.meta)

    def _sync(self) -> None:
        """Look at everything that the scheduler has changed since the last time."""
        look = partial(
            wanted,
            node_ids=self._hosts,
            after=self._seen,
            known=self._running,
            now=self._host.clock.now(),
        )
        # Those that end first: what begins may have to wait for them.
        for one in sorted(self._store.read(look), key=lambda one: one.is_to_run):
            allocation = one.allocation
            self._seen = max(self._seen, allocation.alloc_modify_index)
            if known := self._running.get(allocation.id):
                known.update(allocation, one.job)
            elif not allocation.client_terminal:
                self._begin(one)

    def _begin(self, one: Wanted) -> None:
        host, running = self._hosts[one.allocation.node_id], self._running.values()
        before = ends_before(one.allocation, running, host.capacity, self._is_known)
        runner = AllocRunner(host, one.allocation, one.job, one.pasts, before)
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
                    nursery.start_soon(self._hosts[runner.node_id].destroy, alloc_id)

    # ---- what is not known any more -----------------------------------------------------------------

    async def _follow_removals(self) -> None:
        """Tidy up at the start, and whenever the store has forgotten allocations."""
        topics = [allocations.removed_topic(node_id) for node_id in self._hosts]
        while True:
            with self._store.watch(*topics) as removals:
                await self._tidy()
                await removals.wait()

    async def _make_room(self) -> None:
        """End what runs here of forgotten allocations: their room and ports may be others' already."""
        with trio.move_on_after(_LEAVING):
            async with trio.open_nursery() as nursery:
                for alloc_id in await self._forgotten():
                    nursery.start_soon(self._host.destroy, alloc_id)

    async def _tidy(self) -> None:
        """End what runs and remove what lies here of allocations that the store does not know."""
        # Before anything else begins in the room that they are to leave.
        known = self._store.read(partial(allocations.known, ids=self._running))
        for alloc_id in self._running.keys() - known:
            self._running[alloc_id].purge()
        for alloc_id in self._host.secret_dirs.allocations() - self._running.keys():
            await self._host.secret_dirs.release(self._host.directory(alloc_id))
        async with trio.open_nursery() as nursery:
            for alloc_id in await self._forgotten():
                nursery.start_soon(self._remove, alloc_id)

    async def _forgotten(self) -> set[str]:
        """Return the allocations that the store does not know, and of which something lies here."""
        present = await trio.to_thread.run_sync(taskdir.present, self._host.alloc_dir)
        known = await self._store.read_long(partial(allocations.known, ids=present))
        return set(present) - known - set(self._running)

    async def _remove(self, alloc_id: str) -> None:
        for host in self._hosts.values():
            await host.destroy(alloc_id)
        await self.remove_directory(alloc_id)

    async def remove_directory(self, alloc_id: str) -> None:
        """Remove the directory of an allocation that has ended; its logs are put aside."""
        await trio.to_thread.run_sync(self._remove_directory, alloc_id, limiter=self._removing)

    def _remove_directory(self, alloc_id: str) -> None:
        root = self._host.directory(alloc_id)
        try:
            kept_logs.keep(root, self._host.logs_dir / alloc_id)
        except OSError as error:
            _log.warning("the logs of allocation %s cannot be kept: %s", alloc_id, error)
        taskdir.remove(root)
        if self._host.uids:
            self._host.uids.release(alloc_id)


@asynccontextmanager
async def open_runner(
    store: Store,
    clock: Clock,
    config: Config,
    ids: Iterator[str],
    signer: Signer,
    variables: Variables,
    credentials: Credentials,
    launcher: Launcher,
    *,
    drivers: Mapping[str, Driver] | None = None,
    groups: Groups | None = None,
    environment: Mapping[str, str] = os.environ,
    listeners: Listeners = nobody,
    chance: Callable[[], float] | None = None,
    pool_drivers: Mapping[str, Mapping[str, Driver]] = MappingProxyType({}),
) -> AsyncIterator[Runner]:
    """Register this machine as a node and run its allocations.

    At the end of the block tasks live on, and are found again by the next runner; in development
    they are ended. Either takes less than five seconds. `drivers` and `groups` replace those of the
    machine. Of `environment`, the agent's own, tasks get the variables of an allow list.
    `listeners` tells who listens on ports already; `chance` gives random numbers from 0 up to 1;
    `pool_drivers` are those of each pool of a cluster.
    """
    inherited = passed_on(
        environment, config.task_environment, bundled=getattr(sys, "frozen", False)
    )
    groups = groups or cgroup.find(config.groups_of) or Scanner()
    uids = guard = None
    if drivers is None:
        uids = open_uids(config.task_uids, config.alloc_dir)
        bounds = find_bounds(groups, config)
        places = cgroup.places(groups.parent, bounds[0].parent)
        if config.task_egress != OPEN or any(map(cgroup.is_guarded, places)):
            from daemon.runner.egress import guarded  # few ask for it

            guard = guarded(config, places)
        drivers = await drivers_of(groups, inherited, launcher, config, uids, bounds)
    taskdir.make_root(config.alloc_dir)
    raise_limit()
    keep_descriptors()
    node = await register(
        store, config, drivers, next(ids), clock.now(), guard.attributes if guard else {}
    )
    resources = node.node_resources
    reports = Reports(store, clock, ids)
    host = Host(
        node_id=node.id,
        capacity=node.capacity,
        alloc_dir=config.alloc_dir,
        logs_dir=config.logs_dir,
        store=store,
        variables=variables,
        credentials=credentials,
        launcher=launcher,
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
        uids=uids,
        egress=guard.check if guard else unguarded,
    )
    clusters = None
    if config.pools or any(one.engine for one in store.read(nodes.every)):
        from daemon.runner.pools import find_clusters  # few have any

        path = environment.get("PATH", os.defpath)
        clusters = await find_clusters(host, config, pool_drivers, ids, path)
    runner = Runner(store, host, clusters.hosts if clusters else ())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reports.run)
            nursery.start_soon(host.sweeper.run)
            await nursery.start(runner.run)
            if clusters:
                nursery.start_soon(clusters.mirror.run)
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

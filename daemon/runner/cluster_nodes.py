"""Cluster pools. Each pool is one node in the store and mirrors one partition of the cluster.

The cluster chooses the hosts and queues the jobs. The node lists only the resources that jobs can
request. While the cluster does not answer, Steward places nothing on the node, and running tasks
continue.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial

import msgspec
import trio

from daemon.clock import Clock
from daemon.config.settings import Settings
from daemon.fences import Fences
from daemon.launcher.client import Launcher
from daemon.runner.core.driver import Driver
from daemon.runner.core.task_env import node_values
from daemon.runner.drivers.slurm import partition
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands
from daemon.runner.drivers.slurm.partition import Partition, PartitionNotFound
from daemon.runner.fingerprint import of_daemon
from daemon.runner.setup.runtime import RuntimeContext, no_listeners
from storage.queries import cluster_runs, nodes
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.node import (
    ENGINE,
    MHZ_PER_CORE,
    DriverInfo,
    Node,
    NodeCPU,
    NodeDisk,
    NodeEvent,
    NodeMemory,
    NodeResources,
    NodeStatus,
    computed_class,
)
from storage.records.pool import Pool
from storage.records.times import rfc3339
from storage.store import Store, tolerate_disk_full
from storage.writer import Transaction

EVERY = 15.0  # seconds between two queries of a partition
AGAIN = 2.0  # seconds until the next query after a failed one
FAILURES = 3  # consecutive failures before the cluster counts as unreachable
NOT_ASKED = "the cluster has not been asked yet"
LEFT = "the configuration no longer has this pool: the daemon no longer controls its tasks"
_STILL = (
    "pool %s: %d jobs may still run in its cluster: they end when they connect to this daemon, or "
    "when the pool is configured again; otherwise cancel them in the cluster (their names begin "
    "with alloc-)"
)

_NO_RESOURCES = NodeResources(
    cpu=NodeCPU(cpu_shares=0, total_cpu_cores=0, reservable_cpu_cores=[]),
    memory=NodeMemory(memory_mb=0),
    disk=NodeDisk(disk_mb=0),
    networks=[],
)
# Attributes that Steward sets, not the cluster.
_OURS = (ENGINE, "engine.partition", MHZ_PER_CORE, *of_daemon())
_SHOWN_EVENTS = 10  # stored events of a node, as in Nomad
_TOLD_HOSTS = 3  # changed hosts named in one event

_log = logging.getLogger("steward.runner")

Drivers = Mapping[str, Driver]  # drivers of a pool by driver name
# Queries a partition of a cluster. Raises `SlurmCommandFailed`.
Look = Callable[[SlurmCommands, str], Awaitable[Partition]]


async def register_pools(
    store: Store, config: Settings, drivers: Mapping[str, Drivers], ids: Iterator[str], now: int
) -> dict[str, Node]:
    """Store a node for each pool, with its existing ID and history; return the nodes by pool.

    If a pool was removed from the configuration, its node is marked as down and its tasks as lost.
    The attempts of these tasks are cancelled, so that no attempt runs at the same time as its
    replacement. `drivers` has the drivers of each pool.
    """
    stored_nodes = {node.node_pool: node for node in store.read(nodes.list_all) if node.engine}
    registered = {}
    for name, pool in config.pools.items():
        before = stored_nodes.pop(name, None) or _new(config, name, next(ids))
        node = _configured(before, config, pool, drivers.get(name, {}), now)
        if before.status in (NodeStatus.DOWN, NodeStatus.INITIALIZING):
            node = _with_status(node, NodeStatus.INITIALIZING, NOT_ASKED, now)
        registered[name] = await _keep(store, before, node, "NodeRegistration")
    for before in stored_nodes.values():
        departed = _with_status(before, NodeStatus.DOWN, LEFT, now)
        if departed != before:
            _log.warning("pool %s: %s", before.node_pool, LEFT)
            departed = _with_event(departed, LEFT, now)
        if left := await store.write(partial(_remove_pool_node, before, departed)):
            _log.warning(_STILL, before.node_pool, left)
    return registered


def _remove_pool_node(before: Node, departed: Node, tx: Transaction) -> int:
    """Mark a removed pool's node as down and cancel its attempts; return their number."""
    if departed != before:
        nodes.put(tx, departed, "NodeEvent")
    return cluster_runs.withdraw_all(tx, before.node_pool)


def _new(config: Settings, name: str, node_id: str) -> Node:
    return Node(
        id=node_id,
        name=name,
        datacenter=config.datacenter,
        node_pool=name,
        attributes={},
        meta={},
        node_resources=_NO_RESOURCES,
        drivers={},
        hosts=[],
    )


def _configured(before: Node, config: Settings, pool: Pool, drivers: Drivers, now: int) -> Node:
    """Return `before` with the values of the configuration; values from the cluster are kept."""
    attributes = {
        **before.attributes,
        **of_daemon(),
        ENGINE: pool.engine,
        "engine.partition": pool.partition or before.node_pool,
        MHZ_PER_CORE: str(pool.mhz_per_core),
    }
    return _classed(
        msgspec.structs.replace(
            before,
            datacenter=config.datacenter,
            http_addr=config.address.removeprefix("http://"),
            attributes=attributes,
            node_max_allocs=pool.max_jobs,
            drivers=_drivers(before, drivers, "", now),
        )
    )


def cluster_runtime(
    local: RuntimeContext, node: Node, drivers: Drivers, config: Settings
) -> RuntimeContext:
    """Return a pool's runtime context, which shares most parts with the local host's context."""
    return msgspec.structs.replace(
        local,
        node_id=node.id,
        capacity=None,
        drivers=dict(drivers),
        volumes={},
        values=node_values(node, config.region),
        environment={},
        parent_cgroup="",
        mhz=float(config.pools[node.node_pool].mhz_per_core),
        listeners=no_listeners,
        file_keeper=None,
    )


async def _keep(store: Store, before: Node, node: Node, kind: str) -> Node:
    if node == before and before.create_index:
        return before
    return await store.write(lambda tx: nodes.put(tx, node, kind))


# --- cluster state ---


def build_node(before: Node, pool: Pool, seen: Partition, drivers: Drivers, now: int) -> Node:
    """Return the node of a pool, updated with the state of its cluster."""
    working, largest = seen.working, seen.largest
    cores = sum(host.cores for host in working)
    infos = _drivers(before, drivers, "", now)
    features = {feature for host in seen.hosts for feature in host.features}
    attributes = {
        "engine.reachable": "true",
        "engine.version": seen.version,
        "engine.hosts": str(len(seen.hosts)),
        "engine.hosts.up": str(len(working)),
        "engine.host.cores": str(largest.cores if largest else 0),
        "engine.host.memorymb": str(largest.memory_mb if largest else 0),
        "engine.partition.state": seen.state,
        "engine.partition.maxtime": seen.max_time,
        **{f"engine.feature.{feature}": "true" for feature in features},
    }
    node = msgspec.structs.replace(
        before,
        attributes={name: before.attributes[name] for name in _OURS}
        | attributes
        | _driver_attributes(infos),
        node_resources=msgspec.structs.replace(
            _NO_RESOURCES,
            cpu=NodeCPU(
                cpu_shares=cores * pool.mhz_per_core,
                total_cpu_cores=cores,
                reservable_cpu_cores=[],
            ),
            memory=NodeMemory(memory_mb=sum(host.memory_mb for host in working)),
        ),
        hosts=seen.hosts,
        drivers=infos,
    )
    status, description = NodeStatus.READY, _of_hosts(seen)
    if not seen.is_open:
        status = NodeStatus.INITIALIZING
        description = (
            f"partition {before.attributes['engine.partition']} is {seen.state}: "
            "it accepts no new jobs"
        )
    return _classed(_with_status(node, status, description, now))


def unreachable(before: Node, text: str, drivers: Drivers, now: int) -> Node:
    """Return the node of a pool whose cluster or partition is unreachable.

    Its known attributes stay.
    """
    node = msgspec.structs.replace(
        before,
        attributes=before.attributes | {"engine.reachable": "false"},
        drivers=_drivers(before, drivers, text, now),
    )
    return _classed(_with_status(node, NodeStatus.DISCONNECTED, text, now))


def _describe_error(error: SlurmCommandFailed) -> str:
    missing = isinstance(error, PartitionNotFound)
    return str(error) if missing else f"the cluster does not answer: {error}"


def _of_hosts(seen: Partition) -> str:
    """Return a warning if a partition accepts jobs but cannot start them, or an empty string."""
    if seen.state != "UP":
        return f"the partition is {seen.state}: submitted jobs wait"
    if not seen.working:
        return "no host of the partition is up: submitted jobs wait"
    return ""


def _drivers(before: Node, drivers: Drivers, problem: str, now: int) -> dict[str, DriverInfo]:
    """Return the driver states of a pool. An unchanged state keeps its update time."""
    driver_infos = {}
    for name, driver in drivers.items():
        fingerprint = driver.fingerprint()
        wrong = fingerprint.trouble or problem
        info = DriverInfo(
            attributes=dict(fingerprint.attributes) or None,
            detected=not fingerprint.trouble,
            healthy=not wrong,
            health_description=wrong or "Healthy",
        )
        earlier = before.drivers.get(name)
        update_time = earlier.update_time if earlier else ""
        driver_infos[name] = msgspec.structs.replace(info, update_time=update_time)
        if driver_infos[name] != earlier:
            driver_infos[name] = msgspec.structs.replace(info, update_time=rfc3339(now))
    return driver_infos


def _driver_attributes(drivers: Mapping[str, DriverInfo]) -> dict[str, str]:
    """Return the node attributes of the drivers, which constraints can use."""
    attributes: dict[str, str] = {}
    for name, info in drivers.items():
        if info.detected:
            attributes |= {**(info.attributes or {}), f"driver.{name}": "1"}
    return attributes


def _with_status(node: Node, status: NodeStatus, description: str, now: int) -> Node:
    changed = msgspec.structs.replace(node, status=status, status_description=description)
    if changed.status == node.status:
        return changed
    return msgspec.structs.replace(changed, status_updated_at=now // SECOND)


def _classed(node: Node) -> Node:
    return msgspec.structs.replace(node, computed_class=computed_class(node))


def _with_event(node: Node, message: str, now: int) -> Node:
    happened = NodeEvent(message=message, subsystem="Cluster", timestamp=rfc3339(now))
    events = [*(node.events or ()), happened][-_SHOWN_EVENTS:]
    return msgspec.structs.replace(node, events=events)


def describe_change(before: Node, node: Node) -> str:
    """Return a one-sentence description of a relevant change, or an empty string."""
    if node.status != before.status:
        if node.status == NodeStatus.READY:
            first = before.status == NodeStatus.INITIALIZING
            return "the cluster accepts jobs" if first else "the cluster answers again"
        return node.status_description
    old = {host.name: host for host in before.hosts or ()}
    changes = [
        f"{host.name} {host.description}"
        for host in node.hosts or ()
        if (earlier_host := old.pop(host.name, None)) is None
        or (earlier_host.state, earlier_host.reason) != (host.state, host.reason)
    ]
    changes += [f"{name} was removed" for name in old]
    more = len(changes) - _TOLD_HOSTS
    return ", ".join(changes[:_TOLD_HOSTS]) + (
        f" and {more} more hosts changed" if more > 0 else ""
    )


class ClusterNodes(msgspec.Struct, frozen=True):
    """The runtime contexts of the pools, and the loop that updates their nodes."""

    hosts: list[RuntimeContext]
    mirror: "PoolSync"


async def find_clusters(
    local: RuntimeContext,
    config: Settings,
    drivers: Mapping[str, Drivers],
    ids: Iterator[str],
    path: str,
) -> ClusterNodes:
    """Store a node for each pool; return the runtime contexts and the update loop.

    `local` is the runtime of the local host; `path` is the search path for the cluster's
    programs.
    """
    store, clock = local.store, local.clock
    pool_nodes = await register_pools(store, config, drivers, ids, clock.now())
    hosts = [
        cluster_runtime(local, pool_nodes[name], drivers.get(name, {}), config)
        for name in pool_nodes
    ]
    mirror = PoolSync(
        store=store,
        clock=clock,
        pools=config.pools,
        nodes=pool_nodes,
        drivers=drivers,
        path=path,
        launcher=local.launcher,
        fences=local.fences,
    )
    return ClusterNodes(hosts, mirror)


# --- polling ---


class PoolSync(msgspec.Struct, frozen=True, kw_only=True):
    """Updates the nodes of pools from their clusters.

    `nodes` and `drivers` have an entry for each pool. `path` is the search path for the programs
    that query the cluster.
    """

    store: Store
    clock: Clock
    pools: Mapping[str, Pool]
    nodes: Mapping[str, Node]
    drivers: Mapping[str, Drivers]
    path: str
    launcher: Launcher
    fences: Fences
    look: Look = partition.query_partition

    async def run(self) -> None:
        """Poll all pools concurrently until cancelled; a hanging cluster does not delay others."""
        async with trio.open_nursery() as nursery:
            for name in self.pools:
                follow = partial(self._follow, name)
                nursery.start_soon(self.fences.keep_running, f"pool {name}", follow)

    async def _follow(self, name: str) -> None:
        failed, pool, drivers = 0, self.pools[name], self.drivers.get(name, {})
        tools = SlurmCommands(path=self.path, launcher=self.launcher, config=pool.cluster_config)
        while True:
            try:
                seen = await self.look(tools, pool.partition or name)
            except SlurmCommandFailed as error:
                failed += 1
                _log.debug("cannot query pool %s: %s", name, error)
                if failed >= FAILURES:
                    await self._store_changed(
                        name, partial(unreachable, text=_describe_error(error), drivers=drivers)
                    )
            else:
                failed = 0
                await self._store_changed(
                    name, partial(build_node, pool=pool, seen=seen, drivers=drivers)
                )
            await trio.sleep(AGAIN if 0 < failed < FAILURES else EVERY)

    async def _store_changed(self, name: str, change: Callable[..., Node]) -> None:
        """Apply a change to the node of a pool and store the node."""
        now = self.clock.now()

        def changed(db: ReadSnapshot) -> Node | None:
            before = nodes.find(db, self.nodes[name].id)
            if before is None:
                return None
            node = change(before, now=now)
            if node == before:
                return None
            message = describe_change(before, node)
            return _with_event(node, message, now) if message else node

        def write(tx: Transaction) -> None:
            if (node := changed(tx)) is not None:
                nodes.put(tx, node, "NodeEvent")

        if self.store.read(changed) is not None:
            async with tolerate_disk_full(f"cannot store the state of pool {name}"):
                await self.store.write(write)

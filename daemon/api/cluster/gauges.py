"""Metric values under Nomad's names: jobs, evaluations, allocations, host.

The store counts allocations and jobs with each write. Other values are counted at each request.
"""

import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import trio

from daemon.api.cluster.agent import unreadable_rows
from daemon.app.context import AppContext
from daemon.app.launcher_patience import BoundedWait
from daemon.evals import job_states
from daemon.text.job_state import State, job_state
from storage.errors import NotFound, Refused, StorageDamaged, StorageUnreadable, Unavailable
from storage.queries import (
    allocated_resources,
    allocations,
    concurrency,
    freezes,
    garbage_collection,
    job_status,
    jobs,
    metrics,
    nodes,
    notifications,
    triggers,
)
from storage.queries.allocated_resources import AllocatedTotals
from storage.queries.pages import PageRequest
from storage.read_pool import ReadSnapshot
from storage.records.allocation import Allocation, ClientStatus, TaskPhase
from storage.records.base import SECOND
from storage.records.job import JobCounts
from storage.records.node import Node, NodeStatus
from storage.records.usage import AllocationUsage, HostStats, TaskUsage
from storage.store import Store

_TYPES = ("service", "batch", "system", "sysbatch")
_MOST_FREEZES = 10_000  # freezes that are counted
_MEGABYTE = 1024 * 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")

Labels = Mapping[str, str]

_log = logging.getLogger("steward.metrics")


class GaugeValue(msgspec.Struct, frozen=True):
    """The current value of a metric; the name of the metric contains dots."""

    name: str
    value: float
    labels: Labels = {}


async def gauges(parts: AppContext) -> list[GaugeValue]:
    """Return all metrics. Those that need an unreadable part of the store are left out."""
    values, now = list[GaugeValue](), parts.clock.now()
    for read in (_of_store, _job_states, _of_tasks):
        try:
            values += await read(parts, now)
        except (StorageDamaged, StorageUnreadable) as error:
            _log.warning("metrics: some values are missing: %s", error)
    values += _of_host(parts.tasks.host_usage(), parts.tasks.node_id)
    values.append(GaugeValue("steward.store.damaged", float(bool(parts.store.damage))))
    values += await _unreadable(parts)
    since = parts.logs.launcher.silent_since
    silent = 0.0 if since is None else (parts.clock.now() - since) / SECOND
    values.append(GaugeValue("steward.launcher.silent_seconds", silent))
    values += _of_daemon()
    faults = Counter(fault.kind for fault in parts.fences.faults())
    values += [
        GaugeValue("steward.faults", number, {"kind": kind}) for kind, number in faults.items()
    ]
    values += [
        GaugeValue("steward.cloud_token.age_seconds", age, {"mount": mount})
        for mount, age in parts.door.token_ages().items()
    ]
    values += [
        GaugeValue("steward.directory_keys.age_seconds", age, {"mount": mount})
        for mount, age in parts.door.directory_key_ages().items()
    ]
    values += [
        GaugeValue("steward.certificate.remaining_seconds", left, {"setting": setting})
        for setting, left in parts.certificates(now).items()
    ]
    return values


async def _unreadable(parts: AppContext) -> list[GaugeValue]:
    try:
        counted = await parts.store.read_any(unreadable_rows)
    except (StorageDamaged, StorageUnreadable):
        # A page is corrupt, so count the rows that earlier reads have found.
        counted = parts.store.unreadable_rows.by_table()
    return [
        GaugeValue("steward.store.unreadable_rows", number, {"table": table})
        for table, number in counted.items()
    ]


async def _of_store(parts: AppContext, now: int) -> list[GaugeValue]:
    return await parts.store.read_long(lambda db: _stored(db, now, parts.config.node_name))


async def _of_tasks(parts: AppContext, now: int) -> list[GaugeValue]:
    """Return the usage of the tasks that run, and the number of tasks in each state."""
    host = parts.config.node_name
    desired, members = parts.store.read(lambda db: (_wanted(db), nodes.list_readable(db)))
    values, at_work = [*_tasks(members, desired, host)], []
    for alloc in desired:
        if alloc.client_status != ClientStatus.RUNNING:
            continue
        if usage := await _usage(parts, alloc):
            values += _of_allocation(alloc, usage, host)
            at_work.append(alloc)
    return values + await parts.store.read_long(lambda db: _histories(db, at_work, host, now))


def _wanted(db: ReadSnapshot) -> list[Allocation]:
    return [
        alloc
        for node in nodes.list_readable(db)
        for alloc in allocations.readable_to_run(db, node.id)
    ]


def _tasks(
    members: Iterable[Node], allocs: Iterable[Allocation], host: str
) -> Iterator[GaugeValue]:
    """Yield the number of tasks in each state, for the allocations that should run."""
    counted = Counter(
        (alloc.node_id, state.state)
        for alloc in allocs
        for state in (alloc.client.task_states or {}).values()
    )
    for node in members:
        for state in TaskPhase:
            number = counted[node.id, state]
            yield GaugeValue(f"nomad.client.tasks.{state}", number, _labels_of(node, host))


async def _usage(parts: AppContext, alloc: Allocation) -> AllocationUsage | None:
    try:
        with BoundedWait():
            return await parts.tasks.usage(alloc.id)
    except (NotFound, Refused, Unavailable):  # the task ended, or the launcher is silent
        return None


def _of_daemon() -> Iterator[GaugeValue]:
    """Yield the daemon's own resource usage, under the names of Nomad's runtime metrics.

    Metrics that Python cannot measure are left out.
    """
    size, resident = map(int, Path("/proc/self/statm").read_text().split()[:2])
    runtime = {
        "alloc_bytes": resident * _PAGE,
        "sys_bytes": size * _PAGE,
        "heap_objects": sys.getallocatedblocks(),
        "num_goroutines": trio.lowlevel.current_statistics().tasks_living,
        "total_gc_runs": sum(stat["collections"] for stat in gc.get_stats()),
    }
    for name, number in runtime.items():
        yield GaugeValue(f"nomad.runtime.{name}", number)


# --- values from the store ---


def _stored(db: ReadSnapshot, now: int, host: str) -> list[GaugeValue]:
    members = nodes.list_readable(db)
    counted = _counted(db, members)
    return [
        *_jobs(db),
        *_evaluations(metrics.unfinished_evaluations(db, now)),
        *(
            gauge
            for node in members
            for gauge in _node(
                node, allocated_resources.allocated_on(db, node.id), counted[node.id], host
            )
        ),
        *(
            GaugeValue("steward.collected", number, {"kind": kind})
            for kind, number in garbage_collection.counts(db).items()
        ),
        *(
            GaugeValue("steward.notifications", number, {"receiver": receiver, "outcome": outcome})
            for (receiver, outcome), number in notifications.totals(db).items()
        ),
        GaugeValue("steward.freezes", len(freezes.all_not_ended(db, _MOST_FREEZES))),
        GaugeValue("steward.freezes.held", freezes.held_number(db)),
        *(
            GaugeValue(f"steward.concurrency.{kind}", number, labels)
            for line in concurrency.page(db, PageRequest(namespace="*"))
            for labels in [{"namespace": line.namespace, "queue": line.name}]
            for kind, number in (
                ("limit", line.slots),
                ("held", line.in_use),
                ("waiting", line.waiting),
            )
        ),
        *(
            GaugeValue("steward.triggers", number, {"state": state})
            for state, number in triggers.totals(db).items()
        ),
        *(
            GaugeValue(f"steward.store.{name}", number)
            for name, number in metrics.file_sizes(db).items()
        ),
        GaugeValue("nomad.nomad.plan.queue_depth", 0),  # plans are applied when they are made
        GaugeValue(
            "nomad.nomad.heartbeat.active",
            sum(member.status == NodeStatus.READY for member in members),
        ),
        GaugeValue("nomad.raft.appliedIndex", db.last_index()),
        GaugeValue("nomad.raft.lastIndex", db.last_index()),
    ]


def _counted(db: ReadSnapshot, members: list[Node]) -> dict[str, Counter[str]]:
    """Return the number of allocations in each status, by node ID.

    An allocation on a node that is not a cluster pool counts for the daemon's own host.
    """
    counted = metrics.allocations(db)
    of_clusters = {
        member.id: counted.pop(member.id, Counter()) for member in members if member.engine
    }
    here = sum(counted.values(), Counter[str]())
    return {member.id: of_clusters.get(member.id, here) for member in members}


def _jobs(db: ReadSnapshot) -> Iterator[GaugeValue]:
    counted = metrics.jobs_by_status(db)
    for status in ("pending", "running", "dead"):
        yield GaugeValue(f"nomad.nomad.job_status.{status}", counted.get(status, 0))
    for parent, counts in metrics.summaries(db):
        yield from _summary(parent, counts)


class _Counted(msgspec.Struct, frozen=True):
    """Cached numbers of jobs by state.

    `at` is the time of counting, and `until` the time at which the numbers expire, in nanoseconds.
    """

    at: int
    until: int
    gauges: list[GaugeValue]


_COUNTED: WeakKeyDictionary[Store, _Counted] = WeakKeyDictionary()
# a count stays valid for this multiple of its CPU time: counting takes at most 5 % of a core
_SHARE = 20


async def _job_states(parts: AppContext, now: int) -> list[GaugeValue]:
    """Return the number of jobs in each state.

    The numbers are cached, because determining each job's state is expensive.
    """
    cached = _COUNTED.get(parts.store)
    if cached is None or not cached.at <= now < cached.until:
        cached = await parts.store.read_long(lambda db: _judged(db, now))
        _COUNTED[parts.store] = cached
    return cached.gauges


def _judged(db: ReadSnapshot, now: int) -> _Counted:
    began = time.thread_time_ns()
    states = [*_states(db, now)]
    return _Counted(now, now + _SHARE * (time.thread_time_ns() - began), states)


def _states(db: ReadSnapshot, now: int) -> Iterator[GaugeValue]:
    """Yield the number of jobs by namespace and state, without child jobs."""
    counted: dict[str, Counter[str]] = {}
    for row in job_status.parentless(db):
        word = job_state(job_states.of_row(db, row, now)).word
        counted.setdefault(row["namespace"], Counter())[word] += 1
    for namespace, words in sorted(counted.items()):
        for state in State:
            labels = {"namespace": namespace, "state": str(state)}
            yield GaugeValue("steward.job_state", words[state], labels)


def _summary(parent: str, counts: JobCounts) -> Iterator[GaugeValue]:
    labels = {"job": parent or counts.job_id, "namespace": counts.namespace}
    if parent:
        kind = "periodic_id" if "/periodic-" in counts.job_id else "dispatch_id"
        labels[kind] = counts.job_id.removeprefix(f"{parent}/{kind.removesuffix('_id')}-")
    for group, numbers in counts.summary.items():
        for status, number in msgspec.structs.asdict(numbers).items():
            name = f"nomad.nomad.job_summary.{status}"
            yield GaugeValue(name, number, {**labels, "task_group": group})


def _evaluations(unfinished: list[metrics.UnfinishedEvaluations]) -> Iterator[GaugeValue]:
    blocked = [evaluation for evaluation in unfinished if evaluation.status == "blocked"]
    pending = [evaluation for evaluation in unfinished if evaluation.status == "pending"]
    ready = [probe for probe in pending if not probe.waits]
    escaped = [evaluation for evaluation in blocked if evaluation.escaped]
    yield GaugeValue("nomad.nomad.blocked_evals.total_blocked", _total_number(blocked))
    yield GaugeValue("nomad.nomad.blocked_evals.total_escaped", _total_number(escaped))
    yield GaugeValue("nomad.nomad.blocked_evals.total_quota_limit", 0)
    yield GaugeValue("nomad.nomad.broker.total_ready", _total_number(ready))
    yield GaugeValue(
        "nomad.nomad.broker.total_waiting", _total_number(pending) - _total_number(ready)
    )
    for name in ("total_unacked", "total_pending", "total_cancelable"):
        yield GaugeValue(
            f"nomad.nomad.broker.{name}", 0
        )  # evaluations go directly to the single worker
    for kind in _TYPES:
        of_kind = [evaluation for evaluation in ready if evaluation.type == kind]
        yield GaugeValue(f"nomad.nomad.broker.{kind}_ready", _total_number(of_kind))
        yield GaugeValue(f"nomad.nomad.broker.{kind}_unacked", 0)


def _total_number(counts: list[metrics.UnfinishedEvaluations]) -> int:
    return sum(count.number for count in counts)


def _labels_of(node: Node, host: str) -> dict[str, str]:
    return {
        "host": host,
        "node_id": node.id,
        "datacenter": node.datacenter,
        "node_class": node.node_class or "none",
        "node_pool": node.node_pool,
        "node_status": node.status,
        "node_scheduling_eligibility": node.scheduling_eligibility,
    }


def _node(
    node: Node, allocated_totals: AllocatedTotals, counted: Mapping[str, int], host: str
) -> Iterator[GaugeValue]:
    labels, has = _labels_of(node, host), node.node_resources
    for name, used, total in (
        ("cpu", allocated_totals.cpu, has.cpu.cpu_shares),
        ("memory", allocated_totals.memory, has.memory.memory_mb),
        ("disk", allocated_totals.disk, has.disk.disk_mb),
    ):
        yield GaugeValue(f"nomad.client.allocated.{name}", used, labels)
        # excess jobs wait in the cluster's queue
        free = max(0, total - used) if node.engine else total - used
        yield GaugeValue(f"nomad.client.unallocated.{name}", free, labels)
    yield GaugeValue("nomad.client.allocated.max_memory", allocated_totals.memory, labels)
    alive = {"pending": counted.get("pending", 0), "running": counted.get("running", 0)}
    ended = sum(counted.get(status, 0) for status in ("complete", "failed", "lost"))
    for status, number in {**alive, "blocked": 0, "migrating": 0, "terminal": ended}.items():
        yield GaugeValue(f"nomad.client.allocations.{status}", number, labels)
    for status in ("complete", "failed"):
        yield GaugeValue(f"nomad.client.allocs.{status}", counted.get(status, 0), labels)


# --- running tasks ---


def _of_allocation(alloc: Allocation, usage: AllocationUsage, host: str) -> list[GaugeValue]:
    task_values = []
    for name, task in usage.tasks.items():
        labels = {**_labels(alloc, host), "task": name}
        state = (alloc.client.task_states or {}).get(name)
        values = {
            **_of_task(task),
            "running": 1,
            "restart": state.restarts if state else 0,
            "cpu.allocated": alloc.placement.resources.tasks[name].cpu.cpu_shares,
            "memory.allocated": alloc.placement.resources.tasks[name].memory.memory_mb * _MEGABYTE,
        }
        task_values += [
            GaugeValue(f"nomad.client.allocs.{gauge_name}", value, labels)
            for gauge_name, value in values.items()
        ]
    return task_values


def _labels(alloc: Allocation, host: str) -> dict[str, str]:
    return {
        "host": host,
        "alloc_id": alloc.id,
        "job": alloc.job_id,
        "namespace": alloc.namespace,
        "task_group": alloc.task_group,
    }


def _histories(
    db: ReadSnapshot, allocs: Iterable[Allocation], host: str, now: int
) -> list[GaugeValue]:
    """Return the number of OOM kills by task, and the maximum and remaining run time by allocation.

    Times are in seconds.
    """
    version = cache(partial(jobs.version, db))  # many allocations may share one version
    gauge_values: list[GaugeValue] = []
    for alloc in allocs:
        labels, kind = _labels(alloc, host), "nomad.client.allocs"
        for task in alloc.client.task_states or ():
            killed = metrics.killed_for_memory(db, alloc.id, task)
            gauge_values.append(GaugeValue(f"{kind}.oom_killed", killed, {**labels, "task": task}))
        job = version(alloc.namespace, alloc.job_id, alloc.job_version)
        group = job.group(alloc.task_group) if job else None
        if group is not None and (longest := group.max_run_duration) is not None:
            left = max(0, alloc.create_time + longest - now)
            for name, span in (("configured", longest), ("remaining", left)):
                gauge_values.append(
                    GaugeValue(f"{kind}.max_run_duration.{name}_seconds", span / SECOND, labels)
                )
    return gauge_values


def _of_task(task: TaskUsage) -> dict[str, float]:
    cpu, memory = task.resource_usage.cpu_stats, task.resource_usage.memory_stats
    return {
        "cpu.total_percent": cpu.percent,
        "cpu.system": cpu.system_mode,
        "cpu.user": cpu.user_mode,
        "cpu.total_ticks": cpu.total_ticks,
        "cpu.throttled_periods": cpu.throttled_periods,
        "cpu.throttled_time": cpu.throttled_time,
        "memory.rss": memory.rss,
        "memory.swap": memory.swap,
        "memory.cache": memory.cache,
        "memory.usage": memory.usage,
        "memory.max_usage": memory.max_usage,
    }


def _of_host(stats: HostStats, node_id: str) -> Iterator[GaugeValue]:
    labels = {"node_id": node_id}
    prefix = "nomad.client.host"
    for name, number in msgspec.structs.asdict(stats.memory).items():
        yield GaugeValue(f"{prefix}.memory.{name}", number, labels)
    for core in stats.cpu:
        of_one = {**labels, "cpu": core.cpu}
        for name in ("user", "system", "idle", "total_percent"):
            yield GaugeValue(f"{prefix}.cpu.{name}", getattr(core, name), of_one)
    for disk in stats.disk_stats:
        of_disk = {**labels, "disk": disk.device}
        for name in ("size", "used", "available", "used_percent"):
            yield GaugeValue(f"{prefix}.disk.{name}", getattr(disk, name), of_disk)
        yield GaugeValue(f"{prefix}.disk.inodes_percent", disk.inodes_used_percent, of_disk)
    yield GaugeValue("nomad.client.uptime", stats.uptime, labels)

"""Resource usage over time, of a node, a job or an allocation with its tasks."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from daemon.api.cluster.lookup import find_allocation
from daemon.web.parameters import QueryParameters, duration
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from storage import garbage
from storage.errors import Malformed, NotFound
from storage.queries import jobs, nodes
from storage.records.allocation import Allocation
from storage.records.base import SECOND
from storage.records.codec import encode
from storage.records.driver import is_listed
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import Node
from storage.records.pool import SLURM
from storage.records.times import nanoseconds
from storage.records.usage_history import (
    SeriesKey,
    UsageBlock,
    UsageHistory,
    UsageLimits,
    series_of,
    total,
)

MOST = 2000  # values of a series in one answer
_PREFERRED = 120  # values in an answer, if the request names no step
_STEPS = (10, 30, 60, 300, 900, 3600, 6 * 3600)  # seconds; the default is one of them
_FINE, _COARSE = 10, 300
_HOUR = 3600
_MEBIBYTE = 1024 * 1024
_CONTAINERS = "podman"  # the driver whose tasks can each choose a network mode
_NAMED = 5  # groups in one reason


class _Window:
    """The time range and the step of a request, in seconds.

    The constructor raises `Malformed` for invalid query parameters.
    """

    def __init__(self, query: QueryParameters, now: int) -> None:
        end = _time(query, "to", now)
        begin = _time(query, "from", now)
        end = now if end is None else end
        begin = end - _HOUR if begin is None else begin
        if begin >= end:
            raise Malformed('"from" is not before "to": give an earlier "from" or a later "to"')
        self.step = _step(query.text("step"), end - begin)
        self.begin = begin // self.step * self.step
        self.end = -(-end // self.step) * self.step
        if (count := (self.end - self.begin) // self.step) > MOST:
            raise Malformed(
                f'"from", "to" and "step" select {count} values: select {MOST} at most, with a larger '
                "step or a shorter time"
            )


def _time(query: QueryParameters, name: str, now: int) -> int | None:
    """Return the time in a query parameter, in seconds since the epoch; None if it is missing.

    The parameter is a number of seconds since the epoch, a time in RFC 3339, or a duration before
    now.
    """
    text = query.text(name)
    if not text:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 12:
        return int(text)
    if (ago := _span(text)) is not None and 0 <= ago <= now:
        return now - ago
    with suppress(ValueError, OverflowError):  # the error below names the accepted forms
        if (seconds := nanoseconds(text) // SECOND) >= 0:
            return seconds
    raise Malformed(
        f"{name}={text[:40]!r} is not a time: give 2026-11-21T01:40:00Z, seconds since 1970, or a "
        "duration before now such as 6h"
    )


def _span(text: str) -> int | None:
    """Return a duration such as `6h` or `7d` in seconds; None if it is invalid."""
    if text.endswith("d") and text[:-1].isdecimal() and len(text) < 7:
        return int(text[:-1]) * 24 * _HOUR
    length = duration(text)
    return None if length is None else length // SECOND


def _step(text: str, span: int) -> int:
    """Return the step in seconds, which is a multiple of the time between samples.

    The default depends on `span`, the length of the time range in seconds. Raises `Malformed`.
    """
    if not text:
        return next((step for step in _STEPS if span <= step * _PREFERRED), _STEPS[-1])
    length = int(text[:9]) if text.isascii() and text.isdecimal() else _span(text) or 0
    stride = 1 if length < _FINE else _FINE if length < _COARSE else _COARSE
    if length < 1 or length % stride:
        raise Malformed(
            f"step={text[:40]!r} is not a step: use 1s to 9s, a multiple of 10s below 5m, or a "
            "multiple of 5m"
        )
    return length


async def of_node(request: Request) -> HandlerReply:
    """Show the usage of a node over time. Raises `NotFound` and `Malformed`."""
    node_id = request["node_id"]
    node = request.parts.store.read(partial(nodes.find, node_id=node_id))
    if node is None:
        raise NotFound("node not found")
    return await _shown(request, SeriesKey("node", node.id), [_of_node(node)])


async def of_job(request: Request) -> HandlerReply:
    """Show the usage of a job's allocations over time, summed. Raises `NotFound` and `Malformed`."""
    key = (request.namespace, request["job_id"])
    job, node = await request.parts.store.read_any(
        lambda db: (jobs.current(db, *key), nodes.find(db, request.parts.tasks.node_id))
    )
    if job is None:
        raise NotFound("job not found")
    limits, groups = [_of_job(job, _mhz(node))], job.task_groups or ()
    return await _shown(request, SeriesKey("job", key[1], key[0]), limits, _why_no_network(groups))


async def of_allocation(request: Request) -> HandlerReply:
    """Show the usage of an allocation and its tasks over time. Raises `NotFound` and `Malformed`."""
    store = request.parts.store
    allocation = await find_allocation(store, request["alloc_id"])
    request.require(allocation.namespace)
    job_version = (allocation.namespace, allocation.job_id, allocation.job_version)
    node, job = await store.read_any(
        lambda db: (nodes.find(db, allocation.node_id), jobs.version(db, *job_version))
    )
    key = SeriesKey("alloc", allocation.id, allocation.namespace)
    group = job.group(allocation.task_group) if job else None
    reason = _why_no_network([group] if group else [])
    return await _shown(request, key, _of_allocation(allocation, _mhz(node)), reason)


async def _shown(
    request: Request, key: SeriesKey, limits: list[UsageLimits], no_network: str = ""
) -> HandlerReply:
    window = _Window(request.query, request.parts.clock.now() // SECOND)
    async with request.parts.admission.slot(request.client):  # many tasks take long
        usage = await request.parts.tasks.usage_history(key, window.begin, window.end, window.step)
        body = await garbage.in_thread(partial(_body, key, window, usage, limits, no_network))
    garbage.free_in_thread(usage)
    return HandlerReply(body=body)


def _body(
    key: SeriesKey,
    window: _Window,
    usage: Mapping[str, UsageBlock] | None,
    limits: list[UsageLimits],
    no_network: str,
) -> bytes:
    """Return the response as JSON.

    `no_network` is the reason why some network usage is not measured, or empty.
    """
    blocks = usage or {}
    if key.kind == "alloc":
        blocks = {**blocks, "": total(blocks.values())}
    answer = UsageHistory(
        begin=window.begin * SECOND,
        end=window.end * SECOND,
        step=window.step,
        enabled=usage is not None,
        series=[series_of(task, block) for task, block in sorted(blocks.items())],
        limits=limits,
        no_network=no_network,
    )
    return encode(answer)


def _why_no_network(groups: Sequence[TaskGroup]) -> str:
    """Return why the network usage of some or all tasks is not measured.

    Return an empty string if the network usage of all tasks is measured.
    """
    without = [
        group for group in groups if "host" in (used := _networks(group)) or used == {"none"}
    ]
    if not without:
        return ""
    names = [group.name for group in without]
    if any(is_listed(SLURM, _drivers(group)) for group in without):
        reason = "the hosts of a cluster do not report their network usage"
    elif all(_networks(group) == {"none"} for group in without):
        reason = "these tasks have no network"
    else:
        reason = "tasks on the network of the host are counted only with the host"
    if all(_networks(group) <= {"host", "none"} for group in groups):
        return reason
    return f"{reason} (group {', '.join(names[:_NAMED])}{', …' if len(names) > _NAMED else ''})"


def _networks(group: TaskGroup) -> set[str]:
    """Return the network modes of a group's tasks; usage in `host` and `none` is not measured."""
    mode = _mode(group)
    usual = "none" if mode == "none" else "bridge"  # default of a container
    return {
        str((task.config or {}).get("network_mode") or usual)
        if is_listed(task.driver, [_CONTAINERS])
        else mode
        for task in group.tasks or ()
    }


def _drivers(group: TaskGroup) -> list[str]:
    return [task.driver for task in group.tasks or ()]


def _mode(group: TaskGroup) -> str:
    """Return the network mode of a group; `host` means the network of the host."""
    first = next(iter(group.networks or ()), None)
    return (first.mode if first else "") or "host"


def _mhz(node: Node | None) -> float:
    """Return the clock rate of one core of a node; 0 if it is unknown."""
    if node is None:
        return 0.0
    cpu = node.node_resources.cpu
    return cpu.cpu_shares / max(1, cpu.total_cpu_cores)


def _of_node(node: Node) -> UsageLimits:
    has = node.node_resources
    return UsageLimits(
        cpu_percent=100 * has.cpu.total_cpu_cores,
        memory=has.memory.memory_mb * _MEBIBYTE,
        disk=has.disk.disk_mb * _MEBIBYTE,
    )


def _of_job(job: Job, mhz: float) -> UsageLimits:
    groups = [(group, int(group.count or 0)) for group in job.task_groups or ()]
    tasks = [(count, task.resources) for group, count in groups for task in group.tasks or ()]
    memory = sum(
        count * max(resources.memory_mb, resources.memory_max_mb) for count, resources in tasks
    )
    disk = sum(count * group.ephemeral_disk.size_mb for group, count in groups)
    return UsageLimits(
        cpu_percent=_percent(sum(count * resources.cpu for count, resources in tasks), mhz),
        memory=memory * _MEBIBYTE,
        disk=disk * _MEBIBYTE,
    )


def _of_allocation(allocation: Allocation, mhz: float) -> list[UsageLimits]:
    """Return the limits of an allocation, then those of each task."""
    has = allocation.placement.resources
    tasks = [
        UsageLimits(
            task=name,
            cpu_percent=_percent(resources.cpu.cpu_shares, mhz),
            memory=max(resources.memory.memory_mb, resources.memory.memory_max_mb) * _MEBIBYTE,
        )
        for name, resources in sorted(has.tasks.items())
    ]
    usage_limits = UsageLimits(
        cpu_percent=sum(task.cpu_percent for task in tasks),
        memory=sum(task.memory for task in tasks),
        disk=has.shared.disk_mb * _MEBIBYTE,
    )
    return [usage_limits, *tasks]


def _percent(shares: int, mhz: float) -> float:
    return round(100 * shares / mhz, 1) if mhz else 0.0

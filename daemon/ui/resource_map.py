"""The resources of a node, and of the hosts of a cluster, by job. No I/O."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from storage.records.node import MHZ_PER_CORE

HUES = 8  # color classes, used in turn
WIDTH = 1000  # units of the width of a strip
_KEPT = 40  # jobs that have their own share; all other jobs have one share together


class HeldPort(msgspec.Struct, frozen=True, order=True):
    """A port of the node, and the allocation that holds it."""

    port: int
    label: str
    alloc_id: str
    job_id: str
    namespace: str


class JobShare(msgspec.Struct, kw_only=True):
    """The resources that the allocations of one job hold: MHz and MiB.

    `fits` is the number of further allocations for which the free CPU and memory suffice. Each is
    assumed to be as large as the job's largest allocation.
    """

    job_id: str
    namespace: str
    hue: int = 0
    allocations: int = 0
    cpu: int = 0
    memory: int = 0
    devices: int = 0
    largest: tuple[int, int] = (0, 0)
    fits: int = 0


class StripPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a strip: position, color and text; `job_id` is empty for free resources."""

    x: float
    width: float
    hue: int
    job_id: str
    namespace: str
    text: str


class Strip(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of the node, divided among jobs."""

    title: str
    parts: list[StripPart]
    said: str


class HostMap(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a cluster, as the API describes it, with the resources that jobs hold there."""

    host: Mapping[str, Any]
    strips: list[Strip]
    tasks: int


class PoolMap(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts of a cluster.

    `waiting` is the number of allocations without a host. `elsewhere` contains the host names that
    match none or several of the hosts, each with the number of tasks on it.
    """

    hosts: list[HostMap]
    waiting: int
    elsewhere: dict[str, int]


class NodeMap(msgspec.Struct, frozen=True, kw_only=True):
    """The strips of a node, its jobs and its ports."""

    strips: list[Strip]
    jobs: list[JobShare]
    ports: list[HeldPort]


def node_map(node: Mapping[str, Any], placed: Sequence[Mapping[str, Any]]) -> NodeMap:
    """Return the map of a node, from its allocations that are not terminal."""
    has, keeps = node["NodeResources"], node["ReservedResources"]
    cpu = has["Cpu"]["CpuShares"] - keeps["Cpu"]["CpuShares"]
    memory = has["Memory"]["MemoryMB"] - keeps["Memory"]["MemoryMB"]
    jobs = _shares(placed, _core_mhz(node))
    free = (cpu - sum(job.cpu for job in jobs), memory - sum(job.memory for job in jobs))
    for number, job in enumerate(jobs):
        job.hue, job.fits = number % HUES, _number_that_fit(free, job.largest)
    return NodeMap(
        strips=[
            _strip("CPU", "MHz", [(job, job.cpu) for job in jobs], cpu),
            _strip("Memory", "MiB", [(job, job.memory) for job in jobs], memory),
        ],
        jobs=jobs,
        ports=sorted(_ports(placed)),
    )


def pool_map(
    node: Mapping[str, Any],
    placed: Sequence[Mapping[str, Any]],
    hosted: Sequence[Mapping[str, Any]],
    jobs: Sequence[JobShare],
) -> PoolMap:
    """Return the map of a cluster's hosts.

    `placed` are the allocations of the cluster, and `hosted` its tasks with their hosts. `jobs` are
    the jobs of the node's map, which have the same colors in this map. The function sets `fits` of
    each job again, because an allocation must fit on a single host. A task that waits for a host
    holds nothing.
    """
    alloc_by_id = {alloc["ID"]: alloc for alloc in placed}
    node_hosts = list(node["Hosts"] or ())
    place_of = _host_finder([host["Name"] for host in node_hosts])
    tasks: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    elsewhere: Counter[str] = Counter()
    for hosted_task in hosted:
        if hosted_task["AllocationID"] not in alloc_by_id:
            continue
        if (host_index := place_of(hosted_task["Host"])) is None:
            elsewhere[hosted_task["Host"]] += 1
        else:
            tasks[host_index].append((hosted_task["AllocationID"], hosted_task["Task"]))
    hues = {(job.namespace, job.job_id): job.hue for job in jobs}
    mhz = _core_mhz(node)
    hosts, free = [], []
    for host_index, host in enumerate(node_hosts):
        shares = _shares(
            (_part_of(alloc_by_id[alloc], task) for alloc, task in tasks[host_index]), mhz
        )
        for share in shares:
            share.hue = hues[share.namespace, share.job_id]
        cpu = host["Cores"] * mhz
        strips = [
            _strip("CPU", "MHz", [(job, job.cpu) for job in shares], cpu),
            _strip("Memory", "MiB", [(job, job.memory) for job in shares], host["MemoryMB"]),
        ]
        number = sum(share.allocations for share in shares)
        hosts.append(HostMap(host=host, strips=strips, tasks=number))
        if host["State"] == "up":
            left = (
                cpu - sum(job.cpu for job in shares),
                host["MemoryMB"] - sum(job.memory for job in shares),
            )
            free.append(left)
    for job in jobs:
        job.fits = sum(_number_that_fit(left, job.largest) for left in free)
    placed_ids = {hosted_task["AllocationID"] for hosted_task in hosted}
    waiting = sum(alloc not in placed_ids for alloc in alloc_by_id)
    return PoolMap(hosts=hosts, waiting=waiting, elsewhere=dict(sorted(elsewhere.items())))


def _core_mhz(node: Mapping[str, Any]) -> int:
    """Return the MHz of a core if the node is a cluster, else 0.

    A cluster gives each task whole cores.
    """
    return int(node["Attributes"].get(MHZ_PER_CORE, 0))


def _host_finder(names: Sequence[str]) -> Callable[[str], int | None]:
    """Return a function that finds a host by the name that the host itself reports.

    `names` are the names of the hosts in the cluster. Names are also compared without their
    domains, because either name may lack the domain. If a name matches no host or several hosts,
    the function returns None.
    """
    index_by_name = {name: index for index, name in enumerate(names)}
    by_short_name: defaultdict[str, list[int]] = defaultdict(list)
    for index, name in enumerate(names):
        by_short_name[_short_name(name)].append(index)

    def find(host_name: str) -> int | None:
        if host_name in index_by_name:
            return index_by_name[host_name]
        indexes = by_short_name[_short_name(host_name)]
        if "." in host_name:  # another domain is another host
            indexes = [index for index in indexes if "." not in names[index]]
        return indexes[0] if len(indexes) == 1 else None

    return find


def _short_name(host: str) -> str:
    return host.partition(".")[0]


def _part_of(alloc: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return an allocation with the resources of one task only."""
    resources = alloc["AllocatedResources"]
    tasks = {name: task_held for name, task_held in resources["Tasks"].items() if name == task}
    return {**alloc, "AllocatedResources": {**resources, "Tasks": tasks}}


def _shares(placed: Iterable[Mapping[str, Any]], mhz: int) -> list[JobShare]:
    """Return the resources that each job holds, largest first.

    Unless `mhz` is 0, it is the MHz of a core. The CPU of each task is then rounded up to whole
    cores, at least one.
    """
    share_by_job: dict[tuple[str, str], JobShare] = {}
    for alloc in placed:
        key = (alloc["Namespace"], alloc["JobID"])
        share = share_by_job.setdefault(key, JobShare(job_id=key[1], namespace=key[0]))
        tasks = alloc["AllocatedResources"]["Tasks"].values()
        cpu = sum(_whole_cores(task["Cpu"]["CpuShares"], mhz) for task in tasks)
        memory = sum(task["Memory"]["MemoryMB"] for task in tasks)
        share.allocations += 1
        share.cpu, share.memory = share.cpu + cpu, share.memory + memory
        share.devices += sum(
            len(device["DeviceIDs"]) for task in tasks for device in task["Devices"] or ()
        )
        share.largest = max(share.largest, (cpu, memory))
    return sorted(
        share_by_job.values(),
        key=lambda pair: (-pair.cpu - pair.memory, pair.namespace, pair.job_id),
    )


def _whole_cores(cpu: int, mhz: int) -> int:
    return max(1, -(-cpu // mhz)) * mhz if mhz else cpu


def _number_that_fit(free: tuple[int, int], needed: tuple[int, int]) -> int:
    counts = [left // size for left, size in zip(free, needed, strict=True) if size]
    return max(0, min(counts, default=0))


def _strip(title: str, unit: str, shares: Sequence[tuple[JobShare, int]], total: int) -> Strip:
    used, total_width = sum(number for _, number in shares), max(total, 1)
    total_width = max(total_width, used)
    parts, x = [], 0.0
    for share, number in [*shares[:_KEPT], *_other_shares(shares[_KEPT:])]:
        width = WIDTH * number / total_width
        if number:
            text = f"{share.job_id or 'other jobs'}: {number} {unit}, {100 * number / total_width:.1f} %"
            parts.append(_part(x, width, share, text))
        x += width
    free = max(0, total - used)
    return Strip(
        title=title, parts=parts, said=f"{used} of {total} {unit} allocated, {free} {unit} free"
    )


def _other_shares(shares: Sequence[tuple[JobShare, int]]) -> list[tuple[JobShare, int]]:
    if not shares:
        return []
    return [(JobShare(job_id="", namespace=""), sum(number for _, number in shares))]


def _part(x: float, width: float, share: JobShare, text: str) -> StripPart:
    return StripPart(
        x=round(x, 1),
        width=round(width, 1),
        hue=share.hue,
        job_id=share.job_id,
        namespace=share.namespace,
        text=text,
    )


def _ports(placed: Iterable[Mapping[str, Any]]) -> Iterable[HeldPort]:
    for alloc in placed:
        for port in alloc["AllocatedResources"]["Shared"]["Ports"] or ():
            yield HeldPort(
                port["Value"], port["Label"], alloc["ID"], alloc["JobID"], alloc["Namespace"]
            )

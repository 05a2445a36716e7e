"""Check before placement whether any node can run a job, and describe the problems.

An error applies to every possible node, such as an unknown driver or an invalid driver
configuration. A warning may become irrelevant, because a node may join or a file may be created
later.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from daemon.matching import regexp
from daemon.scheduler.nodes.constraints import (
    DISTINCT_HOSTS,
    DISTINCT_PROPERTY,
    matches,
    resolve,
    text_of,
)
from daemon.scheduler.nodes.feasibility import in_datacenter, in_pool
from daemon.text.hints import closest
from storage.errors import Malformed
from storage.queries import nodes
from storage.read_pool import ReadSnapshot
from storage.records.constraints import Constraint
from storage.records.driver import canonical, spellings
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import NO_BRIDGE, Node
from storage.records.task import Task

# How to install a missing driver.
_HOW = {"podman": "; install podman and start its socket: systemctl enable --now podman.socket"}
_OF_BRIDGE = "${attr.plugins.cni.version."  # implicit constraints of a group with mode bridge
_SHOWN = 3  # nodes named in a message
OPERANDS_OF_MOMENT = frozenset({DISTINCT_HOSTS, DISTINCT_PROPERTY})


class TaskFindings(Protocol):
    """The errors and warnings about one task on this host."""

    @property
    def errors(self) -> list[str]:
        """Return the errors that prevent the placement of the job."""
        ...

    @property
    def warnings(self) -> list[str]:
        """Return the warnings about the placement of the job."""
        ...


class PlacementRemarks(msgspec.Struct, frozen=True):
    """The errors and warnings about the placement of a job."""

    errors: list[str] = []
    warnings: list[str] = []


Look = Callable[[Task], TaskFindings]  # returns the errors and warnings of a task on this host


def check_placement(db: ReadSnapshot, job: Job, lookup: Look) -> PlacementRemarks:
    """Return the errors and warnings of a complete job; `lookup` checks a task on this host.

    Raises `Malformed` if matching the patterns of the job takes too long.
    """
    try:
        with regexp.limited():
            return _collect_remarks(db, job, lookup)
    except regexp.PatternsTooCostly as error:
        raise Malformed(f"Constraints: {error}") from error


def _collect_remarks(db: ReadSnapshot, job: Job, lookup: Look) -> PlacementRemarks:
    members = list(nodes.list_all(db))
    placement_remarks = PlacementRemarks([], list(_of_scope(job, members)))
    for group in job.task_groups or ():
        for task in group.tasks or ():
            problem = lookup(task)
            where = f'group "{group.name}", task "{task.name}"'
            placement_remarks.errors.extend(f"{where}: {text}" for text in problem.errors)
            placement_remarks.warnings.extend(f"{where}: {text}" for text in problem.warnings)
            driver = _of_driver(task, members)
            placement_remarks.errors.extend(f"{where}: {text}" for text in driver.errors)
            placement_remarks.warnings.extend(f"{where}: {text}" for text in driver.warnings)
        placement_remarks.warnings.extend(_of_group(job, group, members))
    return placement_remarks


def near(name: str, candidates: Iterable[str]) -> str:
    """Return a hint at the most similar known name, as the end of a sentence, or empty."""
    close = closest(name, sorted(set(candidates)))
    return f' (did you mean "{close}"?)' if close else ""


def _of_scope(job: Job, members: Sequence[Node]) -> Iterator[str]:
    named = [node for node in members if in_pool(job, node)]
    datacenters = [name for name in job.datacenters or () if "*" not in name]
    if named and datacenters and not any(in_datacenter(job, node) for node in named):
        datacenters_of_nodes = sorted({node.datacenter for node in named})
        hint = near(datacenters[0], datacenters_of_nodes)
        yield f"no node is in datacenter {', '.join(datacenters)}: the nodes are in {', '.join(datacenters_of_nodes)}{hint}"
    yield from _unmet(job.constraints, job, members, "")


def _of_driver(task: Task, members: Sequence[Node]) -> PlacementRemarks:
    names = spellings(task.driver)
    drivers_by_name = {name: driver for node in members for name, driver in node.drivers.items()}
    drivers = [drivers_by_name[name] for name in names if name in drivers_by_name]
    able = sorted(
        name for name, driver in drivers_by_name.items() if driver.detected and driver.healthy
    )
    if not members:
        return PlacementRemarks()
    if not drivers:
        hint = near(task.driver, drivers_by_name)
        return PlacementRemarks(
            [f'driver "{task.driver}" is unknown{hint}; there are {", ".join(able)}']
        )
    if not any(driver.detected and driver.healthy for driver in drivers):
        reasons = sorted({driver.health_description for driver in drivers})
        text = f'driver "{task.driver}" does not work on this host: {"; ".join(reasons)}'
        how = _HOW.get(canonical(task.driver), "")
        return PlacementRemarks([], [f"{text}{how}; there are {', '.join(able)}"])
    return PlacementRemarks()


def _of_group(job: Job, group: TaskGroup, members: Sequence[Node]) -> Iterator[str]:
    where = f'group "{group.name}": '
    yield from dict.fromkeys(_unmet(group.constraints, job, members, where))
    for task in group.tasks or ():
        yield from _unmet(task.constraints, job, members, where)
    yield from (f"{where}{text}" for text in _too_large(group, members))
    volumes = {name for node in members for name in node.host_volumes}
    for volume in (group.volumes or {}).values():
        is_there = volume.source in volumes or volume.per_alloc or "${" in volume.source
        if volume.type == "host" and members and not is_there:
            hint = near(volume.source, volumes)
            yield f'{where}no node has the host volume "{volume.source}"{hint}'


def _too_large(group: TaskGroup, members: Sequence[Node]) -> Iterator[str]:
    own = [node for node in members if not node.engine]
    if not own:
        return
    asks = [task.resources for task in group.tasks or () if task.resources is not None]
    amounts = (
        ("memory", "MiB", sum(resources.memory_mb for resources in asks), _memory),
        ("cpu", "MHz", sum(resources.cpu for resources in asks), _cpu),
    )
    for name, unit, requested, has in amounts:
        most = max(map(has, own))
        if requested > most:
            yield f"it asks for {requested} {unit} of {name}, and the largest node has {most} {unit}"


def _memory(node: Node) -> int:
    return node.node_resources.memory.memory_mb


def _cpu(node: Node) -> int:
    return node.node_resources.cpu.cpu_shares


def _unmet(
    constraints: Iterable[Constraint] | None, job: Job, members: Sequence[Node], where: str
) -> Iterator[str]:
    for constraint in constraints or ():
        if constraint.operand in OPERANDS_OF_MOMENT or not members:
            continue
        if any(matches(constraint, node, job.region) for node in members):
            continue
        yield f"{where}{unmet(constraint, members, job.region)}"


def unmet(constraint: Constraint, members: Sequence[Node], region: str) -> str:
    """Return a message that no node satisfies a constraint.

    The message has the existing values of the attribute, or says that no node has the attribute.
    """
    values, rule = values_of(constraint, members, region), text_of(constraint)
    if values.startswith("no node has "):
        return values
    return f"no node meets {rule}: {values}" if values else f"no node meets {rule}"


def values_of(constraint: Constraint, members: Sequence[Node], region: str) -> str:
    """Return a text with the existing values of a constraint's attribute.

    If no node has the attribute, the text says that no node has it. The text is empty for a
    constraint without an attribute.
    """
    target = constraint.l_target
    if not target.startswith("${"):
        return ""
    values = {node.name: resolve(target, node, region) for node in members}
    if all(value is None for value in values.values()):
        if target.startswith(_OF_BRIDGE):
            reasons = sorted({node.attributes.get(NO_BRIDGE, "") for node in members} - {""})
            return f'no node has a bridge for the network mode "bridge": {"; ".join(reasons)}'
        scope, _, key = target[2:].removesuffix("}").partition(".")
        kinds = {"attr": "attribute", "meta": "metadata"}
        names = [name for node in members for name in _keys(node, scope)]
        return f'no node has the {kinds.get(scope, "value")} "{key}"{near(key, names)}'
    return ", ".join([f"{name} has {value}" for name, value in values.items() if value][:_SHOWN])


def _keys(node: Node, scope: str) -> Iterable[str]:
    match scope:
        case "attr":
            return node.attributes
        case "meta":
            return node.meta
        case _:
            return ("unique.id", "unique.name", "datacenter", "class", "pool", "region")

"""Which services an allocation has registered, and which checks they have. Pure.

Services of a group are there from the moment that its first main task has started until the
allocation is to end; those of a task as long as it runs. A shutdown delay comes after that, so that
who looks services up stops to come before the task goes (golden: services).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from daemon.runner.lifecycle import hook
from storage.records.allocation import Allocation, TaskPhase, TaskState
from storage.records.group import TaskGroup
from storage.records.numbers import whole
from storage.records.service import Registration
from storage.records.task import Check, Hook, Service, Task

_NATIVE = "nomad"
_LONGEST_PORT = 65535

Resolve = Callable[
    [str, str], str
]  # a task, or nothing, and a text: the text with references filled in


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all services of an allocation."""

    allocation: Allocation
    group: TaskGroup
    datacenter: str
    address: str  # of the node
    resolve: Resolve


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """A service that is registered now, the task that it is of, and where it answers."""

    service: Service
    task: str
    registration: Registration


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A check that is made now, and where."""

    id: str
    check: Check
    service: str
    task: str  # that is restarted when it fails for too long
    address: str
    port: int


class Unreachable(ValueError):
    """A service has no port that it could be reached at."""


def active(place: Place, states: Mapping[str, TaskState]) -> Iterator[Active]:
    """Yield the services that are registered while the tasks are in these states.

    Those that cannot be reached are not (`faults` tells of them).
    """
    for service, task in _wanted(place.group, states):
        try:
            yield Active(service=service, task=task, registration=_register(place, service, task))
        except Unreachable:
            continue


def faults(place: Place) -> Iterator[tuple[str, str]]:
    """Yield the tasks whose services cannot be registered, and why; of the group's, all tasks."""
    for service, task in _all(place.group):
        try:
            _register(place, service, task)
        except Unreachable as error:
            names = [task] if task else [one.name for one in place.group.tasks or ()]
            for name in names:
                yield name, f'failed to register service "{service.name}": {error}'


def _all(group: TaskGroup) -> Iterator[tuple[Service, str]]:
    for service in group.services or ():
        if service.provider == _NATIVE:
            yield service, ""
    for task in group.tasks or ():
        for service in task.services or ():
            if service.provider == _NATIVE:
                yield service, task.name


def _wanted(group: TaskGroup, states: Mapping[str, TaskState]) -> Iterator[tuple[Service, str]]:
    has_begun = any(_counts(task) and states[task.name].started_at for task in group.tasks or ())
    goes_on = any(
        hook(task) != Hook.POSTSTOP and states[task.name].state != TaskPhase.DEAD
        for task in group.tasks or ()
    )
    for service, task in _all(group):
        running = states[task].state == TaskPhase.RUNNING if task else has_begun and goes_on
        if running:
            yield service, task


def _counts(task: Task) -> bool:
    return hook(task) not in {Hook.PRESTART, Hook.POSTSTOP}


def _register(place: Place, service: Service, task: str) -> Registration:
    allocation = place.allocation
    address, port = _address(place, service, task, service.port_label, service.address_mode)
    canary = allocation.health is not None and allocation.health.canary
    tags = service.canary_tags if canary and service.canary_tags else service.tags
    name = place.resolve(task, service.name)
    owner = task or f"group-{place.group.name}"
    return Registration(
        id=f"_nomad-task-{allocation.id}-{owner}-{name}-{service.port_label}",
        service_name=name,
        namespace=allocation.namespace,
        node_id=allocation.node_id,
        datacenter=place.datacenter,
        job_id=allocation.job_id,
        alloc_id=allocation.id,
        tags=[place.resolve(task, tag) for tag in tags or ()],
        address=place.resolve(task, service.address) or address,
        port=port,
    )


def _address(place: Place, service: Service, task: str, label: str, mode: str) -> tuple[str, int]:
    """Return where a port can be reached. Raises `Unreachable`."""
    if not label:
        return place.address, 0
    held = {port.label: port for port in place.allocation.placement.resources.ports_of(task)}
    port = held.get(label)
    if port is None:
        if label.isdecimal() and 0 < whole(label) <= _LONGEST_PORT:
            return place.address, whole(label)
        raise Unreachable(f'invalid port "{label}": port label not found')
    if mode == "alloc" and port.to > 0:
        return port.host_ip or place.address, port.to
    return port.host_ip or place.address, port.value


def probes(place: Place, found: Iterable[Active]) -> Iterator[Probe]:
    """Yield the checks of services that are registered."""
    for one in found:
        for check in one.service.checks or ():
            label = check.port_label or one.service.port_label
            mode = check.address_mode or one.service.address_mode
            try:
                address, port = _address(place, one.service, one.task, label, mode)
            except Unreachable:
                if check.type != "script":
                    continue
                address, port = place.address, 0
            task = check.task_name or one.task
            identity = f"{one.registration.id}\\0{msgspec.json.encode(check).decode()}"
            digest = hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()
            yield Probe(
                id=f"_nomad-check-{digest}",
                check=check,
                service=one.registration.service_name,
                task=task,
                address=place.resolve(one.task, one.service.address) or address,
                port=port,
            )

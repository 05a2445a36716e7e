"""Compute the registered services of an allocation and their checks. No I/O.

Group services are registered from the start of the first main task until the allocation stops. Task
services are registered while their task runs. Deregistration precedes the shutdown delay, so that
clients stop connecting before the task ends (source: Nomad's recorded responses `services`).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from daemon.runner.core.lifecycle import hook
from storage.records.allocation import Allocation, TaskPhase, TaskState
from storage.records.group import TaskGroup
from storage.records.numbers import parse_integer, shorten
from storage.records.service import Registration
from storage.records.task import Check, Hook, Service, Task

_NATIVE = "nomad"
_LONGEST_PORT = 65535
_TEXTS_OF_CHECK = ("name", "command", "path", "port_label", "method", "grpc_service")

Resolve = Callable[
    [str, str], str
]  # takes a task name, or None, and a text; returns the interpolated text


class ServiceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The values common to all services of an allocation."""

    allocation: Allocation
    group: TaskGroup
    datacenter: str
    address: str  # address of the node
    inside: str = ""  # address of the allocation on the bridge
    resolve: Resolve


class ActiveService(msgspec.Struct, frozen=True, kw_only=True):
    """A registered service with its task and address."""

    service: Service
    task: str
    registration: Registration


class CheckTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A running check and its address."""

    id: str
    check: Check
    service: str
    task: str  # the task restarts when the check fails for too long
    address: str
    port: int


class ServiceHasNoPort(ValueError):
    """A service refers to a port that does not exist."""


def active(context: ServiceContext, states: Mapping[str, TaskState]) -> Iterator[ActiveService]:
    """Yield the registered services for these task states.

    Services without a port are omitted; `faults` reports them.
    """
    for service, task in _desired(context.group, states):
        try:
            yield ActiveService(
                service=service, task=task, registration=_register(context, service, task)
            )
        except ServiceHasNoPort:
            continue


def faults(context: ServiceContext) -> Iterator[tuple[str, str]]:
    """Yield the tasks whose services cannot be registered, with the reason.

    An invalid group service is reported for all tasks.
    """
    for service, task in _native_services(context.group):
        try:
            _register(context, service, task)
        except ServiceHasNoPort as error:
            names = [task] if task else [task.name for task in context.group.tasks or ()]
            for name in names:
                yield name, f'failed to register service "{service.name}": {error}'


def _native_services(group: TaskGroup) -> Iterator[tuple[Service, str]]:
    for service in group.services or ():
        if service.provider == _NATIVE:
            yield service, ""
    for task in group.tasks or ():
        for service in task.services or ():
            if service.provider == _NATIVE:
                yield service, task.name


def _desired(group: TaskGroup, states: Mapping[str, TaskState]) -> Iterator[tuple[Service, str]]:
    has_begun = any(_counts(task) and states[task.name].started_at for task in group.tasks or ())
    goes_on = any(
        hook(task) != Hook.POSTSTOP and states[task.name].state != TaskPhase.DEAD
        for task in group.tasks or ()
    )
    for service, task in _native_services(group):
        running = states[task].state == TaskPhase.RUNNING if task else has_begun and goes_on
        if running:
            yield service, task


def _counts(task: Task) -> bool:
    return hook(task) not in {Hook.PRESTART, Hook.POSTSTOP}


def _register(context: ServiceContext, service: Service, task: str) -> Registration:
    allocation = context.allocation
    label = context.resolve(task, service.port_label)
    address, port = _address(context, service, task, label, service.address_mode)
    canary = allocation.health is not None and allocation.health.canary
    tags = service.canary_tags if canary and service.canary_tags else service.tags
    name = context.resolve(task, service.name)
    owner = task or f"group-{context.group.name}"
    return Registration(
        id=f"_nomad-task-{allocation.id}-{owner}-{name}-{service.port_label}",
        service_name=name,
        namespace=allocation.namespace,
        node_id=allocation.node_id,
        datacenter=context.datacenter,
        job_id=allocation.job_id,
        alloc_id=allocation.id,
        tags=[context.resolve(task, tag) for tag in tags or ()],
        address=context.resolve(task, service.address) or address,
        port=port,
    )


def _address(
    context: ServiceContext, service: Service, task: str, label: str, mode: str
) -> tuple[str, int]:
    """Return the address and the port of a service; `label` is the label or number of the port.

    With the `mode` `alloc`, the address and the port are those inside the allocation's network.
    Raises `ServiceHasNoPort`.
    """
    if not label:
        return context.address, 0
    inside = context.inside if mode == "alloc" else ""
    ports = {port.label: port for port in context.allocation.placement.resources.ports_of(task)}
    port = ports.get(label)
    if port is None:
        if label.isdecimal():
            number = parse_integer(label)
            if not 0 < number <= _LONGEST_PORT:
                raise ServiceHasNoPort(
                    f'invalid port "{shorten(label)}": a port number is from 1 to {_LONGEST_PORT}'
                )
            return inside or context.address, number
        raise ServiceHasNoPort(f'invalid port "{label}": port label not found')
    if mode == "alloc" and (inside or port.to > 0):
        return inside or port.host_ip or context.address, port.to if port.to > 0 else port.value
    return port.host_ip or context.address, port.value


def probes(
    context: ServiceContext, active_services: Iterable[ActiveService]
) -> Iterator[CheckTarget]:
    """Yield the checks of registered services."""
    for active_service in active_services:
        for stored in active_service.service.checks or ():
            check = _resolved(context, active_service.task, stored)
            label = check.port_label or context.resolve(
                active_service.task, active_service.service.port_label
            )
            mode = check.address_mode or active_service.service.address_mode
            try:
                address, port = _address(
                    context, active_service.service, active_service.task, label, mode
                )
            except ServiceHasNoPort:
                if check.type != "script":
                    continue
                address, port = context.address, 0
            task = check.task_name or active_service.task
            identity = f"{active_service.registration.id}\\0{msgspec.json.encode(stored).decode()}"
            digest = hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()
            yield CheckTarget(
                id=f"_nomad-check-{digest}",
                check=check,
                service=active_service.registration.service_name,
                task=task,
                address=context.resolve(active_service.task, active_service.service.address)
                or address,
                port=port,
            )


def _resolved(context: ServiceContext, task: str, check: Check) -> Check:
    """Return a check whose texts have no references, as in Nomad."""

    def resolved(text: str) -> str:
        return context.resolve(task, text)

    return msgspec.structs.replace(
        check,
        **{name: resolved(getattr(check, name)) for name in _TEXTS_OF_CHECK},
        args=None if check.args is None else [resolved(text) for text in check.args],
        header=None
        if check.header is None
        else {
            resolved(name): [resolved(text) for text in values or ()]
            for name, values in check.header.items()
        },
    )

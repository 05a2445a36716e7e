"""Validation of services: each service alone, and all services of a group together."""

import re
from collections import defaultdict
from collections.abc import Iterator

from daemon.jobspec.rules.blocks import VARIABLE
from daemon.jobspec.rules.checks import ON_UPDATE, consul_fault, native_fault, needs_port
from daemon.jobspec.rules.network import MOST_PORT, labels
from daemon.text.go_format import format_list, quote, wrap_error
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.numbers import parse_integer, shorten
from storage.records.task import Check, Service, Task

_NAME = re.compile(r"[a-z0-9]|[a-z0-9][a-z0-9\-]{0,61}[a-z0-9]", re.IGNORECASE | re.ASCII)
_FIXED_MODES = frozenset({"host", "driver", "alloc", "alloc_ipv6"})
_ONLY_IN_GROUPS = ("alloc", "alloc_ipv6")
_KINDS = frozenset(
    {
        "",
        "api-gateway",
        "ingress-gateway",
        "mesh-gateway",
        "terminating-gateway",
    }
)
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


def service(service: Service) -> Iterator[str]:
    """Yield the errors of a service of a group or of a task."""
    # Values that are resolved when the task starts are assumed to be valid.
    if not _NAME.fullmatch(VARIABLE.sub("ENV-VAR", service.name)):
        yield (
            "Service name must be valid per RFC 1123 and can contain only alphanumeric characters "
            f"or dashes and must be no longer than 63 characters: {quote(service.name)}"
        )
    if service.address_mode in _FIXED_MODES:
        if service.address:
            yield 'Service address_mode must be "auto" if address is set'
    elif service.address_mode not in ("", "auto"):
        mode = quote(service.address_mode)
        yield f'Service address_mode must be "auto", "host", or "driver"; not {mode}'
    if service.on_update and service.on_update not in ON_UPDATE:
        healthy, warnings, ignore = (quote(value) for value in ON_UPDATE)
        mode = quote(service.on_update)
        yield f"Service on_update must be {healthy}, {warnings}, or {ignore}; not {mode}"
    yield from _provider(service)
    if service.identity is not None and not service.identity.audience:
        yield "Service identity must provide at least one target aud value"


def sidecar_errors(job: Job) -> Iterator[str]:
    """Yield errors that prevent a sidecar for a service.

    Nomad reports these errors before all other errors.
    """
    for group in job.task_groups or ():
        for group_service in group.services or ():
            if (group_service.connect or {}).get("SidecarService") is None:
                continue
            subject = f"group {quote(group.name)}"
            if group_service.name != group_service.name.lower():
                yield (
                    f"Consul Connect service name {quote(group_service.name)} in {subject} must not contain "
                    "uppercase characters"
                )
            mode = next((network.mode or "host" for network in group.networks or ()), "bridge")
            if mode != "bridge" and not mode.startswith("cni/"):
                yield (
                    f"connect sidecar: invalid network mode for Consul Connect: {subject} uses "
                    f'network mode {quote(mode)}; must be "bridge" or "cni/*"'
                )


def _connect(service: Service) -> Iterator[str]:
    connect = service.connect or {}
    native = bool(connect.get("Native"))
    other_ways = sum(connect.get(block) is not None for block in ("SidecarService", "Gateway"))
    if native + other_ways != 1:
        yield "Consul Connect must be exclusively native, make use of a sidecar, or represent a Gateway"
    if native and other_ways and not service.task_name:
        yield f"Service {service.name} is Connect Native and requires setting the task"


def _provider(service: Service) -> Iterator[str]:
    match service.provider:
        case "consul":
            yield from _consul(service)
        case "nomad":
            yield from _native(service)
        case _:
            provider = quote(service.provider)
            yield f'Service provider must be "consul", or "nomad"; not {provider}'


def _native(service: Service) -> Iterator[str]:
    for check in service.checks or ():
        if fault := _without_port(service, check) or native_fault(check):
            yield fault
    if service.connect is not None:
        yield "Service with provider nomad cannot include Connect blocks"


def _consul(service: Service) -> Iterator[str]:
    if service.connect is not None:
        yield from _connect(service)
    for check in service.checks or ():
        if fault := _without_port(service, check):
            yield fault
        elif fault := consul_fault(check):
            yield f"Check {check.name} invalid: {fault}"
    if service.kind not in _KINDS:
        kinds = ", ".join(sorted(filter(None, _KINDS)))
        yield f"Service {service.name} kind must be one of consul service kind or empty: {kinds}"


def _without_port(service: Service, check: Check) -> str | None:
    if service.port_label or check.port_label or not needs_port(check):
        return None
    return (
        f"Check {check.name} invalid: check requires a port but neither check nor service "
        f"{quote(service.name, ascii_only=True)} have a port"
    )


# --- group services ---


def of_group(group: TaskGroup) -> Iterator[str]:
    """Yield the errors of a group's services, and conflicts with the services of its tasks."""
    tasks = {task.name for task in group.tasks or ()}
    for task in group.tasks or ():
        yield from _owners(task)
    for number, group_service in enumerate(group.services or ()):
        faults = list(service(group_service))
        if faults:
            yield from wrap_error(
                f"Service[{number}] {group_service.name} validation failed", faults
            )
            continue
        if group_service.address_mode == "driver":
            yield (
                f'service {quote(group_service.name)} cannot use address_mode="driver", only services '
                'defined in a "task" block can use this mode'
            )
        yield from _group_checks(group_service, tasks)
        yield from _ports(group_service, labels(group.networks))
    yield from _duplicates(group)
    services = [service for task in group.tasks or () for service in task.services or ()]
    if len({service.provider for service in [*services, *(group.services or ())]}) > 1:
        yield ("Multiple service providers used: task group services must use the same provider")


def _owners(task: Task) -> Iterator[str]:
    for task_service in task.services or ():
        if task_service.task_name not in ("", task.name):
            yield (
                f"Service {task_service.name} is invalid: may only specify task the service belongs to, "
                f"got {quote(task_service.task_name)}"
            )
        for check in task_service.checks or ():
            if check.task_name not in ("", task.name):
                yield (
                    f"Check {check.name} is invalid: may only specify task the check belongs to, "
                    f"got {quote(check.task_name)}"
                )


def _group_checks(service: Service, tasks: set[str]) -> Iterator[str]:
    for check in service.checks or ():
        if not check.task_name:
            continue
        if check.address_mode == "driver":
            yield (
                f'Check {quote(service.name)} invalid: cannot use address_mode="driver", only checks '
                'defined in a "task" service block can use this mode'
            )
        if check.task_name not in tasks:
            yield f"Check {check.name} invalid: refers to non-existent task {check.task_name}"


def _duplicates(group: TaskGroup) -> Iterator[str]:
    """Yield errors for services with the same registration ID."""
    seen: set[str] = set()
    twice: set[str] = set()
    owned = [(task.name, service) for task in group.tasks or () for service in task.services or ()]
    for owner, owned_service in [*owned, *(("group", service) for service in group.services or ())]:
        key = f"{owner}->{owned_service.name}" + (
            f":{owned_service.port_label}" if owned_service.port_label else ""
        )
        if key in seen:
            twice.add(key)
        seen.add(key)
    if twice:
        yield f"Services are not unique: {format_list(sorted(twice))}"


def script_checks(group: TaskGroup) -> Iterator[str]:
    """Yield errors for script checks without a task to run in."""
    for group_service in group.services or ():
        for check in group_service.checks or ():
            if check.type == "script" and not group_service.task_name and not check.task_name:
                yield (
                    f"Service [{group.name}]->{group_service.name} or Check {check.name} must specify "
                    "task parameter"
                )


def _ports(service: Service, declared: set[str]) -> Iterator[str]:
    """Yield an error for each port number of a service and its checks that is out of range."""
    subject = f"service {quote(service.name)}"
    named = [
        (subject, service.port_label),
        *(
            (f"check {quote(check.name)} of {subject}", check.port_label)
            for check in service.checks or ()
        ),
    ]
    for owner, label in named:
        is_number = label.isascii() and label.isdecimal() and label not in declared
        if is_number and not 0 < parse_integer(label) <= MOST_PORT:
            yield (
                f"{owner} has the invalid port {shorten(label)}: a port number is from 1 to "
                f"{MOST_PORT}"
            )


# --- task services ---


def of_task(task: Task, group: TaskGroup) -> Iterator[str]:
    """Yield the errors of a task's services, and an error for each unknown port label in them."""
    ports: defaultdict[str, set[str]] = defaultdict(set)  # label -> services that name it
    service_ports: set[tuple[str, str]] = set()
    present = labels((group.networks or [])[:1]) | labels(task.resources.networks)
    for number, task_service in enumerate(task.services or ()):
        name = quote(task_service.name, ascii_only=True)
        yield from wrap_error(f"service[{number}] {name} validation failed", service(task_service))
        for mode in _ONLY_IN_GROUPS:
            if task_service.address_mode == mode:
                yield _only_in_groups("service", task_service.name, mode)
        if (task_service.name, task_service.port_label) in service_ports:
            yield f"service {quote(task_service.name)} is duplicate"
        service_ports.add((task_service.name, task_service.port_label))
        numeric = task_service.address_mode == "driver" and _NUMBER.fullmatch(
            task_service.port_label
        )
        if task_service.port_label and not numeric:
            ports[task_service.port_label].add(task_service.name)
        if task_service.connect is not None:
            yield (
                f'service {quote(task_service.name)} cannot have "connect" block, only services defined in '
                'a "group" block can'
            )
        yield from _task_checks(task_service, ports)
        if numeric:
            yield from _ports(task_service, present)
    for label in sorted(ports.keys() - present):
        names = ", ".join(sorted(ports[label]))
        yield f"port label {quote(label)} referenced by services {names} does not exist"


def _only_in_groups(kind: str, name: str, mode: str) -> str:
    where = "services defined in a" if kind == "service" else "checks defined in a"
    block = '"group" block' if kind == "service" else '"group" service block'
    return (
        f'{kind} {quote(name)} cannot use address_mode="{mode}", only {where} {block} can use '
        "this mode"
    )


def _task_checks(service: Service, ports: defaultdict[str, set[str]]) -> Iterator[str]:
    check_names: set[str] = set()
    for check in service.checks or ():
        if check.name in check_names:
            yield f"check {quote(check.name)} is duplicate"
        check_names.add(check.name)
        for mode in _ONLY_IN_GROUPS:
            if check.address_mode == mode:
                yield _only_in_groups("check", service.name, mode)
        if needs_port(check):
            yield from _check_port(check, service, ports)


def _check_port(check: Check, service: Service, ports: defaultdict[str, set[str]]) -> Iterator[str]:
    label = check.port_label or service.port_label
    if not label:
        yield f"check {quote(check.name)} is missing a port"
    elif not _NUMBER.fullmatch(label):
        ports[label].add(service.name)
    elif check.address_mode != "driver":
        yield (
            f"check {quote(check.name)} cannot use a numeric port {int(label)} without setting "
            'address_mode="driver"'
        )
    elif int(label) <= 0:
        yield f"check {quote(check.name)} has invalid numeric port {int(label)}"

"""Implicit constraints: node requirements of a job, added to its groups and tasks.

An existing constraint is not added again. So a job keeps its constraints when a client reads it and
writes it back (source: Nomad's recorded responses `services`). Some implicit constraints are
omitted if the job has its own constraint on the same attribute. A job can thus require a newer
version of the program that the attribute describes, or accept an older version.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

from storage.records.constraints import Constraint
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.node import BRIDGE_PLUGINS
from storage.records.task import Service, Task

_Owner = TypeVar("_Owner", TaskGroup, Task)


class _Implied(msgspec.Struct, frozen=True, kw_only=True):
    constraint: Constraint
    yields: bool = True  # omitted if the job has a constraint on the same attribute

    def covered(self, present: Iterable[Constraint]) -> bool:
        if self.yields:
            return any(constraint.l_target == self.constraint.l_target for constraint in present)
        return self.constraint in present


def with_implied(job: Job) -> Job:
    """Return the job with the implicit constraints of its groups and tasks."""
    groups = _change_each(job.task_groups, _with_implied)
    return job if groups is None else msgspec.structs.replace(job, task_groups=groups)


def _with_implied(group: TaskGroup) -> TaskGroup:
    if services := _change_each(group.services, _with_identity_name):
        group = msgspec.structs.replace(group, services=services)
    if tasks := _change_each(group.tasks, _task_with_implied):
        group = msgspec.structs.replace(group, tasks=tasks)
    return _constrained(group, _of_group(group))


def _task_with_implied(task: Task) -> Task:
    if services := _change_each(task.services, _with_identity_name):
        task = msgspec.structs.replace(task, services=services)
    return _constrained(task, _of_task(task))


_Item = TypeVar("_Item")


def _change_each(items: list[_Item] | None, change: Callable[[_Item], _Item]) -> list[_Item] | None:
    """Return all items with the change applied; None if no item changes."""
    changed = [change(original) for original in items or ()]
    same = all(new is original for new, original in zip(changed, items or (), strict=True))
    return None if same else changed


def _constrained(owner: _Owner, implied: Iterable[_Implied]) -> _Owner:
    present = list(owner.constraints or ())
    for implied_constraint in implied:
        if not implied_constraint.covered(present):
            present.append(implied_constraint.constraint)
    if len(present) == len(owner.constraints or ()):
        return owner
    return msgspec.structs.replace(owner, constraints=present)


def _with_identity_name(service: Service) -> Service:
    """Return the service; its identity gets the name that the service provider expects."""
    if service.identity is None or service.provider != "consul":
        return service
    names = [service.task_name] if service.task_name else []
    name = "-".join([*names, service.name, service.port_label])
    identity = msgspec.structs.replace(
        service.identity, name=f"consul-service_{name}", service_name=service.name
    )
    return (
        service
        if identity == service.identity
        else msgspec.structs.replace(service, identity=identity)
    )


# --- implicit constraints ---


def _of_group(group: TaskGroup) -> Iterator[_Implied]:
    tasks = group.tasks or ()
    services = [
        *(group.services or ()),
        *(service for task in tasks for service in task.services or ()),
    ]
    if group.consul and group.consul.partition:
        yield _partition(group.consul.cluster, group.consul.partition)
    yield from _of_secrets(group)
    if any(task.resources.numa and task.resources.numa.affinity != "none" for task in tasks):
        yield _scheduler_version(">= 1.6.3-dev", yields=False)
        yield _equal("${attr.kernel.name}", "linux")
    if signals := sorted({signal for task in tasks for signal in _signals(task)}):
        constraint = Constraint(
            l_target="${attr.os.signals}", r_target=",".join(signals), operand="set_contains"
        )
        yield _Implied(constraint=constraint, yields=False)
    yield from _of_native_services(services)
    for service in group.services or ():
        if service.provider == "consul":
            yield _discovery(service)
    if any(network.mode == "bridge" for network in group.networks or ()):
        for plugin in BRIDGE_PLUGINS:
            yield _version(f"${{attr.plugins.cni.version.{plugin}}}", ">= 0.4.0")
    if any(task.schedule for task in tasks):
        yield _scheduler_version(">= 1.8.0-dev")
    if any(service.identity for service in services) or any(task.identities for task in tasks):
        yield _scheduler_version(">= 1.7.0-a", yields=False)


def _of_task(task: Task) -> Iterator[_Implied]:
    if task.consul and task.consul.partition:
        yield _partition(task.consul.cluster, task.consul.partition)
    for service in task.services or ():
        if service.provider == "consul":
            yield _discovery(service)


def _of_secrets(group: TaskGroup) -> Iterator[_Implied]:
    for task in sorted(group.tasks or (), key=lambda task: task.name):
        if task.secrets_config is not None:
            yield _secrets_service(task.secrets_config.cluster)
    providers = [secret.provider for task in group.tasks or () for secret in task.secrets or ()]
    for provider in dict.fromkeys(providers):
        attribute = f"${{attr.plugins.secrets.{provider}.version}}"
        yield _Implied(constraint=Constraint(l_target=attribute, operand="is_set"))


def _of_native_services(services: Iterable[Service]) -> Iterator[_Implied]:
    native = [service for service in services if service.provider == "nomad"]
    if native:
        yield _equal("${attr.nomad.service_discovery}", "true")
    if any(service.checks for service in native):
        yield _scheduler_version(">= 1.4.0", yields=False)


def _signals(task: Task) -> Iterator[str]:
    if task.secrets_config and task.secrets_config.change_mode == "signal":
        yield task.secrets_config.change_signal
    if task.kill_signal:
        yield task.kill_signal
    for template in task.templates or ():
        if template.change_mode == "signal":
            yield template.change_signal


def _discovery(service: Service) -> _Implied:
    cluster = "" if service.cluster == "default" else f"{service.cluster}."
    return _version(f"${{attr.consul.{cluster}version}}", ">= 1.8.0")


def _secrets_service(cluster: str) -> _Implied:
    if cluster == "default":
        return _version("${attr.vault.version}", ">= 0.6.1")
    return _version(f"${{attr.vault.{cluster}.version}}", ">= 1.11.0")


def _partition(cluster: str, partition: str) -> _Implied:
    named = "" if cluster == "default" else f"{cluster}."
    return _equal(f"${{attr.consul.{named}partition}}", partition)


def _scheduler_version(constraint_text: str, *, yields: bool = True) -> _Implied:
    return _version("${attr.nomad.version}", constraint_text, yields=yields)


def _version(attribute: str, constraint_text: str, *, yields: bool = True) -> _Implied:
    constraint = Constraint(l_target=attribute, r_target=constraint_text, operand="semver")
    return _Implied(constraint=constraint, yields=yields)


def _equal(attribute: str, value: str) -> _Implied:
    constraint = Constraint(l_target=attribute, r_target=value, operand="=")
    return _Implied(constraint=constraint, yields=False)

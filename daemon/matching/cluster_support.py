"""Features of a group that no cluster supports, because a cluster runs each task as a separate job.

A cluster assigns cores and memory of a host only when it starts a job. It reserves no ports,
provides no persistent disk, and does not start tasks in a given order.
"""

from collections.abc import Collection, Iterator

from storage.records.driver import is_listed
from storage.records.group import TaskGroup
from storage.records.job import Job, JobType
from storage.records.task import Network, Service, Task

_HOST_MODES = ("", "host", "none")


def unsupported_on_cluster(job: Job, group: TaskGroup) -> Iterator[tuple[str, str]]:
    """Yield a pair for each field that no cluster supports: the field with its value, and a fix."""
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        yield f'type = "{job.type}"', "make it a batch job"
    tasks = group.tasks or []
    if len(tasks) != 1:
        names = ", ".join(task.name for task in tasks) or "none"
        yield f"{len(tasks)} tasks ({names})", "put each task into a separate group"
    yield from _of_group(group)
    for task in tasks:
        yield from _of_task(task)


def _of_group(group: TaskGroup) -> Iterator[tuple[str, str]]:
    yield from _of_networks("network", group.networks)
    if group.update is not None and group.update.canary:
        yield f"update.canary = {group.update.canary}", "leave it out"
    disk = group.ephemeral_disk
    for name, is_set in (("sticky", disk.sticky), ("migrate", disk.migrate)):
        if is_set:
            yield f"ephemeral_disk.{name} = true", "leave it out"
    for name, volume in (group.volumes or {}).items():
        yield f'volume "{name}" (type = "{volume.type}")', "leave it out"
    yield from _of_services(group.services)


def _of_task(task: Task) -> Iterator[tuple[str, str]]:
    subject = f'task "{task.name}": '
    for field, fix in (
        *_of_networks("resources.network", task.resources.networks),
        *_of_services(task.services),
    ):
        yield subject + field, fix
    if task.lifecycle is not None:
        yield f'{subject}lifecycle.hook = "{task.lifecycle.hook}"', "leave it out"
    if task.resources.devices:
        names = ", ".join(device.name for device in task.resources.devices)
        yield f"{subject}resources.device ({names})", "use a constraint on a feature of the hosts"
    if task.volume_mounts:
        names = ", ".join(mount.volume for mount in task.volume_mounts)
        yield f"{subject}volume_mount ({names})", "leave it out"


def _of_networks(field: str, networks: list[Network] | None) -> Iterator[tuple[str, str]]:
    for network in networks or ():
        ports = [*(network.reserved_ports or ()), *(network.dynamic_ports or ())]
        if ports:
            labels = ", ".join(port.label for port in ports)
            yield f"{field} with ports ({labels})", "leave the ports out"
        elif network.mode not in _HOST_MODES:
            yield f'{field}.mode = "{network.mode}"', 'write mode = "host"'


def _of_services(services: list[Service] | None) -> Iterator[tuple[str, str]]:
    for service in services or ():
        if service.checks:
            yield f'service "{service.name}" with checks', "leave the checks out"
        if service.connect is not None:
            yield f'service "{service.name}" with connect', "leave it out"


def unavailable_features(group: TaskGroup, drivers: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield a pair for each task whose driver is not in `drivers`: task with driver, and a fix."""
    offered = ", ".join(sorted(drivers))
    for task in group.tasks or ():
        if not is_listed(task.driver, drivers):
            yield f'task "{task.name}": driver = "{task.driver}"', f"write one of {offered}"

"""Decide whether a new version can update a running allocation in place.

Settings that only the daemon uses change in place: counts, priorities, policies, timeouts, and
services without Connect. Changed inputs of the task's process or directory require a replacement
(source: Nomad's recorded responses `plan`).
"""

from collections.abc import Iterable

from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Consul, Network, Port, Resources, Service, Task


def requires_replacement(old: Job, new: Job, group_name: str) -> bool:
    """Return whether the tasks of a group differ, so that allocations must be replaced."""
    before, after = old.group(group_name), new.group(group_name)
    if before is None or after is None:
        return True
    if _group_updated(before, after):
        return True
    tasks = {task.name: task for task in after.tasks or ()}
    if len(tasks) != len(before.tasks or ()):
        return True
    return any(
        task.name not in tasks
        or _task_updated(task, tasks[task.name])
        or _meta(old, before, task) != _meta(new, after, tasks[task.name])
        for task in before.tasks or ()
    )


def _group_updated(before: TaskGroup, after: TaskGroup) -> bool:
    return (
        before.ephemeral_disk != after.ephemeral_disk
        or _networks(before.networks) != _networks(after.networks)
        or _consul_updated(before.consul, after.consul)
        or _connect_updated(before.services, after.services)
        or (before.volumes or {}) != (after.volumes or {})
        or before.restart_policy.render_templates != after.restart_policy.render_templates
    )


def _task_updated(before: Task, after: Task) -> bool:
    return (
        _process(before) != _process(after)
        or _directory(before) != _directory(after)
        or _share(before.resources) != _share(after.resources)
        or _consul_updated(before.consul, after.consul)
    )


def _process(task: Task) -> tuple[object, ...]:
    """Return the inputs of a task's process."""
    return (
        task.driver,
        task.user,
        task.config or {},
        task.env or {},
        task.log_config.disabled,
        task.csi_plugin_config,
    )


def _directory(task: Task) -> tuple[object, ...]:
    """Return the inputs of a task's directory."""
    return (
        task.artifacts or [],
        task.templates or [],
        task.secrets_config,
        task.secrets or [],
        task.volume_mounts or [],
        task.identity,
        task.identities or [],
        task.restart_policy.render_templates,
    )


def _share(resources: Resources) -> tuple[object, ...]:
    """Return the resources of a task for which a change requires a replacement."""
    return (
        resources.cpu,
        resources.cores,
        resources.memory_mb,
        resources.memory_max_mb,
        resources.secrets_mb,
        resources.devices or [],
        resources.numa,
        _networks(resources.networks),
    )


def _meta(job: Job, group: TaskGroup, task: Task) -> dict[str, str]:
    """Return the merged meta values of a task; inner values override outer values."""
    return {**(job.meta or {}), **(group.meta or {}), **(task.meta or {})}


def _networks(networks: Iterable[Network] | None) -> list[tuple[object, ...]]:
    """Return the relevant parts of networks, without the values of dynamic ports."""
    return [
        (
            network.mode,
            network.mbits,
            network.hostname,
            network.dns,
            network.cni,
            [(*_port(port), port.value) for port in network.reserved_ports or ()],
            [_port(port) for port in network.dynamic_ports or ()],
        )
        for network in networks or ()
    ]


def _port(port: Port) -> tuple[object, ...]:
    return (port.label, port.to, port.host_network)


def _consul_updated(before: Consul | None, after: Consul | None) -> bool:
    if before is None or after is None:
        present = before or after
        return present is not None and present.namespace != ""
    return before != after


def _connect_updated(before: Iterable[Service] | None, after: Iterable[Service] | None) -> bool:
    """Return whether a Connect service changed.

    Such a change requires a replacement, because the proxy of the service is part of the group.
    """
    later = {service.name: service for service in after or ()}
    return any(
        service.connect is not None
        and service.name in later
        and _mesh_fields(service) != _mesh_fields(later[service.name])
        for service in before or ()
    )


def _mesh_fields(service: Service) -> tuple[object, ...]:
    return (service.connect, service.port_label, service.cluster)

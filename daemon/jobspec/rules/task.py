"""Validation of tasks: name, driver, timeouts and blocks."""

from collections.abc import Iterator

from daemon.jobspec.rules import blocks, volumes
from daemon.jobspec.rules.constraints import DISTINCT, affinities, constraint
from daemon.jobspec.rules.resources import logs, resources
from daemon.jobspec.rules.services import of_task
from daemon.text.go_format import duration, join_errors, quote, wrap_error
from storage.records.group import TaskGroup
from storage.records.job import JobType
from storage.records.task import Service, Task

MAX_NAME = 200  # bytes; a file name contains the name and a few more bytes

_PROXY = "connect-proxy:"


def task(task: Task, group: TaskGroup, job_type: str) -> Iterator[str]:
    """Yield the errors of a task."""
    yield from _names(task)
    yield from _times(task, group, job_type)
    yield from join_errors(resources(task.resources))
    yield from join_errors(logs(task.log_config, group.ephemeral_disk))
    yield from _constraints(task)
    yield from affinities(task.affinities, job_type)
    yield from join_errors(of_task(task, group))
    for number, artifact in enumerate(task.artifacts or (), 1):
        yield from wrap_error(f"Artifact {number} validation failed", blocks.artifact(artifact))
    if task.secrets_config is not None:
        yield from wrap_error("Vault validation failed", blocks.secrets_config(task.secrets_config))
    yield from _templates(task)
    yield from _actions(task)
    if task.dispatch_payload is not None:
        yield from blocks.dispatch_payload(task.dispatch_payload)
    if task.lifecycle is not None:
        yield from blocks.lifecycle(task.lifecycle)
    yield from _proxy(task, group)
    yield from _mounts(task, group)
    if task.csi_plugin_config is not None:
        yield from blocks.storage_plugin(task.csi_plugin_config)
    yield from _identities(task)
    yield from _secrets(task)


def _names(task: Task) -> Iterator[str]:
    if not task.name:
        yield "Missing task name"
    if task.name == "alloc":  # the name of the shared task directory
        yield 'Task cannot be named "alloc"'
    if "/" in task.name or "\\" in task.name:
        yield "Task name cannot include slashes"
    elif "\0" in task.name:
        yield "Task name cannot include null characters"
    elif task.name.startswith("."):  # reserved names of the runner's directories
        yield f"Task name {quote(task.name)} cannot begin with a dot"
    elif (size := len(task.name.encode())) > MAX_NAME:
        yield f"Task name must be under {MAX_NAME + 1} bytes, currently {size}"
    if not task.driver:
        yield "Missing task driver"


def _times(task: Task, group: TaskGroup, job_type: str) -> Iterator[str]:
    progress = group.update.progress_deadline if group.update else 0
    if task.kill_timeout < 0:
        yield "KillTimeout must be a positive value"
    elif job_type == JobType.SERVICE and 0 < progress < task.kill_timeout:
        yield (
            f"KillTimout ({duration(task.kill_timeout)}) longer than the group's "
            f"ProgressDeadline ({duration(progress)})"
        )
    if task.shutdown_delay < 0:
        yield "ShutdownDelay must be a positive value"


def _constraints(task: Task) -> Iterator[str]:
    for number, task_constraint in enumerate(task.constraints or (), 1):
        yield from wrap_error(f"Constraint {number} validation failed", constraint(task_constraint))
        if task_constraint.operand in DISTINCT:
            yield f"Constraint {number} has disallowed Operand at task level: {task_constraint.operand}"


def _templates(task: Task) -> Iterator[str]:
    first: dict[str, int] = {}  # destination -> number
    for number, template in enumerate(task.templates or (), 1):
        yield from wrap_error(f"Template {number} validation failed", blocks.template(template))
        if template.dest_path in first:
            yield f"Template {number} has same destination as {first[template.dest_path]}"
        first.setdefault(template.dest_path, number)


def _actions(task: Task) -> Iterator[str]:
    times: dict[str, int] = {}
    for action in task.actions or ():
        yield from wrap_error(f"Action {action.name} validation failed", blocks.action(action))
        times[action.name] = times.get(action.name, 0) + 1
        if times[action.name] == 2:  # reported once, even if repeated
            yield f"Action {action.name} defined multiple times"


def _mounts(task: Task, group: TaskGroup) -> Iterator[str]:
    for number, mount in enumerate(task.volume_mounts or ()):
        if mount.volume not in (group.volumes or {}):
            yield f"Volume Mount ({number}) references undefined volume {mount.volume}"
        for invalid in join_errors(volumes.mount(mount)):
            yield f'Volume Mount ({number}) is invalid: "{invalid}"'


def _identities(task: Task) -> Iterator[str]:
    if task.identity is not None:
        name = quote(task.identity.name)
        yield from wrap_error(f"Identity {name} is invalid", blocks.identity(task.identity))
    for identity in task.identities or ():
        if identity.name == blocks.DEFAULT_IDENTITY:
            yield "Duplicate default identities found"
        name = quote(identity.name)
        yield from wrap_error(f"Identity {name} is invalid", blocks.identity(identity))


def _secrets(task: Task) -> Iterator[str]:
    names: set[str] = set()
    for secret in task.secrets or ():
        name = quote(secret.name)
        if secret.name in names:
            yield f"Duplicate secret {name} found"
        names.add(secret.name)
        if secret.provider == "vault" and task.secrets_config is None:
            yield f'Secret {name} has provider "vault" but no vault block'
        yield from wrap_error(f"Secret {name} is invalid", blocks.secret(secret))


# --- service mesh proxies ---


def _proxy(task: Task, group: TaskGroup) -> Iterator[str]:
    service = task.kind.removeprefix(_PROXY)
    if not task.kind.startswith(_PROXY) or not service:
        return
    if task.services:
        yield "Connect proxy task must not have a service block"
    if task.leader:
        yield "Connect proxy task must not have leader set"
    proxied = [
        group_service.name for group_service in group.services or () if _has_sidecar(group_service)
    ]
    if not proxied:
        yield f"No Connect services in task group with Connect proxy ({quote(service)})"
    elif service not in proxied:
        yield (
            f"Connect proxy service name ({quote(service)}) not found in Connect services from "
            f"task group: [{' '.join(proxied)}]"
        )


def _has_sidecar(service: Service) -> bool:
    return service.connect is not None and service.connect.get("SidecarService") is not None

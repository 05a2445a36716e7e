"""Fields that Steward accepts and stores but ignores, each with the reason.

docs/fields.md lists the effect of every field; a test compares it with this table.
"""

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec
from msgspec.structs import FieldInfo

from daemon.text.go_format import quote
from storage.records.driver import is_listed
from storage.records.group import TaskGroup
from storage.records.job import Job
from storage.records.task import Check, SecretsConfig, Service, Task, VolumeMount

_NEVER_APART = "the only node is never disconnected"
_NO_MESH = "Steward has no service mesh"
_NO_CLUSTERS = "Steward connects to no Consul or Vault cluster"
_ONE_NAMESPACE = "the Vault API has one namespace"
_NO_PLUGINS = "Steward has no storage plugins"
_ZSTANDARD = frozenset({"zst", "tzst", "tar.zst"})

_JobRecord = Job | TaskGroup | Task | Service | Check | SecretsConfig | VolumeMount
INERT: Mapping[type, Mapping[str, str]] = {
    Job: {
        "consul_namespace": _NO_CLUSTERS,
        "multiregion": "Steward has one region",
        "secrets_namespace": _ONE_NAMESPACE,
    },
    TaskGroup: {
        "consul": _NO_CLUSTERS,
        "disconnect": _NEVER_APART,
        "max_client_disconnect": _NEVER_APART,
        "prevent_reschedule_on_lost": _NEVER_APART,
        "stop_after_client_disconnect": _NEVER_APART,
    },
    Task: {
        "consul": _NO_CLUSTERS,
        "csi_plugin_config": _NO_PLUGINS,
        "kind": _NO_MESH,
        "scaling_policies": "Steward does not scale the resources of tasks",
    },
    Service: {
        "connect": _NO_MESH,
        "enable_tag_override": "only the job can change the tags",
    },
    Check: {"advertise": "a check connects to the address of its service"},
    SecretsConfig: {"namespace": _ONE_NAMESPACE},
    VolumeMount: {
        "propagation_mode": "the propagation is always private",
        "selinux_label": "Steward does not relabel volumes",
    },
}


def unsupported_fields(job: Job) -> Iterator[str]:
    """Yield a warning for each field that is set and has no effect."""
    yield from _warnings_of_record(job, "")
    for group in job.task_groups or ():
        subject = f"group {quote(group.name)}"
        yield from _warnings_of_record(group, subject)
        yield from _networks(group)
        for service in group.services or ():
            yield from _service(service, f"service {quote(service.name)} in {subject}")
        for task in group.tasks or ():
            where = f"task {quote(task.name)} in {subject}"
            yield from _warnings_of_record(task, where)
            yield from _artifacts(task, where)
            for service in task.services or ():
                yield from _service(service, f"service {quote(service.name)} of {where}")
            if task.secrets_config is not None:
                yield from _warnings_of_record(task.secrets_config, f"{where}: Vault")
            for mount in task.volume_mounts or ():
                yield from _warnings_of_record(
                    mount, f"mount {quote(mount.destination)} of {where}"
                )


def _service(service: Service, subject: str) -> Iterator[str]:
    yield from _warnings_of_record(service, subject)
    for check in service.checks or ():
        yield from _warnings_of_record(check, f"check {quote(check.name)} of {subject}")


def _networks(group: TaskGroup) -> Iterator[str]:
    """Yield a warning per task that cannot run in the network mode of its group.

    Steward isolates a raw_exec task from the network only if the agent runs as root. Containers
    cannot join the network of a group on the bridge.
    """
    if any(network.mode == "bridge" for network in group.networks or ()):
        for task in group.tasks or ():
            if is_listed(task.driver, ["podman"]) and not (task.config or {}).get("network_mode"):
                yield (
                    f"task {quote(task.name)} in group {quote(group.name)}: a container cannot join the "
                    'network of a group with the mode "bridge"; set network_mode and ports in its config'
                )
    if not any(network.mode == "none" for network in group.networks or ()):
        return
    for task in group.tasks or ():
        if is_listed(task.driver, ["raw_exec"]):
            yield (
                f"task {quote(task.name)} in group {quote(group.name)}: raw_exec can "
                'enforce the network mode "none" only if the agent is root; use exec'
            )


def _artifacts(task: Task, subject: str) -> Iterator[str]:
    """Yield a warning for each artifact that Nomad unpacks, but Steward does not."""
    for artifact in task.artifacts or ():
        kind = (artifact.getter_options or {}).get("archive", "")
        name = kind or artifact.getter_source.partition("?")[0].rpartition(".")[2]
        if name in _ZSTANDARD:
            yield (
                f"{subject}: artifact {quote(artifact.getter_source)} is not unpacked: Steward "
                "cannot unpack Zstandard archives; use another format, or set the option archive "
                'to "false"'
            )


def _warnings_of_record(record: _JobRecord, subject: str) -> Iterator[str]:
    for field, reason in _inert_fields(type(record)):
        # Clients send an empty string for an unset field whose default is not empty.
        if getattr(record, field.name) not in (field.default, ""):
            field_path = f"{subject}: {field.encode_name}" if subject else field.encode_name
            yield f"{field_path} is stored, but has no effect: {reason}"


@cache
def _inert_fields(kind: type[_JobRecord]) -> list[tuple[FieldInfo, str]]:
    """Return the fields without an effect, with the reasons.

    The result is cached, because a search takes a millisecond, and a job can have thousands of
    groups and tasks.
    """
    reasons = INERT[Job if issubclass(kind, Job) else kind]
    fields = msgspec.structs.fields(kind)
    return [(field, reasons[field.name]) for field in fields if field.name in reasons]

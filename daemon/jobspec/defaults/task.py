"""Defaults of a task."""

import posixpath
from collections.abc import Callable

from daemon.jobspec.defaults.blocks import (
    consul,
    network,
    scaling,
    set_default_weights,
    without_empty_fields,
)
from daemon.jobspec.defaults.service import complete_service
from storage.records.base import SECOND
from storage.records.codec import Document

DEFAULT_IDENTITY = "default"
# Audience of every task's default identity, which clients expect.
DEFAULT_AUDIENCE = "nomadproject.io"

PLUGIN: Document = {
    "MountDir": "/csi",
    "StagePublishBaseDir": "/local/csi",
    "HealthTimeout": 30 * SECOND,
}
LOCAL = "local"  # the task directory


def complete_task(document: Document, group: Document, job: Document) -> Document:
    """Return a task with every default set, from its group and its job."""
    task = without_empty_fields(document)
    mounts = [mount for mount in task.pop("VolumeMounts", ()) if "Volume" in mount]
    if mounts:
        task["VolumeMounts"] = mounts
    task["KillTimeout"] = task.get("KillTimeout") or 5 * SECOND
    task["RestartPolicy"] = {**group["RestartPolicy"], **document.get("RestartPolicy", {})}
    task["Resources"] = _resources(document.get("Resources", {}))
    set_default_weights(task)
    _set_identities(task)
    for name, complete in _TASK_BLOCKS.items():
        if name in task:
            task[name] = [complete(block) for block in task[name]]
    if "SecretsConfig" in task:
        task["SecretsConfig"] = _secrets_config(task["SecretsConfig"], job)
    if "Consul" in task:
        task["Consul"] = consul(task["Consul"])
    if "CSIPluginConfig" in task:
        task["CSIPluginConfig"] = _csi_plugin(task["CSIPluginConfig"])
    if "Schedule" in task and "Cron" not in task["Schedule"]:
        del task["Schedule"]
    if "ScalingPolicies" in task:
        given_policies = task["ScalingPolicies"]
        task["ScalingPolicies"] = [scaling(policy, job, group, task) for policy in given_policies]
    if "Services" in task:
        task["Services"] = [
            complete_service(service, job, group, task) for service in task["Services"]
        ]
    return task


def _resources(document: Document) -> Document:
    resources = without_empty_fields(document, without=("DiskMB",))  # the group owns the disk
    if "Cores" in resources and "CPU" not in resources:
        resources["CPU"] = 0
    if "Networks" in resources:
        resources["Networks"] = [network(network_block) for network_block in resources["Networks"]]
    if "Devices" in resources:
        resources["Devices"] = [dict(device) for device in resources["Devices"]]
        for device in resources["Devices"]:
            set_default_weights(device)
    if "NUMA" in resources:
        numa = without_empty_fields(resources["NUMA"])
        resources["NUMA"] = {**numa, "Affinity": numa.get("Affinity") or "none"}
    return resources


def _set_identities(task: Document) -> None:
    """Set the task's default identity; named identities keep their names."""
    further = [_identity(identity) for identity in task.pop("Identities", ())]
    for index in reversed(range(len(further))):
        # The last wins; `validate` reports repetitions.
        if further[index]["Name"] == DEFAULT_IDENTITY:
            task["Identity"] = further.pop(index)
            break
    task["Identity"] = _identity(task.get("Identity", {}))
    if further:
        task["Identities"] = further


def _identity(document: Document) -> Document:
    name = document.get("Name") or DEFAULT_IDENTITY
    identity = {**document, "Name": name, "ChangeSignal": document.get("ChangeSignal", "").upper()}
    if name == DEFAULT_IDENTITY:
        identity["Audience"] = [DEFAULT_AUDIENCE]
    return identity


def _secrets_config(document: Document, job: Document) -> Document:
    block = {name: value for name, value in document.items() if name != "Policies" or value}
    return {
        **block,
        "Namespace": block.get("Namespace") or job.get("SecretsNamespace", ""),
        "Cluster": block.get("Cluster") or "default",
        "ChangeMode": block.get("ChangeMode") or "restart",
        "ChangeSignal": block.get("ChangeSignal", "SIGHUP").upper(),
    }


def _csi_plugin(document: Document) -> Document:
    return {**document, **{name: document.get(name) or value for name, value in PLUGIN.items()}}


def _artifact(document: Document) -> Document:
    artifact = without_empty_fields(document)
    if "RelativeDest" not in artifact and artifact.get("GetterMode") == "file":
        name = posixpath.basename(artifact.get("GetterSource", "").rstrip("/"))
        artifact["RelativeDest"] = posixpath.join(LOCAL, name) if name else LOCAL
    return artifact


def _template(document: Document) -> Document:
    unnamed = "SIGHUP" if document.get("ChangeMode") == "signal" else ""
    template = {**document, "ChangeSignal": document.get("ChangeSignal", unnamed).upper()}
    if "ChangeScript" in template:
        template["ChangeScript"] = {"Args": [], **template["ChangeScript"]}
    return template


_TASK_BLOCKS: dict[str, Callable[[Document], Document]] = {
    "Artifacts": _artifact,
    "Templates": _template,
    "Secrets": without_empty_fields,
}

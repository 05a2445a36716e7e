"""Defaults of the service mesh: sidecar tasks and gateways.

Clients may add these defaults before submission, and the server adds them again. Client and server
code use this module.
"""

from daemon.jobspec.defaults.nulls import fill_empty, replace_nulls, weigh_null, with_defaults
from storage.records.base import SECOND
from storage.records.codec import Document

_SIDECAR: Document = {"KillTimeout": 5 * SECOND, "ShutdownDelay": 0}
_LOGS: Document = {"MaxFiles": 10, "MaxFileSizeMB": 10, "Disabled": False}
_RESOURCES: Document = {"CPU": 100, "Cores": 0, "MemoryMB": 300}
# Other fields of resources, which have no default.
_NO_RESOURCES = dict.fromkeys(
    ("MemoryMaxMB", "DiskMB", "IOPS", "SecretsMB", "Networks", "Devices", "NUMA")
)


def complete_connect(document: Document) -> Document:
    """Return a service's mesh block with every default set."""
    connect = dict(document)
    if (sidecar := connect.get("SidecarTask")) is not None:
        task = with_defaults(sidecar, _SIDECAR)
        task["LogConfig"] = complete_logs(task.get("LogConfig"))
        task["Resources"] = complete_resources(task.get("Resources"))
        connect["SidecarTask"] = task
    if (gateway := connect.get("Gateway")) is not None:
        connect["Gateway"] = _gateway(gateway)
    return connect


def _gateway(document: Document) -> Document:
    gateway = dict(document)
    if gateway.get("Proxy") is not None:
        gateway["Proxy"] = with_defaults(gateway["Proxy"], {"ConnectTimeout": 5 * SECOND})
    if (ingress := gateway.get("Ingress")) is not None:
        listeners = [dict(listener) for listener in ingress.get("Listeners") or ()]
        for listener in listeners:
            fill_empty(listener, {"Protocol": "tcp"})
        gateway["Ingress"] = {**ingress, "Listeners": listeners or None}
    return gateway


def complete_logs(document: Document | None) -> Document:
    """Return the log limits with every default set."""
    return with_defaults(document if document is not None else {"Enabled": None}, _LOGS)


def complete_resources(document: Document | None) -> Document:
    """Return resources with every default set; reserved cores replace CPU shares."""
    resources = dict(_NO_RESOURCES if document is None else document)
    if resources.get("Cores") and resources.get("CPU") is None:
        resources["CPU"] = 0
    replace_nulls(resources, _RESOURCES)
    for device in resources.get("Devices") or ():
        replace_nulls(device, {"Count": 1})
        weigh_null(device)
    if resources.get("NUMA") is not None:
        fill_empty(resources["NUMA"], {"Affinity": "none"})
    return resources

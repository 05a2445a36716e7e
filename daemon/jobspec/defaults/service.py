"""Defaults of services and their checks, from the enclosing job, group and task."""

import re

from daemon.jobspec.defaults.blocks import without_empty_fields
from daemon.jobspec.defaults.connect import complete_connect
from daemon.text.go_format import quote
from storage.records.base import SECOND
from storage.records.codec import Document

_VARIABLE = re.compile(r"\$\{([a-zA-Z0-9_.\-]+)\}")
CHECK_RESTART: Document = {"Grace": SECOND}
_THRESHOLDS = ("SuccessBeforePassing", "FailuresBeforeCritical", "FailuresBeforeWarning")


def complete_service(
    document: Document, job: Document, group: Document, task: Document | None = None
) -> Document:
    """Return a service of a group or task with every default set."""
    service = without_empty_fields(document, without=("CheckRestart",))
    service["Name"] = _name(document.get("Name", ""), job, group, task)
    service["AddressMode"] = service.get("AddressMode") or "auto"
    service["OnUpdate"] = service.get("OnUpdate") or "require_healthy"
    service["Provider"] = service.get("Provider") or "consul"
    service["Cluster"] = service.get("Cluster") or "default"
    service["Namespace"] = _namespace(service["Provider"], job)
    if task is not None:
        service["TaskName"] = service.get("TaskName") or task.get("Name", "")
    if "Connect" in service:
        service["Connect"] = complete_connect(service["Connect"])
    if "Weights" in service:
        weights = service["Weights"]
        service["Weights"] = {name: max(1, weights.get(name, 0)) for name in ("Passing", "Warning")}
    if "Checks" in service:
        service["Checks"] = [
            _check(check, service, document.get("CheckRestart"), of_group=task is None)
            for check in service["Checks"]
        ]
    return service


def _name(name: str, job: Document, group: Document, task: Document | None) -> str:
    """Return the service's name: interpolated, or built from the enclosing names."""
    own = task.get("Name", "") if task is not None else "group"
    if not name:
        parts = [job["Name"], group["Name"]]
        name = "-".join(parts if task is None else [*parts, own])
    values = {
        "JOB": job["Name"],
        "TASKGROUP": group["Name"],
        "TASK": own,
        "BASE": f"{job['Name']}-{group['Name']}-{own}",
    }
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), name)


def _namespace(provider: str, job: Document) -> str:
    if provider == "nomad":
        return str(job["Namespace"])
    return "default" if provider == "consul" else ""


def _check(
    document: Document, service: Document, restart: Document | None, *, of_group: bool
) -> Document:
    check = without_empty_fields(document, without=("Advertise", "CheckRestart"))
    check["Name"] = check.get("Name") or f"service: {quote(service['Name'])} check"
    check["OnUpdate"] = check.get("OnUpdate") or service["OnUpdate"]
    named = check.get("TaskName") if of_group else None  # a task's check belongs to the task
    check["TaskName"] = named or service.get("TaskName", "")
    for name in _THRESHOLDS:
        check[name] = max(0, check.get(name, 0))
    merged = _merged_restart(restart, document.get("CheckRestart"))
    if merged is not None:
        check["CheckRestart"] = merged
    return check


def _merged_restart(of_service: Document | None, of_check: Document | None) -> Document | None:
    """Return a check's restart rule: the service's block, overridden by the check's block."""
    if of_service is None and of_check is None:
        return None
    if of_service is None or of_check is None:
        return {**CHECK_RESTART, **(of_service or of_check or {})}
    changes = {"Grace": of_check["Grace"]} if "Grace" in of_check else {}
    if of_check.get("Limit", 0) > 0:
        changes["Limit"] = of_check["Limit"]
    if of_check.get("IgnoreWarnings"):
        changes["IgnoreWarnings"] = True
    return {**CHECK_RESTART, **of_service, **changes}

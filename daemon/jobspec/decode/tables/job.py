"""The job."""

from daemon.jobspec.decode.shapes import (
    Child,
    Form,
    Found,
    Shape,
    TextMap,
    optional_flag,
    optional_integer,
    optional_text,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.group import GROUP, GROUP_SHAPE, inherit
from daemon.jobspec.decode.tables.placement import AFFINITY, CONSTRAINT, SPREAD
from daemon.jobspec.decode.tables.policies import MIGRATE, RESCHEDULE, UPDATE
from daemon.jobspec.decode.tables.secrets import SECRETS, VAULT
from daemon.jobspec.decode.tables.task import TASK

# What the server says of a job, or what is set elsewhere: null in a job that comes from a file.
_OF_THE_SERVER = (
    *("CreateIndex", "JobModifyIndex", "ModifyIndex", "Version", "VersionTag", "SubmitTime"),
    *("Stable", "Status", "StatusDescription", "Stop", "ParentID", "Payload"),
    *("DispatchIdempotencyToken", "ServiceTokenID", "ConsulNamespace", "SecretsNamespace"),
)


def _finish_periodic(found: Found) -> None:
    document = found.document
    document["SpecType"] = "cron" if {"cron", "crons"} & found.arguments.keys() else None


_PERIODIC = Shape(
    {
        **optional_flag("enabled", "prohibit_overlap"),
        **optional_text("time_zone", cron="Spec"),
        **text_list(crons="Specs"),
    },
    finish=_finish_periodic,
)
_PARAMETERIZED = Shape({**plain_text("payload"), **text_list("meta_required", "meta_optional")})
_REGION = Shape(
    {**optional_integer("count"), **plain_text("node_pool"), **text_list("datacenters")},
    {"meta": TextMap("Meta")},
    always={"Name": ""},
)
_MULTIREGION = Shape(
    blocks={
        "strategy": Child(
            "Strategy", Shape({**optional_integer("max_parallel"), **optional_text("on_failure")})
        ),
        "region": Child("Regions", _REGION, ("Name",), Form.MANY),
    }
)
_LINK = Shape(plain_text("label", "url"))
_UI = Shape(plain_text("description"), {"link": Child("Links", _LINK, form=Form.MANY)})


def _finish(found: Found) -> None:
    """Name the job by its label, and give each task outside a group a group of its own."""
    document = found.document
    label = document.pop("label")
    for name in ("ID", "Name"):
        if document[name] is None:
            document[name] = label
    vault, secrets = document.pop("SecretsConfig"), document.pop("Secrets") or []
    alone = document.pop("Tasks") or []
    groups = [{**GROUP_SHAPE.empty(), "Name": task["Name"], "Tasks": [task]} for task in alone]
    for group in groups:
        del group["SecretsConfig"], group["Secrets"]
    document["TaskGroups"] = [*groups, *(document["TaskGroups"] or ())] or None
    for group in document["TaskGroups"] or ():
        inherit(group["Tasks"], vault, secrets)


JOB = Shape(
    {
        **optional_text("id", "name", "namespace", "region", "type", "node_pool"),
        **optional_integer("priority"),
        **optional_flag("all_at_once"),
        **text_list("datacenters"),
    },
    {
        "meta": TextMap("Meta", may_be_argument=True),
        "update": Child("Update", UPDATE),
        "migrate": Child("Migrate", MIGRATE),
        "reschedule": Child("Reschedule", RESCHEDULE),
        "periodic": Child("Periodic", _PERIODIC),
        "parameterized": Child("ParameterizedJob", _PARAMETERIZED),
        "multiregion": Child("Multiregion", _MULTIREGION),
        "ui": Child("UI", _UI),
        **CONSTRAINT,
        **AFFINITY,
        **SPREAD,
        **GROUP,
        **TASK,
        **VAULT,
        **SECRETS,
    },
    always={**dict.fromkeys(_OF_THE_SERVER), "Dispatched": False},
    finish=_finish,
)

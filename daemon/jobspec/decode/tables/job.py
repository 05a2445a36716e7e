"""Jobs."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
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

# Fields that the server sets, or that are set elsewhere. They are null in a job from a file.
_OF_THE_SERVER = (
    *("CreateIndex", "JobModifyIndex", "ModifyIndex", "Version", "VersionTag", "SubmitTime"),
    *("Stable", "Status", "StatusDescription", "Stop", "ParentID", "Payload"),
    *("DispatchIdempotencyToken", "ServiceTokenID", "ConsulNamespace", "SecretsNamespace"),
)


def _finish_periodic(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    document["SpecType"] = "cron" if {"cron", "crons"} & decoded_block.arguments.keys() else None


_PERIODIC = BlockSchema(
    {
        **optional_flag("enabled", "prohibit_overlap"),
        **optional_text("time_zone", cron="Spec"),
        **text_list(crons="Specs"),
    },
    finish=_finish_periodic,
)
_PARAMETERIZED = BlockSchema(
    {**plain_text("payload"), **text_list("meta_required", "meta_optional")}
)
_REGION = BlockSchema(
    {**optional_integer("count"), **plain_text("node_pool"), **text_list("datacenters")},
    {"meta": TextMap("Meta")},
    always={"Name": ""},
)
_MULTIREGION = BlockSchema(
    blocks={
        "strategy": ChildBlock(
            "Strategy",
            BlockSchema({**optional_integer("max_parallel"), **optional_text("on_failure")}),
        ),
        "region": ChildBlock("Regions", _REGION, ("Name",), BlockForm.MANY),
    }
)
_LINK = BlockSchema(plain_text("label", "url"))
_UI = BlockSchema(
    plain_text("description"), {"link": ChildBlock("Links", _LINK, form=BlockForm.MANY)}
)


def _finish(decoded_block: DecodedBlock) -> None:
    """Set the job's name from its label, and wrap each task outside a group in a group."""
    document = decoded_block.document
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


JOB = BlockSchema(
    {
        **optional_text("id", "name", "namespace", "region", "type", "node_pool"),
        **optional_integer("priority"),
        **optional_flag("all_at_once"),
        **text_list("datacenters"),
    },
    {
        "meta": TextMap("Meta", may_be_argument=True),
        "update": ChildBlock("Update", UPDATE),
        "migrate": ChildBlock("Migrate", MIGRATE),
        "reschedule": ChildBlock("Reschedule", RESCHEDULE),
        "periodic": ChildBlock("Periodic", _PERIODIC),
        "parameterized": ChildBlock("ParameterizedJob", _PARAMETERIZED),
        "multiregion": ChildBlock("Multiregion", _MULTIREGION),
        "ui": ChildBlock("UI", _UI),
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

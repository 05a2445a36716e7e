"""Task groups."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    DecodedBlock,
    TextMap,
    optional_duration,
    optional_flag,
    optional_integer,
    plain_flag,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.network import NETWORK
from daemon.jobspec.decode.tables.placement import AFFINITY, CONSTRAINT, SPREAD
from daemon.jobspec.decode.tables.policies import (
    DISCONNECT,
    MIGRATE,
    RESCHEDULE,
    RESTART,
    UPDATE,
)
from daemon.jobspec.decode.tables.scaling import GROUP_SCALING
from daemon.jobspec.decode.tables.secrets import CONSUL, SECRETS, VAULT
from daemon.jobspec.decode.tables.service import SERVICE
from daemon.jobspec.decode.tables.task import TASK
from storage.records.codec import Document

_DISK = BlockSchema({**optional_flag("sticky", "migrate"), **optional_integer(size="SizeMB")})
_VOLUME = BlockSchema(
    {
        **plain_text("type", "source", "access_mode", "attachment_mode"),
        **plain_flag("read_only", "sticky", "per_alloc"),
    },
    {
        "mount_options": ChildBlock(
            "MountOptions", BlockSchema({**plain_text("fs_type"), **text_list("mount_flags")})
        )
    },
    always={"Name": ""},
)


def inherit(tasks: list[Document] | None, vault: Document | None, secrets: list[Document]) -> None:
    """Copy the group's or job's blocks into tasks that do not set them."""
    for task in tasks or ():
        if task["SecretsConfig"] is None and vault is not None:
            task["SecretsConfig"] = dict(vault)
        own = task["Secrets"] or []
        names = {secret["Name"] for secret in own}
        task["Secrets"] = [
            *own,
            *[secret for secret in secrets if secret["Name"] not in names],
        ] or None


def _finish(decoded_block: DecodedBlock) -> None:
    document = decoded_block.document
    inherit(document["Tasks"], document.pop("SecretsConfig"), document.pop("Secrets") or [])


GROUP_SHAPE = BlockSchema(
    {
        **optional_integer("count"),
        **optional_duration("shutdown_delay", "stop_after_client_disconnect"),
        **optional_duration("max_client_disconnect", "max_run_duration"),
        **optional_flag("prevent_reschedule_on_lost"),
    },
    {
        "meta": TextMap("Meta", may_be_argument=True),
        "volume": ChildBlock("Volumes", _VOLUME, ("Name",), BlockForm.BY_LABEL),
        "restart": ChildBlock("RestartPolicy", RESTART),
        "reschedule": ChildBlock("ReschedulePolicy", RESCHEDULE),
        "update": ChildBlock("Update", UPDATE),
        "migrate": ChildBlock("Migrate", MIGRATE),
        "disconnect": ChildBlock("Disconnect", DISCONNECT),
        "ephemeral_disk": ChildBlock("EphemeralDisk", _DISK),
        **CONSTRAINT,
        **AFFINITY,
        **SPREAD,
        **NETWORK,
        **SERVICE,
        **GROUP_SCALING,
        **TASK,
        **VAULT,
        **CONSUL,
        **SECRETS,
    },
    always={"Name": ""},
    finish=_finish,
)

GROUP = {"group": ChildBlock("TaskGroups", GROUP_SHAPE, ("Name",), BlockForm.MANY)}

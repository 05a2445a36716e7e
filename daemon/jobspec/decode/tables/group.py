"""The task group."""

from daemon.jobspec.decode.shapes import (
    Child,
    Form,
    Found,
    Shape,
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

_DISK = Shape({**optional_flag("sticky", "migrate"), **optional_integer(size="SizeMB")})
_VOLUME = Shape(
    {
        **plain_text("type", "source", "access_mode", "attachment_mode"),
        **plain_flag("read_only", "sticky", "per_alloc"),
    },
    {
        "mount_options": Child(
            "MountOptions", Shape({**plain_text("fs_type"), **text_list("mount_flags")})
        )
    },
    always={"Name": ""},
)


def inherit(tasks: list[Document] | None, vault: Document | None, secrets: list[Document]) -> None:
    """Give tasks what stands in the group or the job around them, unless they have their own."""
    for task in tasks or ():
        if task["SecretsConfig"] is None and vault is not None:
            task["SecretsConfig"] = dict(vault)
        own = task["Secrets"] or []
        names = {secret["Name"] for secret in own}
        task["Secrets"] = [*own, *[one for one in secrets if one["Name"] not in names]] or None


def _finish(found: Found) -> None:
    document = found.document
    inherit(document["Tasks"], document.pop("SecretsConfig"), document.pop("Secrets") or [])


GROUP_SHAPE = Shape(
    {
        **optional_integer("count"),
        **optional_duration("shutdown_delay", "stop_after_client_disconnect"),
        **optional_duration("max_client_disconnect", "max_run_duration"),
        **optional_flag("prevent_reschedule_on_lost"),
    },
    {
        "meta": TextMap("Meta", may_be_argument=True),
        "volume": Child("Volumes", _VOLUME, ("Name",), Form.BY_LABEL),
        "restart": Child("RestartPolicy", RESTART),
        "reschedule": Child("ReschedulePolicy", RESCHEDULE),
        "update": Child("Update", UPDATE),
        "migrate": Child("Migrate", MIGRATE),
        "disconnect": Child("Disconnect", DISCONNECT),
        "ephemeral_disk": Child("EphemeralDisk", _DISK),
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

GROUP = {"group": Child("TaskGroups", GROUP_SHAPE, ("Name",), Form.MANY)}

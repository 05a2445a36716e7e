"""Resources, mounts and log limits of tasks and sidecars."""

from daemon.jobspec.decode.schema import (
    BlockForm,
    BlockSchema,
    ChildBlock,
    optional_flag,
    optional_integer,
    optional_text,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.network import NETWORK
from daemon.jobspec.decode.tables.placement import AFFINITY, CONSTRAINT

_DEVICE = BlockSchema(optional_integer("count"), {**CONSTRAINT, **AFFINITY}, always={"Name": ""})
_RESOURCES = BlockSchema(
    optional_integer(
        "cpu",
        "cores",
        "iops",
        memory="MemoryMB",
        memory_max="MemoryMaxMB",
        disk="DiskMB",
        secrets="SecretsMB",
    ),
    {
        **NETWORK,
        "device": ChildBlock("Devices", _DEVICE, ("Name",), BlockForm.MANY),
        "numa": ChildBlock("NUMA", BlockSchema({**plain_text("affinity"), **text_list("devices")})),
    },
)
_LOGS = BlockSchema(
    {
        **optional_integer("max_files", max_file_size="MaxFileSizeMB"),
        **optional_flag("disabled", "enabled"),
    }
)
_VOLUME_MOUNT = BlockSchema(
    {
        **optional_text("volume", "destination", "propagation_mode", "selinux_label"),
        **optional_flag("read_only"),
    }
)

RESOURCES = {"resources": ChildBlock("Resources", _RESOURCES)}
LOGS = {"logs": ChildBlock("LogConfig", _LOGS)}
VOLUME_MOUNTS = {"volume_mount": ChildBlock("VolumeMounts", _VOLUME_MOUNT, form=BlockForm.MANY)}

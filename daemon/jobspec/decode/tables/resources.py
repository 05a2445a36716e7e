"""What a task uses: resources, mounts and room for its output. Sidecars use the same."""

from daemon.jobspec.decode.shapes import (
    Child,
    Form,
    Shape,
    optional_flag,
    optional_integer,
    optional_text,
    plain_text,
    text_list,
)
from daemon.jobspec.decode.tables.network import NETWORK
from daemon.jobspec.decode.tables.placement import AFFINITY, CONSTRAINT

_DEVICE = Shape(optional_integer("count"), {**CONSTRAINT, **AFFINITY}, always={"Name": ""})
_RESOURCES = Shape(
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
        "device": Child("Devices", _DEVICE, ("Name",), Form.MANY),
        "numa": Child("NUMA", Shape({**plain_text("affinity"), **text_list("devices")})),
    },
)
_LOGS = Shape(
    {
        **optional_integer("max_files", max_file_size="MaxFileSizeMB"),
        **optional_flag("disabled", "enabled"),
    }
)
_VOLUME_MOUNT = Shape(
    {
        **optional_text("volume", "destination", "propagation_mode", "selinux_label"),
        **optional_flag("read_only"),
    }
)

RESOURCES = {"resources": Child("Resources", _RESOURCES)}
LOGS = {"logs": Child("LogConfig", _LOGS)}
VOLUME_MOUNTS = {"volume_mount": Child("VolumeMounts", _VOLUME_MOUNT, form=Form.MANY)}

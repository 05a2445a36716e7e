"""Host volumes created through the API: a created directory, or an existing one."""

import msgspec

from storage.records.base import Int64, Record
from storage.records.constraints import Constraint
from storage.records.group import READER_ONLY

# Kinds: the daemon creates the directory, or an existing path is registered.
MKDIR, REGISTERED = "mkdir", ""
# A volume is usable if it is ready. Otherwise, its directory is being created or deleted.
PENDING, READY, DELETING = "pending", "ready", "deleting"
ACCESS_MODES = frozenset({READER_ONLY, "single-node-writer", "single-node-multi-writer"})
FILE_SYSTEM = "file-system"


class Capability(Record, frozen=True, kw_only=True):
    """A permitted combination of access mode and attachment mode of a volume."""

    attachment_mode: str = ""
    access_mode: str = ""


class DynamicVolume(Record, frozen=True, kw_only=True):
    """An API-created volume; capacities are in bytes, times in nanoseconds."""

    namespace: str = ""
    id: str = ""
    name: str = ""
    plugin_id: str = ""
    node_pool: str = ""
    node_id: str = ""
    constraints: list[Constraint] | None = None
    requested_capacity_min_bytes: Int64 = 0
    requested_capacity_max_bytes: Int64 = 0
    capacity_bytes: Int64 = 0
    requested_capabilities: list[Capability] | None = None
    parameters: dict[str, str] | None = None
    host_path: str = ""
    state: str = ""
    create_index: int = 0
    create_time: int = 0
    modify_index: int = 0
    modify_time: int = 0

    @property
    def is_read_only(self) -> bool:
        """Return whether the volume is read-only."""
        modes = [
            requested_capability.access_mode
            for requested_capability in self.requested_capabilities or ()
        ]
        return bool(modes) and all(mode == READER_ONLY for mode in modes)

    def on_node(self) -> dict[str, object]:
        """Return the volume as a node attribute."""
        return {
            "Name": self.name,
            "Path": self.host_path,
            "ReadOnly": self.is_read_only,
            "ID": self.id,
            "Namespace": self.namespace,
            "Capabilities": msgspec.to_builtins(self.requested_capabilities or []),
        }


class HostVolumeStub(Record, frozen=True, kw_only=True):
    """A volume in listings."""

    namespace: str
    id: str
    name: str
    plugin_id: str
    node_pool: str
    node_id: str
    capacity_bytes: int
    state: str
    create_index: int
    create_time: int
    modify_index: int
    modify_time: int


def stub_of(volume: DynamicVolume) -> HostVolumeStub:
    """Return a volume in listing form."""
    return HostVolumeStub(
        **{name: getattr(volume, name) for name in HostVolumeStub.__struct_fields__}
    )

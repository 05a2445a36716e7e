"""The resources of an allocation, for preemption and for waiting until the allocation ends."""

from collections.abc import Set

import msgspec


class ResourceHolder(msgspec.Struct, frozen=True, kw_only=True):
    """A non-terminal allocation of any job, with its resources.

    CPU is in MHz, memory and disk in MB. `ending` is true if the allocation is no longer desired.
    Such an allocation holds its resources until its tasks have ended.
    """

    id: str
    namespace: str
    job_id: str
    job_type: str
    task_group: str
    priority: int  # the priority of the job, in the allocation's version
    node_id: str
    alloc_modify_index: int
    ending: bool = False
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    ports: frozenset[int] = frozenset()
    cores: frozenset[int] = frozenset()
    device_ids: frozenset[str] = frozenset()

    def without(self, ports: Set[int], cores: Set[int], device_ids: Set[str]) -> "ResourceHolder":
        """Return a copy without these resources, which another allocation also holds."""
        return msgspec.structs.replace(
            self,
            ports=self.ports - ports,
            cores=self.cores - cores,
            device_ids=self.device_ids - device_ids,
        )

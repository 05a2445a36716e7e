"""What an allocation holds of its node, as far as others may have to wait for it or displace it."""

from collections.abc import Set

import msgspec


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """An allocation of any job that has not ended, and what it holds: MHz, MB, MB, and what is exclusive.

    `ending` when it is not wanted any more: it holds what it has until its tasks have ended.
    """

    id: str
    namespace: str
    job_id: str
    job_type: str
    task_group: str
    priority: int  # of its job, in the version that it runs
    node_id: str
    alloc_modify_index: int
    ending: bool = False
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    ports: frozenset[int] = frozenset()
    cores: frozenset[int] = frozenset()
    device_ids: frozenset[str] = frozenset()

    def without(self, ports: Set[int], cores: Set[int], device_ids: Set[str]) -> "Holder":
        """Return it without what something else holds as well."""
        return msgspec.structs.replace(
            self,
            ports=self.ports - ports,
            cores=self.cores - cores,
            device_ids=self.device_ids - device_ids,
        )

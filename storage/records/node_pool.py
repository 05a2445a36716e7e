"""The pool of nodes: jobs ask for one, nodes are in one."""

from storage.records.base import HOUR, Duration, Record

BUILT_IN = {
    "all": "Node pool with all nodes in the cluster.",
    "default": "Default node pool.",
}


class NodePool(Record, frozen=True, kw_only=True):
    """A pool of nodes; `hash` is base64 and changes with the rest."""

    name: str = ""
    description: str = ""
    meta: dict[str, str] | None = None
    node_identity_ttl: Duration = 24 * HOUR
    scheduler_configuration: dict[str, object] | None = None
    hash: str | None = None
    create_index: int = 1
    modify_index: int = 1

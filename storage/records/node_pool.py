"""The node pool, which restricts the nodes of a job."""

from storage.records.base import HOUR, Record, Span

BUILT_IN = {
    "all": "Node pool with all nodes in the cluster.",
    "default": "Default node pool.",
}


class NodePool(Record, frozen=True, kw_only=True):
    """A node pool; `hash` is base64 and changes with the other fields."""

    name: str = ""
    description: str = ""
    meta: dict[str, str] | None = None
    node_identity_ttl: Span = 24 * HOUR
    scheduler_configuration: dict[str, object] | None = None
    hash: str | None = None
    create_index: int = 1
    modify_index: int = 1

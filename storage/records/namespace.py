"""The namespace, which separates the jobs of different teams."""

from storage.records.base import Record


class NamespaceCapabilities(Record, frozen=True, kw_only=True):
    """The features that jobs of a namespace may use.

    Without a list of enabled features, every feature that is not disabled is permitted.
    """

    enabled_task_drivers: list[str] | None = None
    disabled_task_drivers: list[str] | None = None
    enabled_network_modes: list[str] | None = None
    disabled_network_modes: list[str] | None = None


class Namespace(Record, frozen=True, kw_only=True):
    """A namespace; `hash` is base64 and changes with the other fields."""

    name: str = ""
    description: str = ""
    quota: str = ""
    capabilities: NamespaceCapabilities | None = None
    node_pool_configuration: dict[str, object] | None = None
    vault_configuration: dict[str, object] | None = None
    consul_configuration: dict[str, object] | None = None
    meta: dict[str, str] | None = None
    required_extra_claims: list[str] | None = None
    optional_extra_claims: list[str] | None = None
    hash: str | None = None
    create_index: int = 0
    modify_index: int = 0

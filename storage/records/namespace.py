"""The namespace, which separates the jobs of different teams."""

from collections.abc import Mapping
from typing import ClassVar

from storage.records.base import Record

_NO_CLUSTERS = "Steward connects to no Consul or Vault cluster"


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

    inert: ClassVar[Mapping[str, str]] = {
        "quota": "Steward has no quotas",
        "node_pool_configuration": "jobs of every namespace may use every node pool",
        "vault_configuration": _NO_CLUSTERS,
        "consul_configuration": _NO_CLUSTERS,
        "required_extra_claims": "only jobs set claims of workload identities",
        "optional_extra_claims": "only jobs set claims of workload identities",
    }

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

"""The Vault API in one table: path, operations, and whether a token is required."""

from typing import TYPE_CHECKING

import msgspec

from daemon.identity.login_request import FIELDS as LOGIN
from daemon.web.lazy import LazyModule
from daemon.web.request import Endpoint

if TYPE_CHECKING:
    from daemon.api import (
        auth_mounts,
        cloud_login,
        groups,
        leases,
        oidc,
        vault_entities,
        vault_policies,
        vault_sys,
        vault_tokens,
        wrapping,
    )
else:  # each module is imported at its first request
    cloud_login = LazyModule("daemon.api.cloud_login")
    vault_entities = LazyModule("daemon.api.vault_entities")
    groups = LazyModule("daemon.api.groups")
    leases = LazyModule("daemon.api.leases")
    auth_mounts = LazyModule("daemon.api.auth_mounts")
    oidc = LazyModule("daemon.api.oidc")
    vault_policies = LazyModule("daemon.api.vault_policies")
    vault_sys = LazyModule("daemon.api.vault_sys")
    vault_tokens = LazyModule("daemon.api.vault_tokens")
    wrapping = LazyModule("daemon.api.wrapping")

# Documents that other services need to verify the daemon's identity tokens.
PUBLIC = (
    Endpoint(
        "/v1/identity/oidc/plugins/.well-known/openid-configuration",
        read=oidc.plugin_discovery,
        is_open=True,
        is_bare=True,
    ),
    Endpoint(
        "/v1/identity/oidc/plugins/.well-known/keys",
        read=oidc.keys,
        is_open=True,
        is_bare=True,
    ),
)

# Paths that are not in this table do not exist. If two paths match, the first one counts.
_TABLE: tuple[Endpoint, ...] = (
    Endpoint("/v1/sys/health", read=vault_sys.health, is_open=True, is_bare=True),
    Endpoint("/v1/sys/seal-status", read=vault_sys.seal_status, is_open=True, is_bare=True),
    Endpoint("/v1/sys/init", read=vault_sys.initialized, is_open=True, is_bare=True),
    Endpoint("/v1/sys/leader", read=vault_sys.leader, is_open=True, is_bare=True),
    Endpoint("/v1/sys/ha-status", read=vault_sys.ha_status),
    Endpoint("/v1/sys/plugins/catalog", read=vault_sys.catalog),
    Endpoint("/v1/sys/plugins/catalog/auth", list=vault_sys.list_methods, knows=(), lists_all=True),
    Endpoint("/v1/sys/plugins/catalog/auth/{plugin}", read=vault_sys.read_method),
    Endpoint("/v1/sys/internal/ui/mounts", read=auth_mounts.mount_response, is_open=True),
    Endpoint("/v1/sys/internal/ui/mounts/auth/{path}", read=auth_mounts.mount_detail, is_open=True),
    Endpoint("/v1/sys/internal/ui/mounts/{path}", read=auth_mounts.not_shown, is_open=True),
    Endpoint("/v1/sys/internal/ui/resultant-acl", read=vault_policies.resultant_acl),
    Endpoint("/v1/sys/capabilities", write=vault_policies.capabilities),
    Endpoint("/v1/sys/capabilities-self", write=vault_policies.capabilities_self),
    Endpoint("/v1/sys/capabilities-accessor", write=vault_policies.capabilities_accessor),
    Endpoint("/v1/sys/policies/acl", list=vault_policies.index),
    Endpoint(
        "/v1/sys/policies/acl/{policy}",
        read=vault_policies.read,
        write=vault_policies.write,
        delete=vault_policies.delete,
    ),
    Endpoint(
        "/v1/sys/policy",
        read=vault_policies.list_policies_legacy,
        list=vault_policies.list_policies_legacy,
    ),
    Endpoint(
        "/v1/sys/policy/{policy}",
        read=vault_policies.read_policy_legacy,
        write=vault_policies.write,
        delete=vault_policies.delete,
    ),
    Endpoint("/v1/sys/wrapping/wrap", write=wrapping.wrap),
    Endpoint("/v1/sys/wrapping/lookup", read=wrapping.lookup, write=wrapping.lookup, is_open=True),
    Endpoint("/v1/sys/wrapping/unwrap", write=wrapping.unwrap, is_open=True),
    Endpoint("/v1/sys/wrapping/rewrap", write=wrapping.rewrap, is_open=True),
    Endpoint("/v1/auth/token/create", write=vault_tokens.create),
    Endpoint("/v1/auth/token/create-orphan", write=vault_tokens.create_orphan),
    Endpoint("/v1/auth/token/create/{name}", write=vault_tokens.create_by_role),
    Endpoint("/v1/auth/token/lookup", read=vault_tokens.lookup, write=vault_tokens.lookup),
    Endpoint(
        "/v1/auth/token/lookup-self", read=vault_tokens.lookup_self, write=vault_tokens.lookup_self
    ),
    Endpoint("/v1/auth/token/lookup-accessor", write=vault_tokens.lookup_accessor),
    Endpoint("/v1/auth/token/accessors", list=vault_tokens.accessors, sudo=True),
    Endpoint("/v1/auth/token/renew", write=vault_tokens.renew),
    Endpoint("/v1/auth/token/renew-self", write=vault_tokens.renew_self),
    Endpoint("/v1/auth/token/renew-accessor", write=vault_tokens.renew_accessor),
    Endpoint("/v1/auth/token/revoke", write=vault_tokens.revoke),
    Endpoint("/v1/auth/token/revoke-self", write=vault_tokens.revoke_self),
    Endpoint("/v1/auth/token/revoke-accessor", write=vault_tokens.revoke_accessor),
    Endpoint("/v1/auth/token/revoke-orphan", write=vault_tokens.revoke_orphan, sudo=True),
    Endpoint("/v1/auth/token/tidy", write=vault_tokens.tidy),
    Endpoint("/v1/auth/token/roles", list=vault_tokens.roles),
    Endpoint(
        "/v1/auth/token/roles/{name}",
        read=vault_tokens.read_role,
        write=vault_tokens.write_role,
        delete=vault_tokens.delete_role,
        exists=vault_tokens.role_exists,
    ),
    Endpoint("/v1/sys/auth", read=auth_mounts.index),
    Endpoint(
        "/v1/sys/auth/{path}/tune", read=auth_mounts.read_tune, write=auth_mounts.tune, sudo=True
    ),
    Endpoint(
        "/v1/sys/auth/{path}",
        read=auth_mounts.read,
        write=auth_mounts.enable,
        delete=auth_mounts.disable,
        sudo=True,
    ),
    # Vault's Go client, and most tools with it, use this path; only `sys/auth` requires sudo.
    Endpoint("/v1/sys/mounts/auth/{path}/tune", read=auth_mounts.read_tune, write=auth_mounts.tune),
    Endpoint("/v1/sys/mounts/auth/{path}", read=auth_mounts.read_as_mount),
    Endpoint("/v1/sys/mounts", read=auth_mounts.engines),
    Endpoint("/v1/sys/leases/lookup", write=leases.look_up),
    Endpoint("/v1/sys/leases/lookup/{prefix}", list=leases.index, sudo=True),
    Endpoint("/v1/sys/leases/renew", write=leases.renew),
    Endpoint("/v1/sys/leases/revoke", write=leases.revoke),
    Endpoint("/v1/sys/leases/revoke-prefix/{prefix}", write=leases.revoke_prefix, sudo=True),
    Endpoint("/v1/sys/leases/revoke-force/{prefix}", write=leases.revoke_prefix, sudo=True),
    Endpoint("/v1/sys/leases/count", read=leases.count),
    Endpoint("/v1/sys/leases/tidy", write=leases.tidy),
    Endpoint("/v1/sys/internal/specs/openapi", read=vault_sys.openapi),
    Endpoint("/v1/sys/key-status", read=vault_sys.key_status),
    Endpoint("/v1/sys/version-history", list=vault_sys.version_history, knows=(), lists_all=True),
    Endpoint("/v1/sys/audit", read=vault_sys.audit_devices, sudo=True),
    Endpoint("/v1/sys/remount", write=auth_mounts.move, sudo=True),
    Endpoint("/v1/sys/remount/status/{move}", read=auth_mounts.read_move),
    Endpoint(
        "/v1/auth/{mount}/config",
        read=cloud_login.read_config,
        write=cloud_login.write_config,
        delete=cloud_login.remove_config,
        exists=cloud_login.config_exists,
    ),
    Endpoint("/v1/auth/{mount}/role", list=cloud_login.list_roles, knows=(), lists_all=True),
    Endpoint(
        "/v1/auth/{mount}/role/{name}",
        read=cloud_login.read_role,
        write=cloud_login.write_role,
        delete=cloud_login.remove_role,
        exists=cloud_login.role_exists,
    ),
    Endpoint("/v1/auth/{mount}/login", write=cloud_login.login, is_open=True, hot=True),
    Endpoint("/v1/auth/{mount}/explain", write=cloud_login.explain),
    Endpoint("/v1/auth/{mount}/rotate-root", write=cloud_login.rotate_secret),
    Endpoint("/v1/auth/{mount}/rotation", read=cloud_login.read_rotation),
    Endpoint("/v1/identity/entity", write=vault_entities.create),
    Endpoint("/v1/identity/entity/id", list=vault_entities.index),
    Endpoint(
        "/v1/identity/entity/id/{entity}",
        read=vault_entities.read,
        write=vault_entities.update_entity,
        delete=vault_entities.remove,
    ),
    Endpoint("/v1/identity/entity/name", list=vault_entities.names),
    Endpoint(
        "/v1/identity/entity/name/{entity}",
        read=vault_entities.read_by_name,
        write=vault_entities.write_by_name,
        delete=vault_entities.remove_by_name,
    ),
    Endpoint("/v1/identity/entity-alias", write=vault_entities.create_alias),
    Endpoint("/v1/identity/entity-alias/id", list=vault_entities.aliases),
    Endpoint(
        "/v1/identity/entity-alias/id/{alias}",
        read=vault_entities.read_alias,
        write=vault_entities.change_alias,
        delete=vault_entities.remove_alias,
    ),
    Endpoint("/v1/identity/group", write=groups.create),
    Endpoint("/v1/identity/group/id", list=groups.index),
    Endpoint(
        "/v1/identity/group/id/{group}",
        read=groups.read,
        write=groups.change,
        delete=groups.remove,
    ),
    Endpoint("/v1/identity/group/name", list=groups.names),
    Endpoint(
        "/v1/identity/group/name/{group}",
        read=groups.read_by_name,
        write=groups.write_by_name,
        delete=groups.remove_by_name,
    ),
    Endpoint("/v1/identity/lookup/group", write=groups.look_up),
    Endpoint("/v1/identity/group-alias", write=groups.create_alias),
    Endpoint("/v1/identity/group-alias/id", list=groups.aliases),
    Endpoint(
        "/v1/identity/group-alias/id/{alias}",
        read=groups.read_alias,
        write=groups.change_alias,
        delete=groups.remove_alias,
    ),
    Endpoint("/v1/identity/lookup/entity", write=vault_entities.lookup_entity),
    Endpoint("/v1/identity/oidc/config", read=oidc.read_config, write=oidc.write_config),
    Endpoint("/v1/identity/oidc/key/{key}", read=oidc.read_key),
    Endpoint(
        "/v1/identity/oidc/.well-known/openid-configuration",
        read=oidc.discovery,
        is_open=True,
        is_bare=True,
    ),
    Endpoint("/v1/identity/oidc/.well-known/keys", read=oidc.keys, is_open=True, is_bare=True),
    *PUBLIC,
)

# --- known fields of writes --------------------------------------------------------------------

# Responses warn of fields that are not listed here, because they have no effect. `a.b` is field b
# of a.
TOKEN = ("token",)
ACCESSOR = ("accessor",)
INCREMENT = ("increment",)
LEASE = ("lease_id",)
NOTHING: tuple[str, ...] = ()

_MOUNT_CONFIG = (
    *("default_lease_ttl", "max_lease_ttl", "listing_visibility", "token_type"),
    *("audit_non_hmac_request_keys", "audit_non_hmac_response_keys"),
    *("passthrough_request_headers", "allowed_response_headers", "identity_token_key"),
)
_KEPT_CONFIG = _MOUNT_CONFIG[4:]
MOUNT = (
    *("path", "type", "description", "local", "seal_wrap", "external_entropy_access", "options"),
    *("plugin_version", *(f"config.{name}" for name in _MOUNT_CONFIG)),
)
KEPT_OF_MOUNT = (
    *("local", "seal_wrap", "external_entropy_access", "options"),
    *(f"config.{name}" for name in _KEPT_CONFIG),
)
TUNE = ("path", "description", "options", "plugin_version", *_MOUNT_CONFIG)
KEPT_OF_TUNE = ("options", *_KEPT_CONFIG)

METHOD = (
    *("tenant_id", "resource", "environment", "client_id", "client_secret"),
    *("root_password_ttl", "max_retries", "retry_delay", "max_retry_delay"),
    *("identity_token_audience", "identity_token_ttl", "rotation_policy", "rotation_schedule"),
    *("rotation_window", "rotation_period", "disable_automated_rotation", "token_file"),
    *("clock_leeway", "look_up_groups", "remove_foreign_passwords"),
)
KEPT_OF_METHOD = ("rotation_policy",)

ROLE = (
    *("bound_service_principal_ids", "bound_group_ids", "bound_subscription_ids"),
    *("bound_resource_groups", "bound_locations", "bound_scale_sets", "alias_metadata"),
    *("token_policies", "token_ttl", "token_max_ttl", "token_period", "token_explicit_max_ttl"),
    *("token_num_uses", "token_no_default_policy", "token_bound_cidrs", "token_type"),
    *("policies", "ttl", "max_ttl", "period", "num_uses", "name"),
)

NEW_TOKEN = (
    *("id", "policies", "meta", "no_parent", "no_default_policy", "renewable", "ttl", "lease"),
    *("type", "explicit_max_ttl", "display_name", "num_uses", "period", "role_name"),
    "entity_alias",
)
TOKEN_ROLE = (
    *("allowed_policies", "allowed_policies_glob", "disallowed_policies"),
    *("disallowed_policies_glob", "allowed_entity_aliases", "orphan", "renewable"),
    *(
        "role_name",
        "path_suffix",
        "token_bound_cidrs",
        "bound_cidrs",
        "explicit_max_ttl",
        "token_explicit_max_ttl",
    ),
    *("token_no_default_policy", "token_num_uses", "period", "token_period", "token_type"),
)
KEPT_OF_TOKEN_ROLE = ("allowed_entity_aliases",)

ENTITY = ("id", "name", "policies", "metadata", "disabled")
ENTITY_ALIAS = ("id", "name", "mount_accessor", "canonical_id", "custom_metadata")
GROUP = ("id", "name", "type", "policies", "metadata", "member_entity_ids", "member_group_ids")
GROUP_ALIAS = ("id", "name", "mount_accessor", "canonical_id")
LOOK_UP_ENTITY = ("id", "name", "alias_name", "alias_mount_accessor")
LOOK_UP_GROUP = (*LOOK_UP_ENTITY, "alias_id")

POLICY = ("name", "policy", "rules", "cas", "cas_required")
PATHS = ("paths", "path")

# By path of the endpoint. A write that is not listed accepts any field (`sys/wrapping/wrap`).
KNOWN: dict[str, tuple[str, ...]] = {
    "/v1/sys/capabilities": (*PATHS, *TOKEN),
    "/v1/sys/capabilities-self": (*PATHS, *TOKEN),
    "/v1/sys/capabilities-accessor": (*PATHS, *ACCESSOR),
    "/v1/sys/policies/acl/{policy}": POLICY,
    "/v1/sys/policy/{policy}": POLICY,
    "/v1/sys/wrapping/lookup": TOKEN,
    "/v1/sys/wrapping/unwrap": TOKEN,
    "/v1/sys/wrapping/rewrap": TOKEN,
    "/v1/auth/token/create": NEW_TOKEN,
    "/v1/auth/token/create-orphan": NEW_TOKEN,
    "/v1/auth/token/create/{name}": NEW_TOKEN,
    "/v1/auth/token/lookup": TOKEN,
    "/v1/auth/token/lookup-self": TOKEN,
    "/v1/auth/token/lookup-accessor": ACCESSOR,
    "/v1/auth/token/renew": (*TOKEN, *INCREMENT),
    "/v1/auth/token/renew-self": (*TOKEN, *INCREMENT),
    "/v1/auth/token/renew-accessor": (*ACCESSOR, *INCREMENT),
    "/v1/auth/token/revoke": TOKEN,
    "/v1/auth/token/revoke-self": NOTHING,
    "/v1/auth/token/revoke-accessor": ACCESSOR,
    "/v1/auth/token/revoke-orphan": TOKEN,
    "/v1/auth/token/tidy": NOTHING,
    "/v1/auth/token/roles/{name}": TOKEN_ROLE,
    "/v1/sys/auth/{path}": MOUNT,
    "/v1/sys/auth/{path}/tune": TUNE,
    "/v1/sys/mounts/auth/{path}/tune": TUNE,
    "/v1/sys/leases/lookup": LEASE,
    "/v1/sys/leases/renew": (*LEASE, *INCREMENT),
    "/v1/sys/leases/revoke": (*LEASE, "sync"),
    "/v1/sys/leases/revoke-prefix/{prefix}": ("sync",),
    "/v1/sys/leases/revoke-force/{prefix}": NOTHING,
    "/v1/sys/leases/tidy": NOTHING,
    "/v1/sys/remount": ("from", "to"),
    "/v1/auth/{mount}/config": METHOD,
    "/v1/auth/{mount}/role/{name}": ROLE,
    "/v1/auth/{mount}/login": LOGIN,
    "/v1/auth/{mount}/explain": LOGIN,
    "/v1/auth/{mount}/rotate-root": NOTHING,
    "/v1/identity/entity": ENTITY,
    "/v1/identity/entity/id/{entity}": ENTITY,
    "/v1/identity/entity/name/{entity}": ENTITY,
    "/v1/identity/entity-alias": ENTITY_ALIAS,
    "/v1/identity/entity-alias/id/{alias}": ENTITY_ALIAS,
    "/v1/identity/group": GROUP,
    "/v1/identity/group/id/{group}": GROUP,
    "/v1/identity/group/name/{group}": GROUP,
    "/v1/identity/group-alias": GROUP_ALIAS,
    "/v1/identity/group-alias/id/{alias}": GROUP_ALIAS,
    "/v1/identity/lookup/entity": LOOK_UP_ENTITY,
    "/v1/identity/lookup/group": LOOK_UP_GROUP,
    "/v1/identity/oidc/config": ("issuer",),
}
# These fields are stored and shown, but have no effect.
KEPT: dict[str, tuple[str, ...]] = {
    "/v1/auth/token/roles/{name}": KEPT_OF_TOKEN_ROLE,
    "/v1/sys/auth/{path}": KEPT_OF_MOUNT,
    "/v1/sys/auth/{path}/tune": KEPT_OF_TUNE,
    "/v1/sys/mounts/auth/{path}/tune": KEPT_OF_TUNE,
    "/v1/auth/{mount}/config": KEPT_OF_METHOD,
}

ENDPOINTS: tuple[Endpoint, ...] = tuple(
    msgspec.structs.replace(
        endpoint, knows=KNOWN.get(endpoint.path, endpoint.knows), keeps=KEPT.get(endpoint.path, ())
    )
    for endpoint in _TABLE
)

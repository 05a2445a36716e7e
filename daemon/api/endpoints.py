"""The secrets side on one screen: path, what each operation does, and who needs no token."""

from typing import TYPE_CHECKING

import msgspec

from daemon.identity.request import FIELDS as LOGIN
from daemon.web.late import LateModule
from daemon.web.request import Endpoint

if TYPE_CHECKING:
    from daemon.api import (
        cloud,
        entities,
        groups,
        leases,
        mounts,
        oidc,
        policies,
        system,
        tokens,
        wrapping,
    )
else:  # each is imported when it is first asked for something
    cloud = LateModule("daemon.api.cloud")
    entities = LateModule("daemon.api.entities")
    groups = LateModule("daemon.api.groups")
    leases = LateModule("daemon.api.leases")
    mounts = LateModule("daemon.api.mounts")
    oidc = LateModule("daemon.api.oidc")
    policies = LateModule("daemon.api.policies")
    system = LateModule("daemon.api.system")
    tokens = LateModule("daemon.api.tokens")
    wrapping = LateModule("daemon.api.wrapping")

# What others must be able to read to believe what the daemon says of its login methods.
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

# What is not in this table does not exist. Of two paths that fit, the first one counts.
_TABLE: tuple[Endpoint, ...] = (
    Endpoint("/v1/sys/health", read=system.health, is_open=True, is_bare=True),
    Endpoint("/v1/sys/seal-status", read=system.seal_status, is_open=True, is_bare=True),
    Endpoint("/v1/sys/init", read=system.initialized, is_open=True, is_bare=True),
    Endpoint("/v1/sys/leader", read=system.leader, is_open=True, is_bare=True),
    Endpoint("/v1/sys/plugins/catalog", read=system.catalog),
    Endpoint("/v1/sys/plugins/catalog/auth", list=system.list_methods),
    Endpoint("/v1/sys/plugins/catalog/auth/{plugin}", read=system.read_method),
    Endpoint("/v1/sys/internal/ui/mounts", read=mounts.shown, is_open=True),
    Endpoint("/v1/sys/internal/ui/mounts/auth/{path}", read=mounts.shown_one, is_open=True),
    Endpoint("/v1/sys/internal/ui/mounts/{path}", read=mounts.not_shown, is_open=True),
    Endpoint("/v1/sys/internal/ui/resultant-acl", read=policies.resultant),
    Endpoint("/v1/sys/capabilities", write=policies.capabilities),
    Endpoint("/v1/sys/capabilities-self", write=policies.capabilities_self),
    Endpoint("/v1/sys/capabilities-accessor", write=policies.capabilities_accessor),
    Endpoint("/v1/sys/policies/acl", list=policies.index),
    Endpoint(
        "/v1/sys/policies/acl/{policy}",
        read=policies.read,
        write=policies.write,
        delete=policies.delete,
    ),
    Endpoint("/v1/sys/policy", read=policies.old_index, list=policies.old_index),
    Endpoint(
        "/v1/sys/policy/{policy}",
        read=policies.old_read,
        write=policies.write,
        delete=policies.delete,
    ),
    Endpoint("/v1/sys/wrapping/wrap", write=wrapping.wrap),
    Endpoint("/v1/sys/wrapping/lookup", read=wrapping.lookup, write=wrapping.lookup, is_open=True),
    Endpoint("/v1/sys/wrapping/unwrap", write=wrapping.unwrap, is_open=True),
    Endpoint("/v1/sys/wrapping/rewrap", write=wrapping.rewrap, is_open=True),
    Endpoint("/v1/auth/token/create", write=tokens.create),
    Endpoint("/v1/auth/token/create-orphan", write=tokens.create_orphan),
    Endpoint("/v1/auth/token/create/{role}", write=tokens.create_by_role),
    Endpoint("/v1/auth/token/lookup", read=tokens.lookup, write=tokens.lookup),
    Endpoint("/v1/auth/token/lookup-self", read=tokens.lookup_self, write=tokens.lookup_self),
    Endpoint("/v1/auth/token/lookup-accessor", write=tokens.lookup_accessor),
    Endpoint("/v1/auth/token/accessors", list=tokens.accessors, sudo=True),
    Endpoint("/v1/auth/token/renew", write=tokens.renew),
    Endpoint("/v1/auth/token/renew-self", write=tokens.renew_self),
    Endpoint("/v1/auth/token/renew-accessor", write=tokens.renew_accessor),
    Endpoint("/v1/auth/token/revoke", write=tokens.revoke),
    Endpoint("/v1/auth/token/revoke-self", write=tokens.revoke_self),
    Endpoint("/v1/auth/token/revoke-accessor", write=tokens.revoke_accessor),
    Endpoint("/v1/auth/token/revoke-orphan", write=tokens.revoke_orphan, sudo=True),
    Endpoint("/v1/auth/token/tidy", write=tokens.tidy),
    Endpoint("/v1/auth/token/roles", list=tokens.roles),
    Endpoint(
        "/v1/auth/token/roles/{role}",
        read=tokens.read_role,
        write=tokens.write_role,
        delete=tokens.delete_role,
        exists=tokens.role_exists,
    ),
    Endpoint("/v1/sys/auth", read=mounts.index),
    Endpoint("/v1/sys/auth/{path}/tune", read=mounts.read_tune, write=mounts.tune, sudo=True),
    Endpoint(
        "/v1/sys/auth/{path}",
        read=mounts.read,
        write=mounts.enable,
        delete=mounts.disable,
        sudo=True,
    ),
    # The Go client, and with it most tools, tunes here; only `sys/auth` asks for sudo.
    Endpoint("/v1/sys/mounts/auth/{path}/tune", read=mounts.read_tune, write=mounts.tune),
    Endpoint("/v1/sys/mounts/auth/{path}", read=mounts.read_as_mount),
    Endpoint("/v1/sys/mounts", read=mounts.engines),
    Endpoint("/v1/sys/leases/lookup", write=leases.look_up),
    Endpoint("/v1/sys/leases/lookup/{prefix}", list=leases.index, sudo=True),
    Endpoint("/v1/sys/leases/renew", write=leases.renew),
    Endpoint("/v1/sys/leases/revoke", write=leases.revoke),
    Endpoint("/v1/sys/leases/revoke-prefix/{prefix}", write=leases.revoke_prefix, sudo=True),
    Endpoint("/v1/sys/leases/revoke-force/{prefix}", write=leases.revoke_prefix, sudo=True),
    Endpoint("/v1/sys/leases/count", read=leases.count),
    Endpoint("/v1/sys/leases/tidy", write=leases.tidy),
    Endpoint("/v1/sys/internal/specs/openapi", read=system.openapi),
    Endpoint("/v1/sys/key-status", read=system.key_status),
    Endpoint("/v1/sys/version-history", list=system.version_history),
    Endpoint("/v1/sys/audit", read=system.audit_devices, sudo=True),
    Endpoint("/v1/sys/remount", write=mounts.move, sudo=True),
    Endpoint("/v1/sys/remount/status/{move}", read=mounts.read_move),
    Endpoint(
        "/v1/auth/{mount}/config",
        read=cloud.read_config,
        write=cloud.write_config,
        delete=cloud.remove_config,
        exists=cloud.config_exists,
    ),
    Endpoint("/v1/auth/{mount}/role", list=cloud.list_roles, knows=()),
    Endpoint(
        "/v1/auth/{mount}/role/{name}",
        read=cloud.read_role,
        write=cloud.write_role,
        delete=cloud.remove_role,
        exists=cloud.role_exists,
    ),
    Endpoint("/v1/auth/{mount}/login", write=cloud.login, is_open=True, hot=True),
    Endpoint("/v1/auth/{mount}/explain", write=cloud.explain),
    Endpoint("/v1/auth/{mount}/rotate-root", write=cloud.rotate_secret),
    Endpoint("/v1/auth/{mount}/rotation", read=cloud.read_rotation),
    Endpoint("/v1/identity/entity", write=entities.create),
    Endpoint("/v1/identity/entity/id", list=entities.index),
    Endpoint(
        "/v1/identity/entity/id/{entity}",
        read=entities.read,
        write=entities.change,
        delete=entities.remove,
    ),
    Endpoint("/v1/identity/entity/name", list=entities.names),
    Endpoint(
        "/v1/identity/entity/name/{entity}",
        read=entities.read_by_name,
        write=entities.write_by_name,
        delete=entities.remove_by_name,
    ),
    Endpoint("/v1/identity/entity-alias", write=entities.create_alias),
    Endpoint("/v1/identity/entity-alias/id", list=entities.aliases),
    Endpoint(
        "/v1/identity/entity-alias/id/{alias}",
        read=entities.read_alias,
        write=entities.change_alias,
        delete=entities.remove_alias,
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
    Endpoint("/v1/identity/lookup/entity", write=entities.look_up),
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

# ---- the fields that writes know --------------------------------------------------------------

# Answers name the fields that are not here, so that nobody believes in what has no effect. A dot
# stands before a field inside of another.
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
)
TOKEN_ROLE = (
    *("allowed_policies", "allowed_policies_glob", "disallowed_policies"),
    *("disallowed_policies_glob", "allowed_entity_aliases", "orphan", "renewable"),
    *(
        "role_name",
        "path_suffix",
        "token_bound_cidrs",
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

POLICY = ("name", "policy", "rules")
PATHS = ("paths", "path")

# By the path of the endpoint; a write that is not here takes whatever it is given (`sys/wrapping/wrap`).
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
    "/v1/auth/token/create/{role}": NEW_TOKEN,
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
    "/v1/auth/token/roles/{role}": TOKEN_ROLE,
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
# These are stored and shown, and nothing acts on them.
KEPT: dict[str, tuple[str, ...]] = {
    "/v1/auth/token/roles/{role}": KEPT_OF_TOKEN_ROLE,
    "/v1/sys/auth/{path}": KEPT_OF_MOUNT,
    "/v1/sys/auth/{path}/tune": KEPT_OF_TUNE,
    "/v1/sys/mounts/auth/{path}/tune": KEPT_OF_TUNE,
    "/v1/auth/{mount}/config": KEPT_OF_METHOD,
}

ENDPOINTS: tuple[Endpoint, ...] = tuple(
    msgspec.structs.replace(one, knows=KNOWN.get(one.path, one.knows), keeps=KEPT.get(one.path, ()))
    for one in _TABLE
)

"""The secrets side on one screen: path, what each operation does, and who needs no token."""

from typing import TYPE_CHECKING

from daemon.identity.request import FIELDS
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
ENDPOINTS: tuple[Endpoint, ...] = (
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
    Endpoint("/v1/auth/{mount}/login", write=cloud.login, is_open=True, knows=FIELDS, hot=True),
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

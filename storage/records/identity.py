"""Cloud identity login: mounts of auth methods, their configurations and roles.

Times and durations are seconds, as in the Vault API.
"""

from collections.abc import Sequence

import msgspec

SYSTEM_TTL = 768 * 3600  # default and maximum lease of a token, unless a setting is lower


class MountConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a mount for its tokens; 0 means the system's default."""

    default_lease_ttl: int = 0
    max_lease_ttl: int = 0
    listing_visibility: str = ""
    token_type: str = "default-service"  # noqa: S105  # a type, not a secret
    audit_non_hmac_request_keys: Sequence[str] | None = None
    audit_non_hmac_response_keys: Sequence[str] | None = None
    passthrough_request_headers: Sequence[str] | None = None
    allowed_response_headers: Sequence[str] | None = None
    identity_token_key: str = ""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """An auth method at a path that ends in a slash."""

    path: str
    type: str
    accessor: str
    uuid: str
    description: str = ""
    local: bool = False
    seal_wrap: bool = False
    external_entropy_access: bool = False
    options: dict[str, str] | None = None
    config: MountConfig = MountConfig()
    moved_from: str = ""  # path before the last move
    move_id: str = ""  # of the last move; clients query its status with it

    @property
    def latest_move(self) -> str:
        """Return the ID of the latest move, or `-` if the mount was never moved."""
        return self.move_id or "-"

    @property
    def default_ttl(self) -> int:
        """Return the default TTL of a token in seconds."""
        return self.config.default_lease_ttl or SYSTEM_TTL

    @property
    def max_ttl(self) -> int:
        """Return the maximum TTL of a token in seconds."""
        return self.config.max_lease_ttl or SYSTEM_TTL


class MethodConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration of an auth method; its secret is stored separately, encrypted.

    An empty string means that the daemon's environment defines the value.
    """

    tenant_id: str = ""
    resource: str = ""
    environment: str = ""
    client_id: str = ""
    root_password_ttl: int = 182 * 86400 + 43200  # half a year
    max_retries: int = 3
    retry_delay: int = 4
    max_retry_delay: int = 60
    identity_token_audience: str = ""
    identity_token_ttl: int = 0
    rotation_schedule: str = ""
    rotation_window: int = 0
    rotation_period: int = 0
    rotation_policy: str = ""
    disable_automated_rotation: bool = False
    root_password_expires_at: int | None = None  # of the newest secret, after a rotation
    # Fields that Vault does not have, shown only if they are set.
    token_file: str = ""  # path of a federated token that the platform writes
    clock_leeway: int = 0
    look_up_groups: bool = False
    remove_foreign_passwords: bool = False


class LoginRole(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The bindings of a role, and the properties of its tokens. None means never set."""

    bound_service_principal_ids: list[str] | None = None
    bound_group_ids: list[str] | None = None
    bound_subscription_ids: list[str] | None = None
    bound_resource_groups: list[str] | None = None
    bound_locations: list[str] | None = None
    bound_scale_sets: list[str] | None = None
    token_policies: list[str] = []
    token_ttl: int = 0
    token_max_ttl: int = 0
    token_period: int = 0
    token_explicit_max_ttl: int = 0
    token_num_uses: int = 0
    token_no_default_policy: bool = False
    token_bound_cidrs: list[str] = []
    token_type: str = "default"  # noqa: S105  # a type, not a secret
    alias_metadata: dict[str, str] = {}
    # Older names of some fields, shown if the last write used them.
    policies: list[str] = []
    ttl: int = 0
    max_ttl: int = 0
    period: int = 0
    num_uses: int = 0

    @property
    def asks_resources(self) -> bool:
        """Return whether a login must check cloud resources in addition to the token's claims."""
        return bool(
            self.bound_resource_groups
            or self.bound_subscription_ids
            or self.bound_locations
            or self.bound_scale_sets
        )


class DirectoryKey(msgspec.Struct, frozen=True, kw_only=True):
    """A signing key of an identity provider. Modulus `n` and exponent `e` are text, as published.

    `gone_at` is the time at which Steward found that the provider no longer publishes the key.
    """

    kid: str
    n: str
    e: str
    gone_at: int | None = None


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of an identity provider. Times are in nanoseconds."""

    issuer: str
    keys: list[DirectoryKey]
    fetched_at: int


class Alias(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A principal of one mount. Times are in nanoseconds."""

    id: str
    entity_id: str
    mount: str  # accessor
    name: str
    metadata: dict[str, str] = {}
    custom_metadata: dict[str, str] | None = None  # set by operators
    created_at: int
    updated_at: int


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A principal across all its logins. Times are in nanoseconds."""

    id: str
    name: str
    policies: list[str] = []
    metadata: dict[str, str] | None = None
    is_disabled: bool = False
    groups: list[str] = []  # of the identity provider, at the last login
    created_at: int
    updated_at: int


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of entities and groups. Its members are separate rows. Times are in nanoseconds."""

    id: str
    name: str
    type: str = "internal"  # the identity provider determines the members of an `external` group
    policies: list[str] = []
    metadata: dict[str, str] | None = None
    has_had_entities: bool = False  # shows an empty list instead of null
    has_had_groups: bool = False
    has_had_parents: bool = False
    version: int = 1  # counts the changes
    created_at: int
    updated_at: int


class GroupAlias(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a group in the `groups` claim of a mount's tokens. Times are in nanoseconds."""

    id: str
    group_id: str
    mount: str  # accessor
    name: str
    created_at: int
    updated_at: int


class Rotation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a client secret rotation; the secrets are stored separately, encrypted.

    Times are in nanoseconds. `pending` is the key of a new secret that is not in use yet. `unclean`
    is true while older secrets must still be deleted. `attempt` is the name of the latest secret
    that was requested and has not come into use. The directory may have created it without an
    answer.
    """

    since: int  # start of the current period or schedule
    current: str = ""  # key of the secret in use, if Steward has created it
    pending: str = ""
    pending_since: int = 0
    pending_ends_at: int = 0
    attempt: str = ""
    unclean: bool = False
    rotated_at: int = 0
    problem: str = ""
    failures: int = 0
    try_again_at: int = 0

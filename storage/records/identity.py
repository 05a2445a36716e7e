"""Login by a cloud identity: where methods are mounted, how they are set up, and their roles.

Times and spans of time are seconds here, as that API has them.
"""

from collections.abc import Sequence

import msgspec

SYSTEM_TTL = 768 * 3600  # what the lease of a token is, and is at most, unless something says less


class MountConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a mount says about the tokens that it issues; 0 means the system's default."""

    default_lease_ttl: int = 0
    max_lease_ttl: int = 0
    listing_visibility: str = ""
    token_type: str = "default-service"  # noqa: S105  # a kind, no secret
    audit_non_hmac_request_keys: Sequence[str] | None = None
    audit_non_hmac_response_keys: Sequence[str] | None = None
    passthrough_request_headers: Sequence[str] | None = None
    allowed_response_headers: Sequence[str] | None = None
    identity_token_key: str = ""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """A login method at a path; the path ends in a slash."""

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
    moved_from: str = ""  # path before the latest move
    move_id: str = ""  # of the latest move; a client asks by it how the move went

    @property
    def default_ttl(self) -> int:
        """Return the seconds that a token lives unless its role says otherwise."""
        return self.config.default_lease_ttl or SYSTEM_TTL

    @property
    def max_ttl(self) -> int:
        """Return the seconds that a token lives at most."""
        return self.config.max_lease_ttl or SYSTEM_TTL


class MethodConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a login method reaches its cloud; its secret is kept elsewhere, sealed.

    An empty text means that the environment of the daemon says it.
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
    root_password_expires_at: int | None = None  # after a completed rotation
    # What the peer does not have; shown only where it is used.
    token_file: str = ""  # that holds a federated token, written by the platform
    clock_leeway: int = 0
    look_up_groups: bool = False
    remove_foreign_passwords: bool = False


class LoginRole(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may log in with a role, and what the token is like. None was never set."""

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
    token_type: str = "default"  # noqa: S105  # a kind, no secret
    alias_metadata: dict[str, str] = {}
    # Older names of some fields: shown as long as the last write used them.
    policies: list[str] = []
    ttl: int = 0
    max_ttl: int = 0
    period: int = 0
    num_uses: int = 0

    @property
    def asks_resources(self) -> bool:
        """Tell whether claims are not enough: the cloud must be asked about the resource."""
        return bool(
            self.bound_resource_groups
            or self.bound_subscription_ids
            or self.bound_locations
            or self.bound_scale_sets
        )


class DirectoryKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key with which a directory signs: modulus and exponent as its document spells them.

    `gone_at` is when it was found that the directory does not publish it any more.
    """

    kid: str
    n: str
    e: str
    gone_at: int | None = None


class Directory(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory says about itself. Times are nanoseconds."""

    issuer: str
    keys: list[DirectoryKey]
    fetched_at: int


class Alias(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A principal as one mount knows it. Times are nanoseconds."""

    id: str
    entity_id: str
    mount: str  # accessor
    name: str
    metadata: dict[str, str] = {}
    custom_metadata: dict[str, str] | None = None  # from people
    created_at: int
    updated_at: int


class Entity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Somebody or something, whatever it logs in with. Times are nanoseconds."""

    id: str
    name: str
    policies: list[str] = []
    metadata: dict[str, str] | None = None
    is_disabled: bool = False
    groups: list[str] = []  # of the directory, at the last login
    created_at: int
    updated_at: int


class Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of entities and groups; its members are rows of their own. Times are nanoseconds."""

    id: str
    name: str
    type: str = "internal"  # of an `external` one the directory decides who is a member
    policies: list[str] = []
    metadata: dict[str, str] | None = None
    has_had_entities: bool = False  # then an empty list is shown, else null
    has_had_groups: bool = False
    has_had_parents: bool = False
    version: int = 1  # counts the changes
    created_at: int
    updated_at: int


class GroupAlias(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a group in the `groups` claim of a mount's tokens. Times are nanoseconds."""

    id: str
    group_id: str
    mount: str  # accessor
    name: str
    created_at: int
    updated_at: int


class Rotation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far the rotation of a client secret is; the secrets themselves are kept sealed.

    Times are nanoseconds. `pending` is the key of a new secret that is not in use yet, `unclean`
    tells that older secrets are still to be removed.
    """

    since: int  # from when on a period or schedule counts
    current: str = ""  # key of the secret in use, if it was made here
    pending: str = ""
    pending_since: int = 0
    pending_ends_at: int = 0
    unclean: bool = False
    rotated_at: int = 0
    problem: str = ""
    failures: int = 0
    try_again_at: int = 0

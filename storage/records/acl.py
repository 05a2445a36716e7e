"""Access control: tokens, policies, and roles, which are named sets of policies.

The two APIs use the same tokens. A token gets its permissions from its policies. In the jobs API, a
token with the policy `root` is a management token.
"""

from enum import StrEnum

import msgspec

from storage.records.base import Record

ROOT = "root"  # the policy with all permissions
DEFAULT = "default"  # the default policy of Vault API tokens
ANONYMOUS = "anonymous"  # policy and accessor of requests without a token
WRAPPING = "response-wrapping"  # the policy of a token for a wrapped response
SPENT = -1  # remaining uses during the last use, as Vault shows it; 0 would mean no limit
BUILT_IN = frozenset({ROOT, DEFAULT})


class TokenKind(StrEnum):
    """The kind of a token. Only service tokens are stored; a batch token contains all its data."""

    SERVICE = "service"
    BATCH = "batch"


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of a token without its secret. Times and durations are in nanoseconds."""

    accessor: str
    name: str = ""
    kind: TokenKind = TokenKind.SERVICE
    policies: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()  # IDs of jobs API roles
    is_global: bool = False
    path: str = ""  # the request that created it, such as `auth/token/create`
    mount: str = ""  # accessor of the auth method that issued it
    # Of a batch token: the latest move of that auth method before the login, `-` if there was none.
    # Empty in tokens of earlier versions.
    move: str = ""
    # Accessor of the parent token, or empty. If the parent is revoked, the token is revoked too.
    parent: str = ""
    role: str = ""  # the token role that created it, in the Vault API
    entity_id: str = ""
    # The person of a token without an entity: issuer and subject of the login, or the parent's person.
    subject: str = ""
    allocation: str = ""  # the allocation of a task's token; the token is revoked at its end
    meta: dict[str, str] | None = None
    bound_cidrs: tuple[str, ...] = ()
    ttl: int = 0  # at creation; 0 means no expiry
    max_ttl: int = 0
    explicit_max_ttl: int = 0
    period: int = 0
    renewable: bool = False
    created_at: int
    renewed_at: int | None = None
    expires_at: int | None = None
    uses: int = 0  # maximum number of uses; 0 means no limit
    uses_left: int | None = None
    create_index: int = 0
    modify_index: int = 0

    @property
    def person(self) -> str:
        """Return a text that identifies the owner, and is equal for all tokens of a person."""
        return self.entity_id or self.subject or self.accessor

    @property
    def is_management(self) -> bool:
        """Return whether the token has all permissions."""
        return ROOT in self.policies

    def has_ended(self, now: int) -> bool:
        """Return whether the token has expired."""
        return self.expires_at is not None and self.expires_at <= now


class JobACL(Record, frozen=True, kw_only=True):
    """The tasks to whose workload identity a policy applies."""

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class Policy(Record, frozen=True, kw_only=True):
    """A policy: its name, and the text of its rules.

    `hash` is base64, and changes with the other fields. With `cas_required`, a write through the
    Vault API must state the present version.
    """

    name: str
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None
    hash: str = ""
    version: int = 1
    cas_required: bool = False
    modified_at: int = 0
    create_index: int = 0
    modify_index: int = 0


class PolicyLink(Record, frozen=True, kw_only=True):
    """A policy of a role."""

    name: str


class RoleLink(Record, frozen=True, kw_only=True):
    """A role of a token."""

    id: str = ""
    name: str = ""


class AclRole(Record, frozen=True, kw_only=True):
    """A name for a set of policies."""

    id: str = ""
    name: str = ""
    description: str = ""
    policies: list[PolicyLink] | None = None
    hash: str = ""
    create_index: int = 0
    modify_index: int = 0


class TokenRole(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules and values for tokens created with this token role in the Vault API.

    Durations are in seconds, as in that API.
    """

    name: str
    allowed_policies: tuple[str, ...] = ()
    allowed_policies_glob: tuple[str, ...] = ()
    disallowed_policies: tuple[str, ...] = ()
    disallowed_policies_glob: tuple[str, ...] = ()
    allowed_entity_aliases: tuple[str, ...] = ()
    orphan: bool = False
    renewable: bool = True
    path_suffix: str = ""
    token_bound_cidrs: tuple[str, ...] = ()
    token_explicit_max_ttl: int = 0
    token_no_default_policy: bool = False
    token_num_uses: int = 0
    token_period: int = 0
    token_type: str = "default-service"  # noqa: S105  # a type, not a secret
    # Older names, set if the last write used them; their values are also in the fields above.
    period: int = 0
    explicit_max_ttl: int = 0
    bound_cidrs: tuple[str, ...] = ()

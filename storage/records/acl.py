"""Who may do what: tokens, policies, and roles that name sets of policies.

The two APIs look at the same tokens from two sides. A management token of the jobs side is a
token with the policy `root`; everything else follows from the names of its policies.
"""

from enum import StrEnum

import msgspec

from storage.records.base import Record

ROOT = "root"  # the policy that allows everything
DEFAULT = "default"  # the policy that a token of the secrets side has unless told otherwise
ANONYMOUS = "anonymous"  # the policy, and the accessor, of whoever shows no token
WRAPPING = "response-wrapping"  # the policy of a token that holds an answer
SPENT = -1  # uses left during the last use, as Vault shows it: 0 would read as any number
BUILT_IN = frozenset({ROOT, DEFAULT})


class TokenKind(StrEnum):
    """How a token is kept: a service token has a row, a batch token carries all it is in itself."""

    SERVICE = "service"
    BATCH = "batch"


class Token(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a token; its secret is not. Times and spans are nanoseconds."""

    accessor: str
    name: str = ""
    kind: TokenKind = TokenKind.SERVICE
    policies: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()  # identifiers of roles of the jobs side
    is_global: bool = False
    path: str = ""  # the request that made it, for example `auth/token/create`
    mount: str = ""  # accessor of the login method that issued it
    parent: str = ""  # accessor of the token that it ends with; empty: it has none
    role: str = ""  # the role by which it was made, on the secrets side
    entity_id: str = ""
    allocation: str = ""  # with which it ends; empty: it is not a task's
    meta: dict[str, str] | None = None
    bound_cidrs: tuple[str, ...] = ()
    ttl: int = 0  # with which it was made; 0: it never ends
    max_ttl: int = 0
    explicit_max_ttl: int = 0
    period: int = 0
    renewable: bool = False
    created_at: int
    renewed_at: int | None = None
    expires_at: int | None = None
    uses: int = 0  # how often it may be used in all; 0: any number
    uses_left: int | None = None
    create_index: int = 0
    modify_index: int = 0

    @property
    def is_management(self) -> bool:
        """Tell whether everything is allowed to its holder."""
        return ROOT in self.policies

    def has_ended(self, now: int) -> bool:
        """Tell whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


class JobACL(Record, frozen=True, kw_only=True):
    """The tasks to whose own identity a policy applies."""

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class Policy(Record, frozen=True, kw_only=True):
    """A named text of rules; `hash` is base64 and changes with the rest."""

    name: str
    description: str = ""
    rules: str = ""
    job_acl: JobACL | None = None
    hash: str = ""
    version: int = 1
    modified_at: int = 0
    create_index: int = 0
    modify_index: int = 0


class PolicyLink(Record, frozen=True, kw_only=True):
    """A policy that a role stands for."""

    name: str


class RoleLink(Record, frozen=True, kw_only=True):
    """A role that a token has."""

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
    """What tokens of the secrets side may be, and are, when they are made by this role's name.

    Times are seconds, as that API has them.
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
    token_type: str = "default-service"  # noqa: S105  # a kind, no secret

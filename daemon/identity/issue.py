"""The token that a login gets: what role and mount say about it, cut to what they allow."""

from daemon.acl.children import normal
from daemon.acl.leases import Lease, lease
from daemon.identity.login import Proven
from storage.errors import Invalid
from storage.records.acl import DEFAULT, ROOT, Token, TokenKind
from storage.records.base import SECOND
from storage.records.identity import LoginRole, Mount


def lease_of(role: LoginRole, mount: Mount) -> Lease:
    """Return how long a token of this role lives."""
    limits = (role.token_explicit_max_ttl, role.token_max_ttl, mount.max_ttl)
    return lease(role.token_ttl or mount.default_ttl, role.token_period, limits)


def policies_of(role: LoginRole) -> tuple[str, ...]:
    """Return the policies of a token of this role, in order. Raises `Invalid`."""
    names = normal(role.token_policies)
    if ROOT in names:
        raise Invalid("auth methods cannot create root tokens")
    return names if role.token_no_default_policy else normal([*names, DEFAULT])


def kind_of(role: LoginRole, mount: Mount) -> TokenKind:
    """Return of which kind a token of this role is: the mount may leave that to the role."""
    kind = mount.config.token_type
    if kind.startswith("default-"):
        kind = role.token_type if role.token_type != "default" else kind.removeprefix("default-")  # noqa: S105  # a kind
    return TokenKind(kind)


def token_of(proven: Proven, span: Lease, *, accessor: str, now: int) -> Token:
    """Return the token of a login; whose entity it is, is not known yet. Raises `Invalid`."""
    role, mount = proven.role, proven.mount
    kind = kind_of(role, mount)
    is_service = kind is TokenKind.SERVICE
    return Token(
        accessor=accessor,
        name=proven.display_name,
        kind=kind,
        policies=policies_of(role),
        path=f"auth/{mount.path}login",
        mount=mount.accessor,
        meta=dict(proven.metadata),
        bound_cidrs=tuple(role.token_bound_cidrs),
        ttl=span.ttl * SECOND,
        max_ttl=role.token_max_ttl * SECOND,
        explicit_max_ttl=role.token_explicit_max_ttl * SECOND,
        period=role.token_period * SECOND,
        renewable=is_service,
        created_at=now,
        expires_at=now + span.ttl * SECOND,
        uses=role.token_num_uses,
        uses_left=role.token_num_uses or None,
    )

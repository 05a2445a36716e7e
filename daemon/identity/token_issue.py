"""The token of a login, within the limits of its role and mount."""

from daemon.acl.builtin import normalize_policy_names
from daemon.acl.token_ttl import TokenLifetime, compute_ttl
from daemon.identity.login import LoginPrincipal
from storage.errors import Invalid
from storage.records.acl import DEFAULT, ROOT, Token, TokenKind
from storage.records.base import SECOND
from storage.records.identity import LoginRole, Mount


def token_ttl(role: LoginRole, mount: Mount) -> TokenLifetime:
    """Return the TTL of a token of this role."""
    limits = (role.token_explicit_max_ttl, role.token_max_ttl, mount.max_ttl)
    return compute_ttl(role.token_ttl or mount.default_ttl, role.token_period, limits)


def token_policies(role: LoginRole) -> tuple[str, ...]:
    """Return the policies of a token of this role, in order. Raises `Invalid`."""
    names = normalize_policy_names(role.token_policies)
    if ROOT in names:
        raise Invalid("auth methods cannot create root tokens")
    return names if role.token_no_default_policy else normalize_policy_names([*names, DEFAULT])


def token_type(role: LoginRole, mount: Mount) -> TokenKind:
    """Return the token type: that of the mount, or that of the role if the mount permits it."""
    kind = mount.config.token_type
    if kind.startswith("default-"):
        kind = role.token_type if role.token_type != "default" else kind.removeprefix("default-")  # noqa: S105  # a kind
    return TokenKind(kind)


def check_uses(role: LoginRole, mount: Mount) -> None:
    """Check that the uses of a token of this role can be counted. Raises `Invalid`.

    The uses of a batch token cannot be counted, because it is not stored. The mount may determine
    the type, so validating the role alone is not enough.
    """
    if role.token_num_uses and token_type(role, mount) is TokenKind.BATCH:
        raise Invalid('batch tokens cannot have "num_uses" set')


def build_token(proven: LoginPrincipal, span: TokenLifetime, *, accessor: str, now: int) -> Token:
    """Return the token of a login, without an entity. Raises `Invalid`."""
    role, mount = proven.role, proven.mount
    check_uses(role, mount)
    kind = token_type(role, mount)
    is_service = kind is TokenKind.SERVICE
    return Token(
        accessor=accessor,
        name=proven.display_name,
        kind=kind,
        policies=token_policies(role),
        path=f"auth/{mount.path}login",
        mount=mount.accessor,
        move="" if is_service else mount.latest_move,
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

"""Child tokens of the Vault API, which have at most the policies and networks of their parent.

With `sudo` on the path, the caller may choose the secret, create orphan or periodic tokens, and
assign policies that the parent lacks (source: Vault's recorded responses `token-api`). If the
request uses a role, the role determines the networks. A role with lists of policies also determines
the policies.
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from daemon.acl.builtin import RESERVED, normalize_policy_names, sanitize_policy_names
from daemon.acl.check import Caller
from daemon.acl.grant import fits
from daemon.acl.token_ttl import TokenLifetime, compute_ttl
from daemon.text.go_format import quote
from daemon.text.request_fields import RequestFields
from storage.errors import Malformed, Refused
from storage.queries import policies
from storage.read_pool import ReadSnapshot
from storage.records.acl import BUILT_IN, DEFAULT, ROOT, Token, TokenKind, TokenRole
from storage.records.base import SECOND
from storage.records.identity import SYSTEM_TTL

_TOLD_OF_CHOICE = (  # Vault's text, which tools match; here this secret is hashed like all others
    "Supplying a custom ID for the token uses the weaker SHA1 hashing instead of the more secure "
    "SHA2-256 HMAC for token obfuscation. SHA1 hashed tokens on the wire leads to less secure "
    "lookups."
)
_NO_ROLE = TokenRole(name="")
_UNNAMED = re.compile(r"[^a-zA-Z0-9-]")


class TokenRequestFields(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a request for a token."""

    maker: Caller
    fields: RequestFields
    role: TokenRole = _NO_ROLE
    path: str
    is_orphan: bool = False  # selected by the path
    has_sudo: bool = False

    @property
    def is_limited(self) -> bool:
        """Return whether the token may only have policies of its parent."""
        return not self.has_sudo and not _names_policies(self.role)


class NewToken(msgspec.Struct, frozen=True):
    """A token to store, the chosen secret if there is one, and warnings."""

    token: Token
    secret: str
    warnings: Sequence[str]


def create_token(
    db: ReadSnapshot, token_request: TokenRequestFields, *, accessor: str, now: int
) -> NewToken:
    """Return the token that a request describes. Raises `Malformed`."""
    _check_maker(token_request)
    kind = _kind(token_request)
    uses = _uses(token_request)
    if kind is TokenKind.BATCH:
        _check_batch(token_request, uses)
    names = _policies(token_request)
    if ROOT in names and kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be root tokens")
    is_orphan = _is_orphan(token_request)
    span = _lease(token_request, names)
    fields, role, parent = token_request.fields, token_request.role, token_request.maker.token
    secret = _secret(token_request)
    token = Token(
        accessor=accessor,
        name=_display_name(fields.text("display_name")),
        kind=kind,
        policies=names,
        path=token_request.path,
        parent="" if is_orphan else parent.accessor,
        role=role.name,
        entity_id="" if is_orphan else parent.entity_id,
        subject="" if is_orphan else parent.person,
        allocation="" if is_orphan else parent.allocation,
        meta=fields.pairs("meta") or None,
        bound_cidrs=_networks(token_request, is_orphan) if span.ttl else (),
        ttl=span.ttl * SECOND,
        explicit_max_ttl=_explicit_max_ttl(token_request) * SECOND,
        period=_period(token_request) * SECOND,
        renewable=bool(span.ttl)
        and kind is TokenKind.SERVICE
        and role.renewable
        and fields.flag("renewable", True),
        created_at=now,
        expires_at=now + span.ttl * SECOND if span.ttl else None,
        uses=uses,
        uses_left=uses or None,
    )
    secret_warnings = (_TOLD_OF_CHOICE,) if secret else ()
    warnings = [
        *_told_of_role(token_request),
        *span.warnings,
        *secret_warnings,
        *_unknown(db, names),
    ]
    return NewToken(token, secret, warnings)


def _check_maker(token_request: TokenRequestFields) -> None:
    if token_request.maker.token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot create more tokens")
    if token_request.maker.token.uses_left is not None:
        raise Malformed("restricted use token cannot generate child tokens")


def _is_orphan(token_request: TokenRequestFields) -> bool:
    if token_request.is_orphan or token_request.role.orphan:
        return True
    return _with_sudo(
        token_request, "no_parent", "create orphan token"
    ) and token_request.fields.flag("no_parent")


def _networks(token_request: TokenRequestFields, is_orphan: bool) -> tuple[str, ...]:
    """Return the networks from which the token can be used; an empty tuple means all.

    A child token can be used from the networks of its parent only. An orphan token and a token of a
    role are not limited to these networks. Their creator has `sudo`, or a permission for the role.
    """
    if token_request.role.name:
        return token_request.role.token_bound_cidrs
    return () if is_orphan else token_request.maker.token.bound_cidrs


def _with_sudo(token_request: TokenRequestFields, field: str, act: str) -> bool:
    """Return whether a field that needs sudo is set. Raises `Malformed` without sudo.

    `act` describes the operation in the error.
    """
    if not token_request.fields.raw(field):
        return False
    if not token_request.has_sudo:
        raise Malformed(f"root or sudo privileges required to {act}")
    return True


def _secret(token_request: TokenRequestFields) -> str:
    """Return the secret that the caller chose; an empty secret means a random secret."""
    if not _with_sudo(token_request, "id", "specify token id"):
        return ""
    secret = token_request.fields.text("id")
    if "." in secret:
        raise Malformed("custom token ID cannot have the 's.' prefix or a '.' in the value")
    return secret


def _kind(token_request: TokenRequestFields) -> TokenKind:
    kind = token_request.fields.text("type") or "service"
    if kind not in ("service", "batch"):
        raise Malformed("invalid 'token_type' value")
    of_role = token_request.role.token_type
    if of_role in ("service", "batch"):
        return TokenKind(of_role)
    if of_role == "default-batch" and not token_request.fields.text("type"):
        return TokenKind.BATCH
    return TokenKind(kind)


def _uses(token_request: TokenRequestFields) -> int:
    uses = token_request.fields.strict_number("num_uses")
    if uses < 0:
        raise Malformed("number of uses cannot be negative")
    limits = [limit for limit in (uses, token_request.role.token_num_uses) if limit]
    return min(limits, default=0)


def _check_batch(token_request: TokenRequestFields, uses: int) -> None:
    """Raise `Malformed` for limits that a batch token cannot have: batch tokens are not stored."""
    fields = token_request.fields
    limits = {
        "explicit_max_ttl": _duration(fields, "explicit_max_ttl"),
        "num_uses": uses,
        "period": _duration(fields, "period"),
    }
    for name, value in limits.items():
        if value:
            raise Malformed(f"batch tokens cannot have {quote(name)} set")


def _display_name(name: str) -> str:
    return _UNNAMED.sub("-", f"token-{name}").removesuffix("-") if name else "token"


# --- policies -----------------------------------------------------------------------------------


def _policies(token_request: TokenRequestFields) -> tuple[str, ...]:
    named = sanitize_policy_names(token_request.fields.texts("policies"))
    is_by_role = _names_policies(token_request.role)
    names = _of_role(token_request, named) if is_by_role else _of_maker(token_request, named)
    if token_request.fields.flag("no_default_policy"):
        names = tuple(name for name in names if name != DEFAULT)
    for name in names:
        if name in RESERVED:
            raise Malformed(f"cannot assign policy {quote(name)}")
    if ROOT in names and not token_request.maker.token.is_management:
        raise Malformed("root tokens may not be created without parent token being root")
    return names


def _with_default(names: Iterable[str], adds: bool) -> tuple[str, ...]:
    sanitized = sanitize_policy_names(names)
    return (
        normalize_policy_names([*sanitized, DEFAULT])
        if adds and ROOT not in sanitized
        else sanitized
    )


def _names_policies(role: TokenRole) -> bool:
    """Return whether the role limits the policies; otherwise, the parent's policies limit them."""
    return any(
        (
            *(role.allowed_policies, role.allowed_policies_glob),
            *(role.disallowed_policies, role.disallowed_policies_glob),
        )
    )


def _of_maker(token_request: TokenRequestFields, names_asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the policies in the request, or those of the parent if the request names none.

    `default` is added to the policies in the request if the parent has it, or if the caller has
    `sudo`. Raises `Malformed` if a caller without `sudo` requests a policy that the parent lacks.
    """
    own = sanitize_policy_names(token_request.maker.token.policies)
    if not names_asked:
        return own
    if token_request.is_limited and not set(names_asked) <= set(own):
        raise Malformed("child policies must be subset of parent")
    is_refused = token_request.role.token_no_default_policy
    return _with_default(names_asked, not is_refused and (token_request.has_sudo or DEFAULT in own))


def _of_role(token_request: TokenRequestFields, names_asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the policies that a role with lists of policies gives.

    `default` is added unless the request or the role excludes it.
    """
    role = token_request.role
    adds = not (
        token_request.fields.flag("no_default_policy")
        or role.token_no_default_policy
        or _is_disallowed(role, DEFAULT)
    )
    names = _with_default(names_asked, adds) if names_asked else ()
    if role.allowed_policies or role.allowed_policies_glob:
        allowed = _with_default(role.allowed_policies, adds)
        names = names or allowed
        for name in names:
            if name not in allowed and not _fits_any(name, role.allowed_policies_glob):
                raise Malformed(
                    f"token policies ({_list(names)}) must be subset of the role's allowed "
                    f"policies ({_list(allowed)}) or glob policies "
                    f"({_list(role.allowed_policies_glob)})"
                )
    names = names or _with_default(token_request.maker.token.policies, adds)
    for name in names:
        if _is_disallowed(role, name):
            raise Malformed(f"token policy {quote(name)} is disallowed by this role")
    return names


def _is_disallowed(role: TokenRole, name: str) -> bool:
    return name in role.disallowed_policies or _fits_any(name, role.disallowed_policies_glob)


def _list(names: Iterable[str]) -> str:
    """Format names as Go's `%q` does."""
    return f"[{' '.join(map(quote, names))}]"


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fits(pattern, name) for pattern in patterns)


def _unknown(db: ReadSnapshot, names: Iterable[str]) -> list[str]:
    return [
        f'Policy "{name}" does not exist'
        for name in names
        if name not in BUILT_IN and policies.find(db, name) is None
    ]


# --- TTL ----------------------------------------------------------------------------------------


def _period(token_request: TokenRequestFields) -> int:
    requested_period = _duration(token_request.fields, "period")
    if requested_period and not token_request.has_sudo:
        raise Malformed("root or sudo privileges required to create periodic token")
    periods = [period for period in (requested_period, token_request.role.token_period) if period]
    return min(periods, default=0)


def _explicit_max_ttl(token_request: TokenRequestFields) -> int:
    limits = (
        _duration(token_request.fields, "explicit_max_ttl"),
        token_request.role.token_explicit_max_ttl,
    )
    return min((limit for limit in limits if limit), default=0)


def _told_of_role(token_request: TokenRequestFields) -> Iterable[str]:
    """Yield a warning for each limit that both the request and the role set."""
    fields, role = token_request.fields, token_request.role
    both = "specified both during creation call and in role; using the lesser value of"
    if role.token_explicit_max_ttl and _duration(fields, "explicit_max_ttl"):
        yield f"Explicit max TTL {both} {_explicit_max_ttl(token_request)} seconds"
    if role.token_period and _duration(fields, "period"):
        yield f"Period {both} {_period(token_request)} seconds"


def _lease(token_request: TokenRequestFields, names: Sequence[str]) -> TokenLifetime:
    """Return the TTL of a token with these policies.

    A root token never expires unless a TTL is given.
    """
    fields = token_request.fields
    requested_ttl = _duration(fields, "ttl") or _duration(fields, "lease")
    period, explicit = _period(token_request), _explicit_max_ttl(token_request)
    if ROOT in names and not (requested_ttl or period or explicit):
        if token_request.maker.token.expires_at is not None:
            raise Malformed("expiring root tokens cannot create non-expiring root tokens")
        return TokenLifetime(0)
    return compute_ttl(requested_ttl or SYSTEM_TTL, period, (explicit, SYSTEM_TTL))


def _duration(fields: RequestFields, name: str) -> int:
    """Return the duration in a field. As in Vault, errors in its syntax omit the field's name."""
    try:
        nanoseconds = fields.signed_seconds(name)
    except Malformed as error:
        raise Malformed(str(error).partition('": ')[2] or str(error)) from None
    if nanoseconds < 0:
        raise Malformed(f"{name} must be positive")
    return nanoseconds


def renew_token(
    token: Token, increment: int, terms: "RenewalLimits", now: int
) -> tuple[Token, TokenLifetime]:
    """Return a renewed token and its new TTL. Raises `Malformed`."""
    if token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be renewed")
    if not token.renewable or token.expires_at is None:
        raise Malformed("lease is not renewable")
    elapsed = (now - token.created_at) // SECOND
    limits = (token.explicit_max_ttl // SECOND, terms.max_ttl, terms.mount_max_ttl)
    span = compute_ttl(max(increment, 0) or terms.ttl, terms.period, limits, elapsed)
    return msgspec.structs.replace(token, renewed_at=now, expires_at=now + span.ttl * SECOND), span


class RenewalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The current limits for the renewal of a token, in seconds."""

    ttl: int
    max_ttl: int = 0
    period: int = 0
    mount_max_ttl: int = SYSTEM_TTL


def renewal_limits(token: Token, role: TokenRole | None) -> RenewalLimits:
    """Return the limits of a child token. Raises `Refused`."""
    if token.role and role is None:
        raise Refused(f"original token role {token.role!r} could not be found, not renewing")
    period = role.token_period if role else token.period // SECOND
    return RenewalLimits(ttl=_last_span(token), period=period)


def _last_span(token: Token) -> int:
    """Return the TTL, in seconds, that a token got when it was created or last renewed."""
    if token.expires_at is None:
        return token.ttl // SECOND
    begin = token.created_at if token.renewed_at is None else token.renewed_at
    return (token.expires_at - begin) // SECOND

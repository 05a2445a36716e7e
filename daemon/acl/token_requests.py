"""Child tokens of the Vault API, which have at most the policies of their parent.

With `sudo` on the path, the caller may choose the secret, create orphan or periodic tokens, and
assign policies that the parent lacks (recorded from Vault: token-api).
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from daemon.acl.builtin import normalize_policy_names
from daemon.acl.check import Caller
from daemon.acl.grant import fits
from daemon.acl.token_ttl import TokenLifetime, compute_ttl
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
        return not self.has_sudo and not self.role.name


class NewToken(msgspec.Struct, frozen=True):
    """A token to store, the chosen secret if there is one, and warnings."""

    token: Token
    secret: str
    warnings: Sequence[str]


def create_token(
    db: ReadSnapshot, wanted: TokenRequestFields, *, accessor: str, now: int
) -> NewToken:
    """Return the token that a request describes. Raises `Malformed`."""
    _check_maker(wanted)
    names = _policies(wanted)
    kind = _kind(wanted)
    if ROOT in names and kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be root tokens")
    span = _lease(wanted, names)
    is_orphan = _is_orphan(wanted)
    fields, role, parent = wanted.fields, wanted.role, wanted.maker.token
    secret = _secret(wanted)
    token = Token(
        accessor=accessor,
        name=_display_name(fields.text("display_name")),
        kind=kind,
        policies=names,
        path=wanted.path,
        parent="" if is_orphan else parent.accessor,
        role=role.name,
        entity_id="" if is_orphan else parent.entity_id,
        subject="" if is_orphan else parent.person,
        allocation="" if is_orphan else parent.allocation,
        meta=fields.pairs("meta") or None,
        bound_cidrs=role.token_bound_cidrs,
        ttl=span.ttl * SECOND,
        explicit_max_ttl=_explicit_max_ttl(wanted) * SECOND,
        period=_period(wanted) * SECOND,
        renewable=bool(span.ttl)
        and kind is TokenKind.SERVICE
        and role.renewable
        and fields.flag("renewable", True),
        created_at=now,
        expires_at=now + span.ttl * SECOND if span.ttl else None,
        uses=_uses(wanted),
        uses_left=_uses(wanted) or None,
    )
    told = (_TOLD_OF_CHOICE,) if secret else ()
    return NewToken(token, secret, [*told, *span.warnings, *_unknown(db, names)])


def _check_maker(wanted: TokenRequestFields) -> None:
    if wanted.maker.token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot create more tokens")
    if wanted.maker.token.uses_left is not None:
        raise Malformed("restricted use token cannot generate child tokens")


def _is_orphan(wanted: TokenRequestFields) -> bool:
    if wanted.is_orphan or wanted.role.orphan:
        return True
    return _with_sudo(wanted, "no_parent", "create orphan token") and wanted.fields.flag(
        "no_parent"
    )


def _with_sudo(wanted: TokenRequestFields, field: str, what: str) -> bool:
    """Return whether a field is set that needs sudo. Raises `Malformed` without sudo."""
    if not wanted.fields.raw(field):
        return False
    if not wanted.has_sudo:
        raise Malformed(f"root or sudo privileges required to {what}")
    return True


def _secret(wanted: TokenRequestFields) -> str:
    """Return the secret that the caller chose; empty means a random one."""
    if not _with_sudo(wanted, "id", "specify token id"):
        return ""
    secret = wanted.fields.text("id")
    if "." in secret:
        raise Malformed("custom token ID cannot have the 's.' prefix or a '.' in the value")
    return secret


def _kind(wanted: TokenRequestFields) -> TokenKind:
    kind = wanted.fields.text("type") or "service"
    if kind not in ("service", "batch"):
        raise Malformed("invalid 'token_type' value")
    of_role = wanted.role.token_type
    if of_role in ("service", "batch"):
        return TokenKind(of_role)
    if of_role == "default-batch" and not wanted.fields.text("type"):
        return TokenKind.BATCH
    return TokenKind(kind)


def _uses(wanted: TokenRequestFields) -> int:
    uses = wanted.fields.strict_number("num_uses")
    if uses < 0:
        raise Malformed("number of uses cannot be negative")
    limits = [item for item in (uses, wanted.role.token_num_uses) if item]
    return min(limits, default=0)


def _display_name(name: str) -> str:
    return _UNNAMED.sub("-", f"token-{name}").removesuffix("-") if name else "token"


# --- policies -----------------------------------------------------------------------------------


def _policies(wanted: TokenRequestFields) -> tuple[str, ...]:
    given = normalize_policy_names(wanted.fields.texts("policies"))
    names = _of_role(wanted, given) if wanted.role.name else _of_maker(wanted, given)
    if ROOT in names:
        if not wanted.maker.token.is_management:
            raise Malformed("root tokens may not be created without parent token being root")
        return (ROOT,)
    if wanted.fields.flag("no_default_policy") or wanted.role.token_no_default_policy:
        return normalize_policy_names(name for name in names if given or name != DEFAULT)
    return normalize_policy_names([*names, DEFAULT])


def _of_maker(wanted: TokenRequestFields, given: tuple[str, ...]) -> tuple[str, ...]:
    own = normalize_policy_names(wanted.maker.token.policies)
    if not given:
        return own
    if wanted.is_limited and not set(given) <= {*own, DEFAULT}:
        raise Malformed("child policies must be subset of parent")
    return given


def _of_role(wanted: TokenRequestFields, given: tuple[str, ...]) -> tuple[str, ...]:
    role = wanted.role
    for name in given:
        if name in role.disallowed_policies or _fits_any(name, role.disallowed_policies_glob):
            raise Malformed(f'token policy "{name}" is disallowed by this role')
    if not role.allowed_policies and not role.allowed_policies_glob:
        own = set(normalize_policy_names(wanted.maker.token.policies))
        refused = set(role.disallowed_policies)
        return given or tuple(sorted(own - refused))
    if not given:
        return normalize_policy_names(role.allowed_policies)
    for name in given:
        allowed = name in role.allowed_policies or _fits_any(name, role.allowed_policies_glob)
        if not allowed and name != DEFAULT:
            shown = " ".join((*role.allowed_policies, *role.allowed_policies_glob))
            raise Malformed(
                f"token policies ([{' '.join(given)}]) must be subset of the role's allowed "
                f"policies ([{shown}])"
            )
    return given


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fits(pattern, name) for pattern in patterns)


def _unknown(db: ReadSnapshot, names: Iterable[str]) -> list[str]:
    return [
        f'Policy "{name}" does not exist'
        for name in names
        if name not in BUILT_IN and policies.find(db, name) is None
    ]


# --- TTL ----------------------------------------------------------------------------------------


def _period(wanted: TokenRequestFields) -> int:
    asked = 0
    if wanted.fields.raw("period"):
        asked = wanted.fields.seconds("period")
        if not wanted.has_sudo and not wanted.role.name:
            raise Malformed("root or sudo privileges required to create periodic token")
    periods = [item for item in (asked, wanted.role.token_period) if item]
    return min(periods, default=0)


def _explicit_max_ttl(wanted: TokenRequestFields) -> int:
    given = (wanted.fields.seconds("explicit_max_ttl"), wanted.role.token_explicit_max_ttl)
    return min((item for item in given if item), default=0)


def _lease(wanted: TokenRequestFields, names: Sequence[str]) -> TokenLifetime:
    """Return the TTL of the token; a root token never expires unless a TTL is given."""
    fields = wanted.fields
    asked = _plain_seconds(fields, "ttl") or _plain_seconds(fields, "lease")
    period, explicit = _period(wanted), _explicit_max_ttl(wanted)
    if ROOT in names and not (asked or period or explicit):
        if wanted.maker.token.expires_at is not None:
            raise Malformed("expiring root tokens cannot create non-expiring root tokens")
        return TokenLifetime(0)
    return compute_ttl(asked or SYSTEM_TTL, period, (explicit, SYSTEM_TTL))


def _plain_seconds(fields: RequestFields, name: str) -> int:
    """Return a duration; Vault's error text for it does not name the field."""
    try:
        return fields.seconds(name)
    except Malformed as error:
        raise Malformed(str(error).partition('": ')[2] or str(error)) from None


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
    """Return the TTL in seconds of the last creation or renewal of a token."""
    if token.expires_at is None:
        return token.ttl // SECOND
    begin = token.created_at if token.renewed_at is None else token.renewed_at
    return (token.expires_at - begin) // SECOND

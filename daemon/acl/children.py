"""Tokens as the secrets side makes them: by another token, whose rights they do not exceed.

Whoever has `sudo` on the path may do more: choose a secret, make tokens that outlive their maker
or live for ever by renewal, and give policies that the maker lacks (golden: token-api).
"""

import re
from collections.abc import Iterable, Sequence

import msgspec

from daemon.acl.check import Caller
from daemon.acl.grant import fits
from daemon.acl.leases import Lease, lease
from daemon.fields import Fields
from storage.errors import Malformed, Refused
from storage.queries import policies
from storage.readers import Snapshot
from storage.records.acl import BUILT_IN, DEFAULT, ROOT, Token, TokenKind, TokenRole
from storage.records.base import SECOND
from storage.records.identity import SYSTEM_TTL

_TOLD_OF_CHOICE = (  # the peer's text, which tools match; here the secret is hashed as all are
    "Supplying a custom ID for the token uses the weaker SHA1 hashing instead of the more secure "
    "SHA2-256 HMAC for token obfuscation. SHA1 hashed tokens on the wire leads to less secure "
    "lookups."
)
_NO_ROLE = TokenRole(name="")
_UNNAMED = re.compile(r"[^a-zA-Z0-9-]+")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a request for a token says, as far as it may say it."""

    maker: Caller
    fields: Fields
    role: TokenRole = _NO_ROLE
    path: str
    is_orphan: bool = False  # asked for by the path
    has_sudo: bool = False

    @property
    def is_limited(self) -> bool:
        """Tell whether the token may only have policies that its maker has."""
        return not self.has_sudo and not self.role.name


class Made(msgspec.Struct, frozen=True):
    """A token to be stored; the secret, if one was chosen; and what the caller should know."""

    token: Token
    secret: str
    warnings: Sequence[str]


def make(db: Snapshot, wanted: Wanted, *, accessor: str, now: int) -> Made:
    """Return the token that a request asks for. Raises `Malformed`."""
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
    return Made(token, secret, [*told, *span.warnings, *_unknown(db, names)])


def _check_maker(wanted: Wanted) -> None:
    if wanted.maker.token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot create more tokens")
    if wanted.maker.token.uses_left is not None:
        raise Malformed("restricted use token cannot generate child tokens")


def _is_orphan(wanted: Wanted) -> bool:
    if wanted.is_orphan or wanted.role.orphan:
        return True
    return _with_sudo(wanted, "no_parent", "create orphan token") and wanted.fields.flag(
        "no_parent"
    )


def _with_sudo(wanted: Wanted, field: str, what: str) -> bool:
    """Tell whether a field is given that only some may use. Raises `Malformed` for others."""
    if not wanted.fields.raw(field):
        return False
    if not wanted.has_sudo:
        raise Malformed(f"root or sudo privileges required to {what}")
    return True


def _secret(wanted: Wanted) -> str:
    """Return the secret that the maker chose; none: it is to be random."""
    if not _with_sudo(wanted, "id", "specify token id"):
        return ""
    secret = wanted.fields.text("id")
    if "." in secret:
        raise Malformed("custom token ID cannot have the 's.' prefix or a '.' in the value")
    return secret


def _kind(wanted: Wanted) -> TokenKind:
    kind = wanted.fields.text("type") or "service"
    if kind not in ("service", "batch"):
        raise Malformed("invalid 'token_type' value")
    of_role = wanted.role.token_type
    if of_role in ("service", "batch"):
        return TokenKind(of_role)
    if of_role == "default-batch" and not wanted.fields.text("type"):
        return TokenKind.BATCH
    return TokenKind(kind)


def _uses(wanted: Wanted) -> int:
    uses = wanted.fields.strict_number("num_uses")
    if uses < 0:
        raise Malformed("number of uses cannot be negative")
    limits = [one for one in (uses, wanted.role.token_num_uses) if one]
    return min(limits, default=0)


def _display_name(name: str) -> str:
    plain = _UNNAMED.sub("-", name).strip("-")
    return f"token-{plain}" if plain else "token"


# ---- policies --------------------------------------------------------------------------------


def normal(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of policies as they are compared: lower case, sorted, each once."""
    return tuple(sorted({name.strip().lower() for name in names} - {""}))


def _policies(wanted: Wanted) -> tuple[str, ...]:
    given = normal(wanted.fields.texts("policies"))
    names = _of_role(wanted, given) if wanted.role.name else _of_maker(wanted, given)
    if ROOT in names:
        if not wanted.maker.token.is_management:
            raise Malformed("root tokens may not be created without parent token being root")
        return (ROOT,)
    if wanted.fields.flag("no_default_policy") or wanted.role.token_no_default_policy:
        return normal(name for name in names if given or name != DEFAULT)
    return normal([*names, DEFAULT])


def _of_maker(wanted: Wanted, given: tuple[str, ...]) -> tuple[str, ...]:
    own = normal(wanted.maker.token.policies)
    if not given:
        return own
    if wanted.is_limited and not set(given) <= {*own, DEFAULT}:
        raise Malformed("child policies must be subset of parent")
    return given


def _of_role(wanted: Wanted, given: tuple[str, ...]) -> tuple[str, ...]:
    role = wanted.role
    for name in given:
        if name in role.disallowed_policies or _fits_any(name, role.disallowed_policies_glob):
            raise Malformed(f'token policy "{name}" is disallowed by this role')
    if not role.allowed_policies and not role.allowed_policies_glob:
        own = set(normal(wanted.maker.token.policies))
        refused = set(role.disallowed_policies)
        return given or tuple(sorted(own - refused))
    if not given:
        return normal(role.allowed_policies)
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


def _unknown(db: Snapshot, names: Iterable[str]) -> list[str]:
    return [
        f'Policy "{name}" does not exist'
        for name in names
        if name not in BUILT_IN and policies.find(db, name) is None
    ]


# ---- time ------------------------------------------------------------------------------------


def _period(wanted: Wanted) -> int:
    asked = 0
    if wanted.fields.raw("period"):
        asked = wanted.fields.seconds("period")
        if not wanted.has_sudo and not wanted.role.name:
            raise Malformed("root or sudo privileges required to create periodic token")
    periods = [one for one in (asked, wanted.role.token_period) if one]
    return min(periods, default=0)


def _explicit_max_ttl(wanted: Wanted) -> int:
    given = (wanted.fields.seconds("explicit_max_ttl"), wanted.role.token_explicit_max_ttl)
    return min((one for one in given if one), default=0)


def _lease(wanted: Wanted, names: Sequence[str]) -> Lease:
    """Return how long the token lives; one for everything lives for ever unless told otherwise."""
    fields = wanted.fields
    asked = _plain_seconds(fields, "ttl") or _plain_seconds(fields, "lease")
    period, explicit = _period(wanted), _explicit_max_ttl(wanted)
    if ROOT in names and not (asked or period or explicit):
        if wanted.maker.token.expires_at is not None:
            raise Malformed("expiring root tokens cannot create non-expiring root tokens")
        return Lease(0)
    return lease(asked or SYSTEM_TTL, period, (explicit, SYSTEM_TTL))


def _plain_seconds(fields: Fields, name: str) -> int:
    """Return a span; the peer says what is wrong with it without naming the field."""
    try:
        return fields.seconds(name)
    except Malformed as error:
        raise Malformed(str(error).partition('": ')[2] or str(error)) from None


def renewed(token: Token, increment: int, terms: "Terms", now: int) -> tuple[Token, Lease]:
    """Return a token that lives on, and for how long. Raises `Malformed`."""
    if token.kind is TokenKind.BATCH:
        raise Malformed("batch tokens cannot be renewed")
    if not token.renewable or token.expires_at is None:
        raise Malformed("lease is not renewable")
    elapsed = (now - token.created_at) // SECOND
    limits = (token.explicit_max_ttl // SECOND, terms.max_ttl, terms.mount_max_ttl)
    span = lease(max(increment, 0) or terms.ttl, terms.period, limits, elapsed)
    return msgspec.structs.replace(token, renewed_at=now, expires_at=now + span.ttl * SECOND), span


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """For how long a token may be renewed, by what made it as that is now. Seconds."""

    ttl: int
    max_ttl: int = 0
    period: int = 0
    mount_max_ttl: int = SYSTEM_TTL


def terms_of(token: Token, role: TokenRole | None) -> Terms:
    """Return the terms of a token that another token made. Raises `Refused`."""
    if token.role and role is None:
        raise Refused(f"original token role {token.role!r} could not be found, not renewing")
    period = role.token_period if role else token.period // SECOND
    return Terms(ttl=token.ttl // SECOND, period=period)

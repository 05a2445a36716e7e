"""Tokens of the jobs API: validation of new and changed tokens, and their content hash."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec

from daemon.text.go_format import multi_error
from storage.errors import Malformed
from storage.queries import policies, tokens
from storage.read_pool import ReadSnapshot
from storage.records import durations
from storage.records.acl import BUILT_IN, ROOT, RoleLink, Token
from storage.records.base import HOUR, MINUTE, Record
from storage.records.numbers import shorten
from storage.records.times import nanoseconds

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
NAME = re.compile(r"[a-zA-Z0-9-]{1,128}")
LONGEST_NAME = 256
SHORTEST_LIFE, LONGEST_LIFE = MINUTE, 24 * HOUR
_TYPES = ("client", "management")


class TokenRequest(Record, frozen=True, kw_only=True):
    """The body of a request that creates or changes a token."""

    accessor_id: str = ""
    secret_id: str = msgspec.field(name="SecretID", default="")  # set only for an uploaded token
    name: str = ""
    type: str = ""
    policies: list[str] | None = None
    roles: list[RoleLink] | None = None
    global_: bool = msgspec.field(name="Global", default=False)
    expiration_time: str = ""
    expiration_ttl: object = msgspec.field(name="ExpirationTTL", default=None)


def content_hash(*pieces: str) -> str:
    """Return the hash by which Nomad's clients detect changes."""
    return base64.b64encode(
        hashlib.blake2b("".join(pieces).encode(), digest_size=32).digest()
    ).decode()


def token_digest(token: Token) -> str | None:
    """Return the hash of a token's writable fields, or None for a built-in token."""
    if not token.create_index:
        return None
    kind = "management" if token.is_management else "client"
    names = () if token.is_management else token.policies
    where = "global" if token.is_global else "local"
    return content_hash(token.name, kind, *names, where, *token.roles)


def new_token(db: ReadSnapshot, request: TokenRequest, *, accessor: str, now: int) -> Token:
    """Return the token that a request describes. Raises `Malformed`."""
    ttl = _expiry(request, now)
    _check(db, request, ttl)
    return Token(
        accessor=accessor,
        name=request.name,
        policies=_policies(request),
        roles=_roles(db, request),
        is_global=request.global_,
        path="acl/token",
        ttl=ttl or 0,
        created_at=now,
        expires_at=now + ttl if ttl is not None else None,
    )


def is_upload(db: ReadSnapshot, request: TokenRequest) -> bool:
    """Return whether the request chooses the accessor and secret of a new token."""
    has_both = UUID.fullmatch(request.accessor_id) and UUID.fullmatch(request.secret_id)
    is_wanted = bool(has_both) and request.type != "management"
    return is_wanted and tokens.find(db, request.accessor_id) is None


def apply_token_update(db: ReadSnapshot, request: TokenRequest, now: int) -> Token:
    """Return the token that a request names, with the changes of the request.

    Raises `Malformed`.
    """
    before = tokens.find(db, request.accessor_id)
    if before is None or before.has_ended(now):
        raise Malformed(f"cannot find token {request.accessor_id}")
    _check(db, request, None)
    ttl = _expiry(request, now)
    if before.expires_at is not None or ttl is not None:
        details = [] if ttl is None else ["cannot update expiration time"]
        raise Malformed(_invalid(["cannot update expiration TTL", *details]))
    if request.global_ is not before.is_global:
        raise Malformed(_invalid(["cannot toggle global mode"]))
    return msgspec.structs.replace(
        before, name=request.name, policies=_policies(request), roles=_roles(db, request)
    )


def _policies(request: TokenRequest) -> tuple[str, ...]:
    if request.type == "management":
        return (ROOT,)
    return tuple(dict.fromkeys(request.policies or ()))


def _roles(db: ReadSnapshot, request: TokenRequest) -> tuple[str, ...]:
    """Return the IDs of roles, which the request names by ID or name. Raises `Malformed`."""
    role_ids = []
    for link in request.roles or ():
        role = policies.find_role(db, link.id) if link.id else policies.role_named(db, link.name)
        if role is None:
            raise Malformed(f"cannot find role {link.id or link.name}")
        role_ids.append(role.id)
    return tuple(dict.fromkeys(role_ids))


def _check(db: ReadSnapshot, request: TokenRequest, ttl: int | None) -> None:
    if errors := [*_type_errors(request), *_name_errors(request), *_ttl_errors(ttl)]:
        raise Malformed(_invalid(errors))


def _invalid(errors: Sequence[str]) -> str:
    return f"token 0 invalid: {multi_error(errors)}"


def _type_errors(request: TokenRequest) -> Iterable[str]:
    has_some = bool(request.policies or request.roles)
    if request.type not in _TYPES:
        yield "token type must be client or management"
    elif request.type == "client" and not has_some:
        yield "client token missing policies or roles"
    elif request.type == "management" and has_some:
        yield "management token cannot be associated with policies or roles"


def _name_errors(request: TokenRequest) -> Iterable[str]:
    if len(request.name) > LONGEST_NAME:
        yield "token name too long"
    for name in sorted(BUILT_IN.intersection(request.policies or ())):
        yield f'policy "{name}" is built in: a client token cannot have it'


def _ttl_errors(ttl: int | None) -> Iterable[str]:
    if ttl is None:
        return
    if ttl < 0:
        yield f"token expiration TTL '{durations.text(ttl)}' should not be negative"
        yield "expiration time cannot be before create time"
    if ttl < SHORTEST_LIFE:
        yield f"expiration time cannot be less than 1m0s in the future (was {durations.text(ttl)})"
    if ttl > LONGEST_LIFE:
        yield f"expiration time cannot be more than 24h0m0s in the future (was {durations.text(ttl)})"


def _span(value: object) -> int:
    """Return a duration in nanoseconds, given as text or as a number. Raises `ValueError`.

    An unreadable duration must not give a token that never expires.
    """
    if isinstance(value, str):
        return durations.nanoseconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return int(value)
    shown = shorten(msgspec.json.encode(value).decode())
    raise ValueError(
        f"{shown} is neither a duration, such as 1h30m, nor a whole number of nanoseconds"
    )


def _expiry(request: TokenRequest, now: int) -> int | None:
    """Return the expiry of a token; None means never. Raises `Malformed`."""
    span = request.expiration_ttl
    try:
        if span not in (None, "", 0):
            return _span(span)
        if request.expiration_time:
            return nanoseconds(request.expiration_time) - now
    except ValueError as error:
        raise Malformed(f"ExpirationTTL or ExpirationTime cannot be read: {error}") from None
    return None

"""Logins with a JWT at an auth method of the jobs API.

The order of checks is Nomad's: request, method, signature, claims, binding rules. A login without a
matching rule gets no token.
"""

import logging
from collections.abc import Iterator
from functools import partial

import msgspec

from daemon.acl.nomad_tokens import LONGEST_NAME
from daemon.acl.tokens import IssuedToken, TokenStore
from daemon.config.settings import Settings
from daemon.identity import binding_rules, jwt_verification
from daemon.identity.binding_rules import Bindings
from daemon.identity.claim_mapping import MappedClaims, interpolate, map_claims
from daemon.identity.jwt_keys import MethodKeys
from daemon.identity.jwt_verification import ParsedJwt, TimeLeeways, UnknownKey
from daemon.net import egress_policy
from daemon.text.go_format import multi_error, quote
from storage.errors import CredentialRejected, Malformed, Refused
from storage.queries import auth_methods
from storage.read_pool import ReadSnapshot
from storage.records.acl import Token
from storage.records.auth_method import AuthMethod, AuthMethodConfig, MethodType
from storage.records.base import SECOND, Record
from storage.store import Store

log = logging.getLogger("steward.identity.jwt")

PATH = "acl/login"  # the path that tokens of these logins record


class JwtLoginRequest(Record, frozen=True, kw_only=True):
    """The body of a login."""

    auth_method_name: str = ""
    login_token: str = ""


def find_method(db: ReadSnapshot, name: str) -> AuthMethod:
    """Return the auth method with this name. Raises `Malformed` if it does not exist."""
    method = auth_methods.find(db, name)
    if method is None:
        raise Malformed(f"auth-method {quote(name)} not found")
    return method


def check_request(request: JwtLoginRequest) -> None:
    """Raise `Malformed` for an incomplete request."""
    missing = [
        f"missing {name}"
        for name, value in (
            ("auth method name", request.auth_method_name),
            ("login token", request.login_token),
        )
        if not value
    ]
    if missing:
        raise Malformed(f"invalid login request: {multi_error(missing)}")


async def log_in(
    store: Store,
    tokens: TokenStore,
    keys: MethodKeys,
    config: Settings,
    request: JwtLoginRequest,
    *,
    client_key: str,
    ids: Iterator[str],
    now: int,
) -> IssuedToken:
    """Verify a JWT, and issue a token with the roles and policies of its bindings.

    The IDs of the token are UUIDs, as in Nomad. A forged credential counts as a failed login of
    `client_key`. `now` is in nanoseconds. Raises `Malformed`, `CredentialRejected` or `TooOften`.
    """
    check_request(request)
    method = store.read(partial(find_method, name=request.auth_method_name))
    if method.type != MethodType.JWT:
        raise Malformed(f"unsupported auth-method type: {method.type}")
    permit = partial(egress_policy.check, own_ports=egress_policy.own_ports(config))
    try:
        token = jwt_verification.parse_jwt(request.login_token)
        await keys.verify(method, token, now=now, permit=permit)
        claims = _checked_claims(method.config or AuthMethodConfig(), token, now)
    except Refused as error:
        log.warning("a login at the auth method %s was refused: %s", method.name, error)
        if isinstance(error, UnknownKey):
            tokens.record_failure(client_key, f"acl/{method.name}")
        raise CredentialRejected(f"unable to validate provided token: {error}") from error
    mapped = map_claims(method.config or AuthMethodConfig(), claims)
    bindings = await store.read_any(partial(_bindings, method=method, mapped=mapped))
    if bindings.is_empty:
        log.warning("a login at the auth method %s matched no binding rule", method.name)
        raise Malformed("no role or policy bindings matched")
    new_token = _token(method, mapped, bindings, _subject(method, token), now)
    return await tokens.issue(msgspec.structs.replace(new_token, accessor=next(ids)), next(ids))


def _checked_claims(config: AuthMethodConfig, token: ParsedJwt, now: int) -> dict[str, object]:
    """Check a token's issuer, audience and times; return the token's claims. Raises `Refused`."""
    jwt_verification.check_bound(
        token,
        issuers=config.bound_issuer or (),
        audiences=config.bound_audiences or (),
        now=now,
        leeways=_leeways(config),
    )
    return jwt_verification.all_claims(token)


def _leeways(config: AuthMethodConfig) -> TimeLeeways:
    """Return the tolerances of a configuration.

    In its fields, 0 means the default, and a negative number means no tolerance.
    """
    usual = TimeLeeways()

    def seconds(setting: int, default: int) -> int:
        return max(setting // SECOND, 0) if setting else default

    return TimeLeeways(
        expiration=seconds(config.expiration_leeway, usual.expiration),
        not_before=seconds(config.not_before_leeway, usual.not_before),
        skew=seconds(config.clock_skew_leeway, usual.skew),
    )


def _bindings(db: ReadSnapshot, method: AuthMethod, mapped: MappedClaims) -> Bindings:
    rules = auth_methods.rules_of(db, method.name, binding_rules.MOST_RULES)
    values = _values(method, mapped)
    return binding_rules.bind(db, binding_rules.select(rules, mapped), values)


def _values(method: AuthMethod, mapped: MappedClaims) -> dict[str, str]:
    """Return the values to insert into bind names; the value of a missing claim is empty."""
    names = (method.config.claim_mappings if method.config else None) or {}
    empty = {f"value.{name}": "" for name in names.values()}
    return empty | {f"value.{name}": text for name, text in mapped.value.items()}


def _subject(method: AuthMethod, token: ParsedJwt) -> str:
    """Return the identity behind a login: the issuer and the subject of its token.

    Without a subject, all logins with tokens of the same issuer count as one identity.
    """
    claims = jwt_verification.read_standard(token)
    return f"{claims.iss or f'auth-method/{method.name}'} {claims.sub or ''}".strip()


def _token(
    method: AuthMethod, mapped: MappedClaims, bindings: Bindings, subject: str, now: int
) -> Token:
    """Return the token to issue. Raises `Malformed`."""
    values = {f"value.{name}": text for name, text in mapped.value.items()}
    own = {"auth_method_type": method.type, "auth_method_name": method.name}
    try:
        name = interpolate(method.token_name_format, {**values, **own})
    except Malformed as error:
        raise Malformed(f"failed to generate ACL token name: {error}") from error
    if len(name) > LONGEST_NAME:
        raise Malformed(f"token 0 invalid: {multi_error(['token name too long'])}")
    return Token(
        accessor="",
        name=name,
        policies=bindings.policies,
        roles=bindings.roles,
        is_global=method.is_global,
        path=PATH,
        subject=subject,
        ttl=method.max_token_ttl,
        created_at=now,
        expires_at=now + method.max_token_ttl,
    )


class OidcUrlRequest(Record, frozen=True, kw_only=True):
    """The body of the request that begins an OIDC login."""

    auth_method_name: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")
    client_nonce: str = ""


class OidcCompletion(Record, frozen=True, kw_only=True):
    """The body of the request that completes an OIDC login."""

    auth_method_name: str = ""
    client_nonce: str = ""
    state: str = ""
    code: str = ""
    iss: str = ""
    redirect_uri: str = msgspec.field(name="RedirectURI", default="")

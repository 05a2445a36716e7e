"""Login methods of the jobs API: their validation and storage.

If a field of an update is empty, the stored value stays. `Default` is an exception, as in Nomad.
Only JWT methods can be used to log in. Steward stores OIDC methods so that tools can manage them,
but it replaces their secrets with a fixed placeholder.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from daemon.acl.nomad_tokens import LONGEST_LIFE, SHORTEST_LIFE, content_hash
from daemon.identity.jwt_verification import read_public_pem
from daemon.text.go_format import multi_error
from storage.errors import Malformed
from storage.queries import auth_methods
from storage.read_pool import ReadSnapshot
from storage.records import durations
from storage.records.auth_method import (
    LOCALITIES,
    REDACTED,
    AssertionKey,
    AuthMethod,
    AuthMethodConfig,
    AuthMethodRequest,
    ClientAssertion,
    MethodType,
)
from storage.records.base import HOUR
from storage.records.signing import ALGORITHM
from storage.writer import Transaction

NAME_FORMAT = "${auth_method_type}-${auth_method_name}"  # default format of the names of tokens
MOST_ITEMS = 100  # entries of a list or a map in a configuration
_NAME = re.compile(r"[a-zA-Z0-9-]{1,128}")
_LONGEST_TEXT = 64 * 1024  # characters of a text in a configuration, such as a certificate
_MOST_COUNTED = 1000  # more binding rules than a method can have
_LONGEST_LEEWAY = 24 * HOUR


def put_method(tx: Transaction, request: AuthMethodRequest, now: int) -> AuthMethod:
    """Create or change a method. Raises `Malformed`, which lists all errors."""
    before = auth_methods.find(tx, request.name)
    method = _merged(request, before, now)
    if errors := list(_errors(method)):
        raise Malformed(f"auth method 0 invalid: {multi_error(errors)}")
    _check_default(tx, method)
    if before is None:
        _check_leftover_rules(tx, method.name)
    return auth_methods.put(tx, method)


def _merged(
    auth_method_request: AuthMethodRequest, before: AuthMethod | None, now: int
) -> AuthMethod:
    """Return the method to store. Fields that the request leaves empty come from `before`."""
    old = before or AuthMethod(created_at=now)
    config = auth_method_request.config or old.config
    method = AuthMethod(
        name=auth_method_request.name,
        type=auth_method_request.type or old.type,
        token_locality=auth_method_request.token_locality or old.token_locality,
        token_name_format=auth_method_request.token_name_format
        or old.token_name_format
        or NAME_FORMAT,
        max_token_ttl=auth_method_request.max_token_ttl or old.max_token_ttl,
        default=auth_method_request.default,
        config=_without_secrets(config) if config else None,
        created_at=old.created_at,
        modified_at=now,
        create_index=old.create_index,
    )
    return msgspec.structs.replace(method, hash=_hash(method))


def _hash(method: AuthMethod) -> str:
    plain = msgspec.structs.replace(method, created_at=0, modified_at=0, create_index=0)
    return content_hash(msgspec.json.encode(plain).decode())


def _without_secrets(config: AuthMethodConfig) -> AuthMethodConfig:
    assertion = config.oidc_client_assertion
    return msgspec.structs.replace(
        config,
        oidc_client_secret=_masked(config.oidc_client_secret),
        oidc_client_assertion=_assertion_without_key(assertion) if assertion else None,
    )


def _assertion_without_key(assertion: ClientAssertion) -> ClientAssertion:
    key = assertion.private_key or AssertionKey()
    masked = msgspec.structs.replace(key, pem_key=_masked(key.pem_key))
    return msgspec.structs.replace(assertion, private_key=masked if assertion.private_key else None)


def _masked(secret: str) -> str:
    return REDACTED if secret else ""


def _check_default(db: ReadSnapshot, method: AuthMethod) -> None:
    """Raise `Malformed` if another method is already the default."""
    default = auth_methods.default(db) if method.default else None
    if default is not None and default.name != method.name:
        raise Malformed(f"default method already exists: {default.name}")


def _check_leftover_rules(db: ReadSnapshot, name: str) -> None:
    """Raise `Malformed` if a deleted method of this name has left binding rules behind.

    Earlier versions of Steward did not delete a method's binding rules together with the method.
    """
    if count := auth_methods.count_rules(db, name, _MOST_COUNTED):
        raise Malformed(
            f"{count} binding rules of an earlier method have the name {name}: delete them, or "
            "choose another name"
        )


def _errors(method: AuthMethod) -> Iterable[str]:
    if not _NAME.fullmatch(method.name):
        yield f"invalid name '{method.name}'"
    if method.token_locality not in LOCALITIES:
        yield (
            f"invalid token locality '{method.token_locality}', must be one of "
            f"{', '.join(LOCALITIES)}"
        )
    if method.type not in tuple(MethodType):
        yield f"invalid token type '{method.type}', must be one of {', '.join(MethodType)}"
    if config_errors := list(_config_errors(method)):
        yield f"invalid config: {'; '.join(config_errors)}"
    if not SHORTEST_LIFE <= method.max_token_ttl <= LONGEST_LIFE:
        shortest, longest = map(durations.text, (SHORTEST_LIFE, LONGEST_LIFE))
        yield (
            f"invalid MaxTokenTTL value '{durations.text(method.max_token_ttl)}' "
            f"(should be between {shortest} and {longest})"
        )
    if len(method.token_name_format) > _LONGEST_TEXT:
        yield f"TokenNameFormat is longer than {_LONGEST_TEXT} characters"


def _config_errors(method: AuthMethod) -> Iterator[str]:
    config = method.config
    if config is None:
        yield "missing auth method Config"
        return
    yield from _size_errors(config)
    yield from _leeway_errors(config)
    if method.type == MethodType.OIDC:
        yield from _oidc_errors(config)
    elif method.type == MethodType.JWT:
        yield from _jwt_errors(config)


def _oidc_errors(config: AuthMethodConfig) -> Iterator[str]:
    if not config.oidc_discovery_url:
        yield "missing OIDCDiscoveryURL"
    if not config.oidc_client_id:
        yield "missing OIDCClientID"


def _jwt_errors(config: AuthMethodConfig) -> Iterator[str]:
    if not (config.oidc_discovery_url or config.jwks_url or config.jwt_validation_pub_keys):
        yield (
            "JWT auth method requires either OIDCDiscoveryURL, or JWKS URL, "
            "or JWTValidationPubKeys set"
        )
    for number, pem in enumerate(config.jwt_validation_pub_keys or ()):
        if read_public_pem(pem) is None:
            yield f"JWTValidationPubKeys[{number}] is not a PEM-encoded RSA public key"
    if config.signing_algs and ALGORITHM not in config.signing_algs:
        listed = ", ".join(config.signing_algs)
        yield f"SigningAlgs is {listed}, and Steward verifies only {ALGORITHM}: add {ALGORITHM}"


def _leeway_errors(config: AuthMethodConfig) -> Iterator[str]:
    for name, leeway in (
        ("ExpirationLeeway", config.expiration_leeway),
        ("NotBeforeLeeway", config.not_before_leeway),
        ("ClockSkewLeeway", config.clock_skew_leeway),
    ):
        if leeway > _LONGEST_LEEWAY:
            yield f"{name} is {durations.text(leeway)}: use at most 24h"


def _size_errors(config: AuthMethodConfig) -> Iterator[str]:
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
            if len(value) > MOST_ITEMS:
                yield f"{field.encode_name} has {len(value)} entries: use at most {MOST_ITEMS}"
            texts: Iterable[object] = value
        else:
            texts = (value,)
        if any(isinstance(text, str) and len(text) > _LONGEST_TEXT for text in texts):
            yield f"{field.encode_name} has a string of more than {_LONGEST_TEXT} characters"

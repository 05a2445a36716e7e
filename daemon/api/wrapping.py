"""Response wrapping: look up, unwrap and rewrap responses.

Source: Vault's recorded responses `wrapping`.
"""

import msgspec

from daemon.acl import response_wrapping
from daemon.web.request import RouteCall
from daemon.web.vault_envelope import VaultBody
from storage.errors import Malformed
from storage.records.base import SECOND
from storage.records.times import rfc3339


class _Stored(msgspec.Struct, frozen=True):
    """A stored response. Its `data` is not decoded."""

    data: msgspec.Raw
    auth: object = None
    warnings: tuple[str, ...] = ()


def _secret(call: RouteCall) -> str:
    """Return the secret of the wrapping token: from the body, or else from the request's header."""
    secret = call.fields.text("token") or call.token
    if not secret:
        raise Malformed('missing "token" value in input')
    return secret


async def wrap(call: RouteCall) -> VaultBody:
    """Return the body of the request, to be wrapped. Raises `Malformed` without a wrapping TTL."""
    if not call.wrap_ttl:
        raise Malformed("endpoint requires response wrapping to be used")
    return VaultBody(data=call.fields.values)


async def unwrap(call: RouteCall) -> VaultBody:
    """Return a wrapped response and delete it, so that it can be read only once."""
    wrapped_response = await response_wrapping.unwrap_response(
        call.parts.store, call.parts.tokens, _secret(call)
    )
    stored = msgspec.json.decode(wrapped_response.answer, type=_Stored)
    has_data = bytes(stored.data) != b"null"
    return VaultBody(
        data=stored.data if has_data else None, auth=stored.auth, warnings=stored.warnings
    )


async def lookup(call: RouteCall) -> VaultBody:
    """Describe a wrapped response without unwrapping it."""
    secret, parts = _secret(call), call.parts
    wrapped = parts.store.read(
        lambda db: response_wrapping.lookup_wrapped(db, parts.tokens, secret)
    )
    return VaultBody(
        data={
            "creation_path": wrapped.path,
            "creation_time": rfc3339(wrapped.token.created_at),
            "creation_ttl": wrapped.token.ttl // SECOND,
        }
    )


async def rewrap(call: RouteCall) -> VaultBody:
    """Wrap a response in a new token; the old token is revoked."""
    parts = call.parts
    wrapped_response = await response_wrapping.unwrap_response(
        parts.store, parts.tokens, _secret(call)
    )
    again = await response_wrapping.wrap_response(
        parts.store,
        parts.tokens,
        wrapped_response.answer,
        wrapped_response.path,
        ttl=wrapped_response.token.ttl // SECOND,
        now=parts.clock.now(),
    )
    return VaultBody(wrap_info=response_wrapping.wrap_info(again))

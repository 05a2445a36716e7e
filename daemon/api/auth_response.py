"""The `auth` field of a response with a new token."""

from collections.abc import Sequence

from storage.records.acl import Token
from storage.records.base import SECOND


def auth_block(
    secret: str, token: Token, identity_policies: Sequence[str] = ()
) -> dict[str, object]:
    """Return the `auth` field for a token, without fields that Vault omits when they are empty.

    `identity_policies` are added to the policies of the token.
    """
    block: dict[str, object] = {
        "client_token": secret,
        "accessor": token.accessor,
        "policies": sorted({*token.policies, *identity_policies}),
        "metadata": token.meta,
        "lease_duration": token.ttl // SECOND,
        "renewable": token.renewable,
        "entity_id": token.entity_id,
        "token_type": str(token.kind),
        "orphan": not token.parent,
        "mfa_requirement": None,
        "num_uses": token.uses_left or 0,
    }
    if token.policies:
        block["token_policies"] = sorted(token.policies)
    if identity_policies:
        block["identity_policies"] = sorted(identity_policies)
    return block

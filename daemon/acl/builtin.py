"""Built-in policies and tokens: the default policy of the Vault API, and the anonymous token."""

from collections.abc import Iterable

from storage.records.acl import ANONYMOUS, ROOT, Token

# Capabilities of a token on itself and on its own data.
DEFAULT_RULES = """\
# A token may look up, renew and revoke itself.
path "auth/token/lookup-self" { capabilities = ["read"] }
path "auth/token/renew-self" { capabilities = ["update"] }
path "auth/token/revoke-self" { capabilities = ["update"] }

# It may read its capabilities and its entity.
path "sys/capabilities-self" { capabilities = ["update"] }
path "sys/internal/ui/resultant-acl" { capabilities = ["read"] }
path "identity/entity/id/{{identity.entity.id}}" { capabilities = ["read"] }
path "identity/entity/name/{{identity.entity.name}}" { capabilities = ["read"] }

# Its leases.
path "sys/renew" { capabilities = ["update"] }
path "sys/leases/renew" { capabilities = ["update"] }
path "sys/leases/lookup" { capabilities = ["update"] }

# Its private storage, and responses wrapped for it.
path "cubbyhole/*" { capabilities = ["create", "read", "update", "delete", "list"] }
path "sys/wrapping/wrap" { capabilities = ["update"] }
path "sys/wrapping/lookup" { capabilities = ["update"] }
path "sys/wrapping/unwrap" { capabilities = ["update"] }

# Tools that reveal nothing.
path "sys/tools/hash" { capabilities = ["update"] }
path "sys/tools/hash/*" { capabilities = ["update"] }
path "sys/control-group/request" { capabilities = ["update"] }
path "identity/oidc/provider/+/authorize" { capabilities = ["read", "update"] }
"""

# Policies of Vault's own tokens for wrapped responses. Requests can neither write nor assign them.
RESERVED = frozenset({"response-wrapping"})

# The caller of a request without a token.
NOBODY = Token(accessor=ANONYMOUS, name="Anonymous Token", policies=(ANONYMOUS,), created_at=0)
# The caller if ACLs are disabled.
UNASKED = Token(
    accessor="acls-disabled", name="ACLs disabled token", policies=(ROOT,), created_at=0
)


def operator_token(uid: int) -> Token:
    """Return the token of a local operator. `uid` is the user ID that the kernel reported."""
    return Token(accessor=f"user-{uid}", name="Operator", policies=(ROOT,), created_at=0)


def normalize_policy_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return policy names in normal form: lower case, sorted, without duplicates."""
    return tuple(sorted({name.strip().lower() for name in names} - {""}))


def sanitize_policy_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return policy names in normal form, or only `root` if it is one of them."""
    normalized = normalize_policy_names(names)
    return (ROOT,) if ROOT in normalized else normalized

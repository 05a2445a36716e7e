"""What is there without having been written: the policy of every token of the secrets side."""

from storage.records.acl import ANONYMOUS, ROOT, Token

# What a token may do with itself and with what is its own.
DEFAULT_RULES = """\
# A token may look at itself, live longer, and end.
path "auth/token/lookup-self" { capabilities = ["read"] }
path "auth/token/renew-self" { capabilities = ["update"] }
path "auth/token/revoke-self" { capabilities = ["update"] }

# It may ask what it is allowed to do, and who it is.
path "sys/capabilities-self" { capabilities = ["update"] }
path "sys/internal/ui/resultant-acl" { capabilities = ["read"] }
path "identity/entity/id/{{identity.entity.id}}" { capabilities = ["read"] }
path "identity/entity/name/{{identity.entity.name}}" { capabilities = ["read"] }

# Its leases.
path "sys/renew" { capabilities = ["update"] }
path "sys/leases/renew" { capabilities = ["update"] }
path "sys/leases/lookup" { capabilities = ["update"] }

# What it keeps for itself, and what was wrapped for it.
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

# Who shows no token.
NOBODY = Token(accessor=ANONYMOUS, name="Anonymous Token", policies=(ANONYMOUS,), created_at=0)
# Who asks a daemon that asks nobody.
UNASKED = Token(
    accessor="acls-disabled", name="ACLs disabled token", policies=(ROOT,), created_at=0
)


def operator_token(uid: int) -> Token:
    """Return the token of who needs none: an operator of this machine, known by his user."""
    return Token(accessor=f"user-{uid}", name="Operator", policies=(ROOT,), created_at=0)

"""The decision: what a request needs, and whether its caller has it."""

from enum import StrEnum

import msgspec

from daemon.acl.grant import Grant
from storage.records.acl import Token

EVERYWHERE = "*"
OWN_JOB = frozenset({"read-job", "read-job-scaling"})  # what a task may do with its own job


class Asks(StrEnum):
    """What kind of right a request needs."""

    NOTHING = "nothing"  # open to all, whatever token they show
    TOKEN = "a token"  # noqa: S105  # no unknown token; the answer holds only what may be seen
    NAMESPACE = "a capability on the namespace"
    OBJECT = "a capability on the namespace of the object"  # asked by the handler, which finds it
    VARIABLE = "a capability on the variable"  # asked by the handler
    SCOPE = "a level on a part of the daemon"
    MANAGEMENT = "a management token"
    PATH = "a capability on the path"  # asked with the rules of the secrets side


class Needs(msgspec.Struct, frozen=True):
    """What a route needs; any one of the capabilities is enough."""

    asks: Asks
    any_of: tuple[str, ...] = ()
    scope: str = ""
    everywhere: bool = False  # `*` names all namespaces; the handler shows what may be seen of them
    # Not None: why a token cannot be read is told after this text (golden: acl-token-garbage).
    tells_why: str | None = None


ANYONE = Needs(Asks.NOTHING)
KNOWN = Needs(Asks.TOKEN)
KNOWN_OR_WHY = Needs(Asks.TOKEN, tells_why="")
WHY = "ACL token not found or invalid workload identity: "
MANAGEMENT = Needs(Asks.MANAGEMENT)


def on_namespace(*any_of: str, tells_why: str | None = None) -> Needs:
    """Return the need of any of these capabilities on the request's namespace."""
    return Needs(Asks.NAMESPACE, any_of, tells_why=tells_why)


def on_listing(*any_of: str) -> Needs:
    """Return the need of any of these in the namespace that is listed; for `*`, in any at all."""
    return Needs(Asks.NAMESPACE, any_of, everywhere=True)


def on_object(*any_of: str) -> Needs:
    """Return the need of any of these capabilities where the object is that the request names."""
    return Needs(Asks.OBJECT, any_of)


def on_variable(capability: str) -> Needs:
    """Return the need of a capability on the variable that the request names."""
    return Needs(Asks.VARIABLE, (capability,))


def on_scope(scope: str, level: str, *, tells_why: str | None = None) -> Needs:
    """Return the need of a level on agent, node, operator, quota or plugin."""
    return Needs(Asks.SCOPE, (level,), scope=scope, tells_why=tells_why)


class Caller(msgspec.Struct, frozen=True):
    """Who asks: the token, and what its policies allow together."""

    token: Token
    grant: Grant
    own_job: tuple[str, str] | None = None  # namespace and id, of a task that asks

    def has(self, needs: Needs, namespace: str, job_id: str = "") -> bool:
        """Tell whether the caller has what a request to this namespace, or job, needs."""
        match needs.asks:
            case Asks.NAMESPACE if self.own_job == (namespace, job_id):
                allowed = not OWN_JOB.isdisjoint(needs.any_of)
                return allowed or self.grant.may(namespace, *needs.any_of)
            case Asks.NAMESPACE:
                if needs.everywhere and namespace == EVERYWHERE:
                    return self.grant.may_anywhere(*needs.any_of)
                return self.grant.may(namespace, *needs.any_of)
            case Asks.SCOPE:
                return self.grant.may_in(needs.scope, needs.any_of[0])
            case Asks.MANAGEMENT:
                return self.grant.everything
            case Asks.NOTHING | Asks.TOKEN | Asks.OBJECT | Asks.VARIABLE | Asks.PATH:
                return True

"""The authorization check: the requirement of a request, and the caller's capabilities."""

from enum import StrEnum

import msgspec

from daemon.acl.grant import CapabilitySet
from storage.records.acl import ANONYMOUS, Token

EVERYWHERE = "*"
OWN_JOB = frozenset({"read-job", "read-job-scaling"})  # capabilities of a task on its own job


class Requirement(StrEnum):
    """The kind of permission that a request needs."""

    NOTHING = "nothing"  # open to all, with any token or none
    TOKEN = "a token"  # noqa: S105  # any known token; the response contains only visible objects
    NAMESPACE = "a capability on the namespace"
    # checked by the handler, which finds the object
    OBJECT = "a capability on the namespace of the object"
    VARIABLE = "a capability on the variable"  # checked by the handler
    SCOPE = "a level on a part of the daemon"
    MANAGEMENT = "a management token"
    PATH = "a capability on the path"  # checked with the path rules of the Vault API


class RequiredCapability(msgspec.Struct, frozen=True):
    """The requirement of a route: any capability in `any_of` is enough."""

    asks: Requirement
    any_of: tuple[str, ...] = ()
    scope: str = ""
    everywhere: bool = False  # `*` means all namespaces; the handler filters the objects
    # If this is not None, it begins the error for an unreadable token (Nomad's recorded responses:
    # acl-token-garbage).
    tells_why: str | None = None


ANYONE = RequiredCapability(Requirement.NOTHING)
KNOWN = RequiredCapability(Requirement.TOKEN)
KNOWN_OR_WHY = RequiredCapability(Requirement.TOKEN, tells_why="")
WHY = "ACL token not found or invalid workload identity: "
MANAGEMENT = RequiredCapability(Requirement.MANAGEMENT)


def on_namespace(*any_of: str, tells_why: str | None = None) -> RequiredCapability:
    """Return a requirement for any of these capabilities in the request's namespace.

    `tells_why` is the prefix of the error for an unreadable token; None for the general error.
    """
    return RequiredCapability(Requirement.NAMESPACE, any_of, tells_why=tells_why)


def on_listing(*any_of: str) -> RequiredCapability:
    """Return a requirement for any of these capabilities in the listed namespace.

    If the request lists all namespaces (`*`), a capability in any namespace is enough.
    """
    return RequiredCapability(Requirement.NAMESPACE, any_of, everywhere=True)


def on_object(*any_of: str) -> RequiredCapability:
    """Return a requirement for any of these capabilities in the requested object's namespace."""
    return RequiredCapability(Requirement.OBJECT, any_of)


def on_variable(capability: str) -> RequiredCapability:
    """Return a requirement for a capability on the requested variable."""
    return RequiredCapability(Requirement.VARIABLE, (capability,))


def on_scope(scope: str, level: str, *, tells_why: str | None = None) -> RequiredCapability:
    """Return a requirement for an access level on a scope, such as `node` or `operator`."""
    return RequiredCapability(Requirement.SCOPE, (level,), scope=scope, tells_why=tells_why)


class Caller(msgspec.Struct, frozen=True):
    """The caller: its token, and the combined grant of its policies."""

    token: Token
    grant: CapabilitySet
    own_job: tuple[str, str] | None = None  # namespace and ID, if a task is the caller

    def may_send_much(self, needs: RequiredCapability) -> bool:
        """Return whether the daemon reads a long body from a caller that has passed `has`.

        Some handlers check the caller for an object only after they have read the body. For these
        routes, the caller's policies must grant a required capability for at least one object.
        """
        match needs.asks:
            case Requirement.NOTHING:
                return False
            case Requirement.TOKEN:
                return self.token.accessor != ANONYMOUS or not self.grant.is_empty
            case Requirement.OBJECT:
                return self.grant.may_anywhere(*needs.any_of)
            case Requirement.VARIABLE:
                return self.grant.may_with_some_variable(*needs.any_of)
            case (
                Requirement.NAMESPACE
                | Requirement.SCOPE
                | Requirement.MANAGEMENT
                | Requirement.PATH
            ):
                return True

    def has(self, needs: RequiredCapability, namespace: str, job_id: str = "") -> bool:
        """Return whether the caller meets a requirement in this namespace, or for this job."""
        match needs.asks:
            case Requirement.NAMESPACE if self.own_job == (namespace, job_id):
                allowed = not OWN_JOB.isdisjoint(needs.any_of)
                return allowed or self.grant.may(namespace, *needs.any_of)
            case Requirement.NAMESPACE:
                if needs.everywhere and namespace == EVERYWHERE:
                    return self.grant.may_anywhere(*needs.any_of)
                return self.grant.may(namespace, *needs.any_of)
            case Requirement.SCOPE:
                return self.grant.may_in(needs.scope, needs.any_of[0])
            case Requirement.MANAGEMENT:
                return self.grant.everything
            case (
                Requirement.NOTHING
                | Requirement.TOKEN
                | Requirement.OBJECT
                | Requirement.VARIABLE
                | Requirement.PATH
            ):
                return True

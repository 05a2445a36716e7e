"""Access: the visitor's own token, and who else may do what."""

from typing import Any

from daemon.ui import words
from daemon.ui.show import Found, or_nothing, page
from daemon.web.visits import Visit


@page("access.html")
async def overview(visit: Visit) -> Found:
    """Show the visitor's token, and the tokens, policies, roles and login methods he may see."""
    return {
        "own": await or_nothing(visit, "/v1/acl/token/self") if visit.session else None,
        "tokens": await or_nothing(visit, "/v1/acl/tokens"),
        "policies": await or_nothing(visit, "/v1/acl/policies"),
        "roles": await or_nothing(visit, "/v1/acl/roles"),
        "methods": _methods(await or_nothing(visit, "/v1/sys/auth")),
    }


@page("policy.html")
async def policy(visit: Visit) -> Found:
    """Show the rules of a policy."""
    found = await visit.get(words.address("/v1/acl/policy/", visit["name"]))
    return {"policy": found, "tokens": await or_nothing(visit, "/v1/acl/tokens")}


def _methods(found: Any) -> dict[str, Any] | None:  # noqa: ANN401  # JSON
    """Return the login methods by path, of an answer that has them once more beside itself."""
    return found["data"] if isinstance(found, dict) and "data" in found else None

"""The access pages: the user's own token, and access control."""

from typing import Any

from daemon.ui import formatting
from daemon.ui.render import Found, action, optional, page
from daemon.ui.tables import sort_table
from daemon.web.ui_session import UiRequest
from storage.errors import Denied, Malformed, NotFound

_SESSIONS = 100  # sessions that are shown
_TOKENS = 100  # tokens on one page
MOST_POLICIES = 500  # on one page, and in the form of a role
MOST_ROLES = 500  # on one page
_COLUMNS = {
    "name": lambda entry: entry["Name"],
    "type": lambda entry: entry["Type"],
    "made": lambda entry: entry["CreateTime"],
    "ends": lambda entry: entry["ExpirationTime"],
}


@page("access.html")
async def overview(ui_request: UiRequest) -> Found:
    """Show the user's token, and the tokens, policies, roles and login methods that they may see."""
    tokens, next_token = await _list(ui_request, "tokens", "next_token", _TOKENS)
    policies, more_policies = await _list(ui_request, "policies", "policies", MOST_POLICIES)
    roles, more_roles = await _list(ui_request, "roles", "roles", MOST_ROLES)
    sessions, session_count = await ui_request.sessions(_SESSIONS)
    sort = ui_request.query.text("sort-tokens")
    return {
        "own": await optional(ui_request, "/v1/acl/token/self") if ui_request.session else None,
        "sessions": sessions,
        "session_count": session_count,
        "tokens": tokens,
        "next_token": next_token,
        "token_table": sort_table("tokens", tokens or [], sort, _COLUMNS),
        "policies": policies,
        "more_policies": more_policies,
        "roles": roles,
        "more_roles": more_roles,
        "auth_methods": await optional(ui_request, "/v1/acl/auth-methods"),
        "methods": _methods(await optional(ui_request, "/v1/sys/auth")),
    }


async def _list(
    ui_request: UiRequest, kind: str, parameter: str, most: int
) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the objects of a kind on a page, and the page token of the next page.

    The objects are None if the user may not see them. `parameter` is the query parameter that
    contains the page token of this page.
    """
    after = ui_request.query.text(parameter)
    try:
        return await ui_request.get_page(f"/v1/acl/{kind}", most, after)
    except (Denied, Malformed, NotFound):
        return None, ""


@action
async def end_session(ui_request: UiRequest) -> str:
    """End a session of the user's own token; with a management token, end any session."""
    await ui_request.end_session(ui_request["session_id"])
    return "/ui/access"


@page("policy.html")
async def policy(ui_request: UiRequest) -> Found:
    """Show the rules of a policy."""
    document = await ui_request.get(formatting.address("/v1/acl/policy/", ui_request["name"]))
    return {"policy": document}


def _methods(response: Any) -> dict[str, Any] | None:  # noqa: ANN401  # JSON
    """Return the login methods by path, without the copy at the top level of the response."""
    return response["data"] if isinstance(response, dict) and "data" in response else None

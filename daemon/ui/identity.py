"""The forms of access control: tokens, policies, roles, and explanations of access."""

from typing import Any

from daemon.ui import formatting
from daemon.ui.render import Found, action, page, render_page, with_error_message
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, NotFound

ACCESS = "/ui/access"
_POLICY, _ROLE = "policy.", "role."  # prefixes of form fields that select one
LOGIN = (  # fields of a login
    "role",
    "jwt",
    "subscription_id",
    "resource_group_name",
    "vm_name",
    "vmss_name",
    "resource_id",
)


def text(visit: UiRequest, name: str) -> str:
    """Return a field of the form without surrounding space."""
    return visit.form.get(name, "").strip()


def _chosen(visit: UiRequest, beginning: str) -> list[str]:
    return [name.removeprefix(beginning) for name in visit.form if name.startswith(beginning)]


def _rules(visit: UiRequest) -> str:
    return visit.form.get("rules", "").replace("\r\n", "\n")


# --- tokens -------------------------------------------------------------------------------------


@with_error_message
async def create_token(visit: UiRequest) -> HandlerReply:
    """Create a token, and show its secret once."""
    body = {
        "Name": text(visit, "name"),
        "Type": text(visit, "type"),
        "Policies": _chosen(visit, _POLICY),
        "Roles": [{"ID": role_id} for role_id in _chosen(visit, _ROLE)],
        "ExpirationTTL": text(visit, "ttl") or None,
    }
    return await render_page(
        visit, "token.html", {"token": await visit.post("/v1/acl/token", body)}
    )


@action
async def revoke_token(visit: UiRequest) -> str:
    """Revoke a token."""
    await visit.ask("DELETE", formatting.address("/v1/acl/token/", visit["accessor"]))
    return ACCESS


# --- policies -----------------------------------------------------------------------------------


@action
async def put_policy(visit: UiRequest) -> str:
    """Create or change a policy."""
    name = text(visit, "name")
    if not name:
        raise Malformed('name = "" is empty: write a name, such as developers')
    known = [one["Name"] for one in await visit.get("/v1/acl/policies")]
    if visit.form.get("new") and name in known:
        raise Malformed(f"policy {name} exists already: change it on its own page")
    body = {"Name": name, "Description": text(visit, "description"), "Rules": _rules(visit)}
    await visit.post(formatting.address("/v1/acl/policy/", name), body)
    return formatting.address("/ui/policy/", name)


@action
async def remove_policy(visit: UiRequest) -> str:
    """Delete a policy."""
    await visit.ask("DELETE", formatting.address("/v1/acl/policy/", visit["name"]))
    return ACCESS


# --- roles --------------------------------------------------------------------------------------


@page("role.html")
async def role(visit: UiRequest) -> Found:
    """Show a role in a form."""
    return {
        "role": await visit.get(formatting.address("/v1/acl/role/", visit["role_id"])),
        "policies": await visit.get("/v1/acl/policies"),
    }


@action
async def put_role(visit: UiRequest) -> str:
    """Create a role, or change the one in the form."""
    role_id = text(visit, "id")
    body = {
        "ID": role_id,
        "Name": text(visit, "name"),
        "Description": text(visit, "description"),
        "Policies": [{"Name": name} for name in _chosen(visit, _POLICY)],
    }
    path = formatting.address("/v1/acl/role/", role_id) if role_id else "/v1/acl/role"
    await visit.post(path, body)
    return ACCESS


@action
async def remove_role(visit: UiRequest) -> str:
    """Delete a role."""
    await visit.ask("DELETE", formatting.address("/v1/acl/role/", visit["role_id"]))
    return ACCESS


# --- explanations -------------------------------------------------------------------------------


@with_error_message
async def explain(visit: UiRequest) -> HandlerReply:
    """Show which rule allows or denies a request, to a token or to a set of policies."""
    policy = text(visit, "policy")
    body = {
        "Token": text(visit, "token"),
        "Policies": [policy] if policy else None,
        "Method": text(visit, "method"),
        "Path": text(visit, "path"),
    }
    found = await visit.post("/v1/acl/explain", body)
    return await render_page(
        visit, "explained.html", {"asked": body, "found": found, "policy": policy}
    )


# --- login methods ------------------------------------------------------------------------------


@page("method.html")
async def method(visit: UiRequest) -> Found:
    """Show a login method with its roles."""
    return await _method(visit, visit["path"])


@with_error_message
async def explain_login(visit: UiRequest) -> HandlerReply:
    """Show which rules a login meets, and which one rejects it; no token is issued."""
    path = visit["path"].strip("/")
    said = {name: value for name in LOGIN if (value := text(visit, name))}
    found = await _method(visit, path)
    answer = await visit.post(f"/v1/auth/{path}/explain", said)
    said.pop("jwt", None)  # a credential, so it is not sent back
    return await render_page(
        visit, "method.html", {**found, "said": said, "explained": answer["data"]}
    )


async def _method(visit: UiRequest, path: str) -> dict[str, Any]:
    place = path.strip("/")
    known = (await visit.get("/v1/sys/auth"))["data"].get(f"{place}/")
    if known is None:
        raise NotFound(f"there is no login method at {place}")
    base = f"/v1/auth/{place}"
    names = (await _data(visit, f"{base}/role", list=True)).get("keys", ())
    roles = {name: await _data(visit, f"{base}/role/{name}") for name in names}
    return {
        "place": place,
        "method": known,
        "config": _set(await _data(visit, f"{base}/config")),
        "roles": {name: _set(found) for name, found in roles.items()},
    }


async def _data(visit: UiRequest, path: str, **query: object) -> dict[str, Any]:
    """Return the data at a path of the Vault API; empty if there are none."""
    try:
        return dict((await visit.get(path, **query) or {}).get("data") or {})
    except NotFound:
        return {}


def _set(found: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the non-empty values of a document as text."""
    return [(name, _word(value)) for name, value in found.items() if value not in ("", None, [], 0)]


def _word(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value

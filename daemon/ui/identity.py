"""The forms of access control: tokens, policies, roles, and explanations of access."""

from typing import Any

from daemon.ui import formatting
from daemon.ui.access import MOST_POLICIES
from daemon.ui.forms import duration_text
from daemon.ui.render import (
    Found,
    action,
    form_action,
    keeps_form,
    page,
    render_page,
    with_error_message,
)
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, NotFound

# Suffixes of the names of fields that hold a duration.
_ROLES = 50  # roles of a login method on one page
_DURATIONS = ("_ttl", "_period", "_window", "_leeway", "_delay")

ACCESS = "/ui/access"
_POLICY, _ROLE = "policy.", "role."  # prefixes of the form fields that select a policy or a role
LOGIN = (  # fields of the login form
    "role",
    "jwt",
    "subscription_id",
    "resource_group_name",
    "vm_name",
    "vmss_name",
    "resource_id",
)


def text(ui_request: UiRequest, name: str) -> str:
    """Return a field of the form without surrounding space."""
    return ui_request.form.get(name, "").strip()


def _chosen(ui_request: UiRequest, beginning: str) -> list[str]:
    return [name.removeprefix(beginning) for name in ui_request.form if name.startswith(beginning)]


def _rules(ui_request: UiRequest) -> str:
    return ui_request.form.get("rules", "").replace("\r\n", "\n")


# --- tokens -------------------------------------------------------------------------------------


@with_error_message
@keeps_form(lambda _: ACCESS)
async def create_token(ui_request: UiRequest) -> HandlerReply:
    """Create a token, and show its secret once."""
    body = {
        "Name": text(ui_request, "name"),
        "Type": text(ui_request, "type"),
        "Policies": _chosen(ui_request, _POLICY),
        "Roles": [{"ID": role_id} for role_id in _chosen(ui_request, _ROLE)],
        "ExpirationTTL": text(ui_request, "ttl") or None,
    }
    return await render_page(
        ui_request, "token.html", {"token": await ui_request.post("/v1/acl/token", body)}
    )


@action
async def revoke_token(ui_request: UiRequest) -> str:
    """Revoke a token."""
    await ui_request.ask("DELETE", formatting.address("/v1/acl/token/", ui_request["accessor"]))
    return ACCESS


# --- policies -----------------------------------------------------------------------------------


@form_action(
    lambda ui_request: (
        ACCESS
        if ui_request.form.get("new")
        else formatting.address("/ui/policy/", text(ui_request, "name"))
    )
)
async def put_policy(ui_request: UiRequest) -> str:
    """Create or change a policy."""
    name = text(ui_request, "name")
    if not name:
        raise Malformed('name = "" is empty: write a name, such as developers')
    policy_names = [policy["Name"] for policy in await ui_request.get("/v1/acl/policies")]
    if ui_request.form.get("new") and name in policy_names:
        raise Malformed(f"policy {name} exists already: change it on its own page")
    body = {
        "Name": name,
        "Description": text(ui_request, "description"),
        "Rules": _rules(ui_request),
    }
    await ui_request.post(formatting.address("/v1/acl/policy/", name), body)
    return formatting.address("/ui/policy/", name)


@action
async def remove_policy(ui_request: UiRequest) -> str:
    """Delete a policy."""
    await ui_request.ask("DELETE", formatting.address("/v1/acl/policy/", ui_request["name"]))
    return ACCESS


# --- roles --------------------------------------------------------------------------------------


@page("role.html")
async def role(ui_request: UiRequest) -> Found:
    """Show a role in a form."""
    document = await ui_request.get(formatting.address("/v1/acl/role/", ui_request["role_id"]))
    policies, _ = await ui_request.get_page("/v1/acl/policies", MOST_POLICIES, "")
    # Without these, saving the form would remove them from the role.
    shown = {policy["Name"] for policy in policies}
    policies += [link for link in document["Policies"] or () if link["Name"] not in shown]
    return {"role": document, "policies": policies}


@form_action(
    lambda ui_request: (
        formatting.address("/ui/role/", role_id) if (role_id := text(ui_request, "id")) else ACCESS
    )
)
async def put_role(ui_request: UiRequest) -> str:
    """Create a role, or change the role in the form."""
    role_id = text(ui_request, "id")
    body = {
        "ID": role_id,
        "Name": text(ui_request, "name"),
        "Description": text(ui_request, "description"),
        "Policies": [{"Name": name} for name in _chosen(ui_request, _POLICY)],
    }
    path = formatting.address("/v1/acl/role/", role_id) if role_id else "/v1/acl/role"
    await ui_request.post(path, body)
    return ACCESS


@action
async def remove_role(ui_request: UiRequest) -> str:
    """Delete a role."""
    await ui_request.ask("DELETE", formatting.address("/v1/acl/role/", ui_request["role_id"]))
    return ACCESS


# --- explanations -------------------------------------------------------------------------------


@with_error_message
async def explain(ui_request: UiRequest) -> HandlerReply:
    """Show which rule allows or denies a request with a given token, or with given policies."""
    policy = text(ui_request, "policy")
    body = {
        "Token": text(ui_request, "token"),
        "Policies": [policy] if policy else None,
        "Method": text(ui_request, "method"),
        "Path": text(ui_request, "path"),
    }
    decision = await ui_request.post("/v1/acl/explain", body)
    return await render_page(
        ui_request, "explained.html", {"asked": body, "found": decision, "policy": policy}
    )


# --- login methods ------------------------------------------------------------------------------


@page("method.html")
async def method(ui_request: UiRequest) -> Found:
    """Show a login method with its roles."""
    return await _method(ui_request, ui_request["path"], ui_request.query.text("next_token"))


@with_error_message
async def explain_login(ui_request: UiRequest) -> HandlerReply:
    """Show which rules a login satisfies, and which rule rejects it. No token is issued."""
    path = ui_request["path"].strip("/")
    fields = {name: value for name in LOGIN if (value := text(ui_request, name))}
    context = await _method(ui_request, path)
    answer = await ui_request.post(f"/v1/auth/{path}/explain", fields)
    fields.pop("jwt", None)  # a credential, so it is not sent back
    return await render_page(
        ui_request, "method.html", {**context, "said": fields, "explained": answer["data"]}
    )


async def _method(ui_request: UiRequest, path: str, after: str = "") -> dict[str, Any]:
    """Return the data of a login method's page. Its list of roles begins after the role `after`."""
    mount_path = path.strip("/")
    stored_mount = (await ui_request.get("/v1/sys/auth"))["data"].get(f"{mount_path}/")
    if stored_mount is None:
        raise NotFound(f"there is no login method at {mount_path}")
    base = f"/v1/auth/{mount_path}"
    # The list has no pages, as in Vault, so only the settings are read by page.
    listed = (await _data(ui_request, f"{base}/role", list=True)).get("keys", ())
    following = [name for name in listed if name > after]
    names = following[:_ROLES]
    roles = {name: await _data(ui_request, f"{base}/role/{name}") for name in names}
    return {
        "place": mount_path,
        "method": stored_mount,
        "config": _set(await _data(ui_request, f"{base}/config")),
        "roles": {name: _set(settings) for name, settings in roles.items()},
        "next_token": names[-1] if len(following) > _ROLES else "",
    }


async def _data(ui_request: UiRequest, path: str, **query: object) -> dict[str, Any]:
    """Return the data at a path of the Vault API; empty if there is none."""
    try:
        return dict((await ui_request.get(path, **query) or {}).get("data") or {})
    except NotFound:
        return {}


def _set(fields: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the fields that are set, each as its name and its formatted value."""
    return [
        (name, _format_value(name, value))
        for name, value in fields.items()
        if value not in ("", None, [], {}, 0)
    ]


def _format_value(name: str, value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith(_DURATIONS):
        return duration_text(name, value)
    return value

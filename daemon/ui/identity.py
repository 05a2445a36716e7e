"""Who may do what, changed in forms: tokens, policies and roles; and why somebody may, or is let in."""

from typing import Any

from daemon.ui import words
from daemon.ui.show import Found, action, page, shown, telling
from daemon.web.reply import Reply
from daemon.web.visits import Visit
from storage.errors import Malformed, NotFound

ACCESS = "/ui/access"
_POLICY, _ROLE = "policy.", "role."  # what the names of fields begin with that choose one
LOGIN = (  # what somebody says who logs in
    "role",
    "jwt",
    "subscription_id",
    "resource_group_name",
    "vm_name",
    "vmss_name",
    "resource_id",
)


def text(visit: Visit, name: str) -> str:
    """Return a field of the form, without what stands around it."""
    return visit.form.get(name, "").strip()


def _chosen(visit: Visit, beginning: str) -> list[str]:
    return [name.removeprefix(beginning) for name in visit.form if name.startswith(beginning)]


def _rules(visit: Visit) -> str:
    return visit.form.get("rules", "").replace("\r\n", "\n")


# ---- tokens ----------------------------------------------------------------------------------


@telling
async def make_token(visit: Visit) -> Reply:
    """Make a token, and show its secret this once."""
    body = {
        "Name": text(visit, "name"),
        "Type": text(visit, "type"),
        "Policies": _chosen(visit, _POLICY),
        "Roles": [{"ID": role_id} for role_id in _chosen(visit, _ROLE)],
        "ExpirationTTL": text(visit, "ttl") or None,
    }
    return await shown(visit, "token.html", {"token": await visit.post("/v1/acl/token", body)})


@action
async def end_token(visit: Visit) -> str:
    """End a token."""
    await visit.ask("DELETE", words.address("/v1/acl/token/", visit["accessor"]))
    return ACCESS


# ---- policies --------------------------------------------------------------------------------


@action
async def put_policy(visit: Visit) -> str:
    """Make a policy, or change it."""
    name = text(visit, "name")
    if not name:
        raise Malformed('name = "" names no policy: write one, as developers')
    known = [one["Name"] for one in await visit.get("/v1/acl/policies")]
    if visit.form.get("new") and name in known:
        raise Malformed(f"there is a policy {name}: change it on its own page")
    body = {"Name": name, "Description": text(visit, "description"), "Rules": _rules(visit)}
    await visit.post(words.address("/v1/acl/policy/", name), body)
    return words.address("/ui/policy/", name)


@action
async def remove_policy(visit: Visit) -> str:
    """Remove a policy."""
    await visit.ask("DELETE", words.address("/v1/acl/policy/", visit["name"]))
    return ACCESS


# ---- roles -----------------------------------------------------------------------------------


@page("role.html")
async def role(visit: Visit) -> Found:
    """Show a role, in a form."""
    return {
        "role": await visit.get(words.address("/v1/acl/role/", visit["role_id"])),
        "policies": await visit.get("/v1/acl/policies"),
    }


@action
async def put_role(visit: Visit) -> str:
    """Make a role, or change the one that the form names."""
    role_id = text(visit, "id")
    body = {
        "ID": role_id,
        "Name": text(visit, "name"),
        "Description": text(visit, "description"),
        "Policies": [{"Name": name} for name in _chosen(visit, _POLICY)],
    }
    path = words.address("/v1/acl/role/", role_id) if role_id else "/v1/acl/role"
    await visit.post(path, body)
    return ACCESS


@action
async def remove_role(visit: Visit) -> str:
    """Remove a role."""
    await visit.ask("DELETE", words.address("/v1/acl/role/", visit["role_id"]))
    return ACCESS


# ---- why -------------------------------------------------------------------------------------


@telling
async def explain(visit: Visit) -> Reply:
    """Show which rule allows a request, or refuses it: to a token, or to who has a policy."""
    policy = text(visit, "policy")
    body = {
        "Token": text(visit, "token"),
        "Policies": [policy] if policy else None,
        "Method": text(visit, "method"),
        "Path": text(visit, "path"),
    }
    found = await visit.post("/v1/acl/explain", body)
    return await shown(visit, "explained.html", {"asked": body, "found": found, "policy": policy})


# ---- login methods ---------------------------------------------------------------------------


@page("method.html")
async def method(visit: Visit) -> Found:
    """Show a login method: who is let in, and as what."""
    return await _method(visit, visit["path"])


@telling
async def explain_login(visit: Visit) -> Reply:
    """Show which rules a login would meet, and which one refuses it; nobody is let in."""
    path = visit["path"].strip("/")
    said = {name: value for name in LOGIN if (value := text(visit, name))}
    found = await _method(visit, path)
    answer = await visit.post(f"/v1/auth/{path}/explain", said)
    said.pop("jwt", None)  # it opens something: it is not sent back
    return await shown(visit, "method.html", {**found, "said": said, "explained": answer["data"]})


async def _method(visit: Visit, path: str) -> dict[str, Any]:
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


async def _data(visit: Visit, path: str, **query: object) -> dict[str, Any]:
    """Return what stands at a path of the secrets side; nothing where there is nothing."""
    try:
        return dict((await visit.get(path, **query) or {}).get("data") or {})
    except NotFound:
        return {}


def _set(found: dict[str, Any]) -> list[tuple[str, object]]:
    """Return what is set of a document, in words."""
    return [(name, _word(value)) for name, value in found.items() if value not in ("", None, [], 0)]


def _word(value: object) -> object:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value

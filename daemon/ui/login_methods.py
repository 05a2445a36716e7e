"""The forms of login methods: the method, its configuration, and its roles with their bound attributes.

A client secret is never sent to a browser.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from daemon.ui import formatting
from daemon.ui.forms import FormField, FormSection, form_body, form_values, send_form
from daemon.ui.identity import ACCESS, text
from daemon.ui.render import Found, action, page, with_error_message
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, NotFound

_SECRET = "client_secret"  # noqa: S105  # a field, not a secret
_REMOVES_SECRET = "remove_client_secret"  # noqa: S105  # a field, not a secret


_DEFAULT = "such as 8h; empty: the default of the system"
METHOD = (
    FormSection(
        "Method",
        (
            FormField("description", "Description"),
            FormField("default_lease_ttl", "Default TTL of tokens", "seconds", _DEFAULT),
            FormField("max_lease_ttl", "Maximum TTL of tokens", "seconds", _DEFAULT),
        ),
    ),
)
NEW_METHOD = (
    FormSection(
        "Method",
        (
            FormField("path", "Path", hint="such as azure", required=True),
            FormField("type", "Type", "choice", choices=("azure", "cloudid")),
            *METHOD[0].fields,
        ),
    ),
)
CONFIG = (
    FormSection(
        "Directory",
        (
            FormField("tenant_id", "Tenant", hint="UUID of the directory"),
            FormField("resource", "Resource", hint="audience that tokens must have"),
            FormField("environment", "Cloud", hint="such as AzurePublicCloud"),
            FormField("clock_leeway", "Clock difference", "seconds", "at most 10m"),
            FormField("look_up_groups", "Query the directory for the groups of a login", "flag"),
        ),
    ),
    FormSection(
        "Steward's own account",
        (
            FormField("client_id", "Client"),
            FormField(_SECRET, "Client secret", "secret", "empty: unchanged"),
            FormField(_REMOVES_SECRET, "Delete the stored client secret", "flag"),
            FormField("identity_token_audience", "Audience of the identity token"),
            FormField("identity_token_ttl", "TTL of the identity token", "seconds"),
            FormField("token_file", "File with a federated token"),
        ),
    ),
    FormSection(
        "Rotation of the client secret",
        (
            FormField("rotation_schedule", "Schedule", hint="cron expression"),
            FormField("rotation_window", "Window after each scheduled time", "seconds"),
            FormField("rotation_period", "Period", "seconds", "instead of a schedule"),
            FormField("root_password_ttl", "TTL of a new secret", "seconds", optional=True),
            FormField("disable_automated_rotation", "Rotate only on request", "flag"),
            FormField("remove_foreign_passwords", "Delete passwords of other programs", "flag"),
        ),
    ),
    FormSection(
        "Requests to the cloud",
        (
            FormField("max_retries", "Retries", "number", optional=True),
            FormField("retry_delay", "First delay", "seconds", optional=True),
            FormField("max_retry_delay", "Longest delay", "seconds", optional=True),
        ),
    ),
)
ROLE = (
    FormSection(
        "Bounds",
        (
            FormField("bound_service_principal_ids", "Service principals", "list", "object IDs"),
            FormField("bound_group_ids", "Groups", "list", "object IDs"),
            FormField("bound_subscription_ids", "Subscriptions", "list"),
            FormField("bound_resource_groups", "Resource groups", "list"),
            FormField("bound_locations", "Locations", "list", "such as westeurope"),
            FormField("bound_scale_sets", "Scale sets", "list"),
        ),
        subject="bound constraint",
    ),
    FormSection(
        "Tokens",
        (
            FormField("token_policies", "Policies", "list"),
            FormField("token_no_default_policy", "Omit the policy named default", "flag"),
            FormField("token_type", "Type", "choice", choices=("default", "service", "batch")),
            FormField("token_ttl", "TTL", "seconds", "such as 1h; empty: the method's TTL"),
            FormField("token_max_ttl", "Maximum TTL", "seconds"),
            FormField("token_explicit_max_ttl", "Maximum TTL, including renewals", "seconds"),
            FormField("token_period", "Period of renewals", "seconds", "without a maximum TTL"),
            FormField("token_num_uses", "Number of uses", "number", "0: no limit"),
            FormField("token_bound_cidrs", "Client addresses", "list", "such as 10.0.0.0/8"),
            FormField("alias_metadata", "Metadata of the alias", "pairs", "key=value"),
        ),
    ),
)


# --- the method ---------------------------------------------------------------------------------


@page("login_form.html")
async def new_method(ui_request: UiRequest) -> Found:
    """Show the form for a new login method."""
    del ui_request
    return _new_method({})


@with_error_message
async def enable(ui_request: UiRequest) -> HandlerReply:
    """Enable a login method."""
    path = text(ui_request, "path").strip("/")

    async def send() -> object:
        body = form_body(ui_request, NEW_METHOD)
        ttls = {name: body.pop(name) for name in ("default_lease_ttl", "max_lease_ttl")}
        body.pop("path")
        if not path:
            raise Malformed('path = "" is empty: write a path, such as azure')
        return await ui_request.post(f"/v1/sys/auth/{quote(path)}", {**body, "config": ttls})

    return await send_form(ui_request, send, _new_method, NEW_METHOD, method_url(path))


@page("login_form.html")
async def edit_method(ui_request: UiRequest) -> Found:
    """Show the form of a login method."""
    path = _path(ui_request)
    mount = await _mount(ui_request, path)
    return _method(path, form_values({**mount["config"], **mount}, METHOD))


@with_error_message
async def tune(ui_request: UiRequest) -> HandlerReply:
    """Change a login method."""
    path = _path(ui_request)

    async def send() -> object:
        return await ui_request.post(
            f"/v1/sys/auth/{quote(path)}/tune", form_body(ui_request, METHOD)
        )

    return await send_form(
        ui_request, send, lambda values: _method(path, values), METHOD, method_url(path)
    )


@action
async def disable(ui_request: UiRequest) -> str:
    """Disable a login method, and revoke its tokens."""
    await ui_request.ask("DELETE", f"/v1/sys/auth/{quote(_path(ui_request))}")
    return ACCESS


# --- the configuration --------------------------------------------------------------------------


@page("login_form.html")
async def edit_config(ui_request: UiRequest) -> Found:
    """Show the form of a login method's configuration."""
    path = _path(ui_request)
    await _mount(ui_request, path)
    try:
        config = (await ui_request.get(f"/v1/auth/{quote(path)}/config"))["data"]
    except NotFound:
        config = {}
    return _config(path, form_values(config, CONFIG))


@with_error_message
async def write_config(ui_request: UiRequest) -> HandlerReply:
    """Create or change the configuration of a login method."""
    path = _path(ui_request)

    async def send() -> object:
        body = form_body(ui_request, CONFIG)
        removes = body.pop(_REMOVES_SECRET)
        if removes and _SECRET in body:
            raise Malformed(
                f"{_SECRET} and {_REMOVES_SECRET} are both set: a new secret replaces the old one"
            )
        if removes:
            body[_SECRET] = ""
        return await ui_request.post(f"/v1/auth/{quote(path)}/config", body)

    return await send_form(
        ui_request, send, lambda values: _config(path, values), CONFIG, method_url(path)
    )


# --- roles --------------------------------------------------------------------------------------


@page("login_form.html")
async def new_role(ui_request: UiRequest) -> Found:
    """Show the form for a new role."""
    path = _path(ui_request)
    await _mount(ui_request, path)
    return _role(path, "", {})


@page("login_form.html")
async def edit_role(ui_request: UiRequest) -> Found:
    """Show the form of a role."""
    path, name = _path(ui_request), ui_request["name"]
    answer = await ui_request.get(_role_address(path, name))
    return _role(path, name, form_values(answer["data"], ROLE))


@with_error_message
async def create_role(ui_request: UiRequest) -> HandlerReply:
    """Create a role with the name in the form."""
    path, name = _path(ui_request), text(ui_request, "name")

    async def send() -> object:
        if not name:
            raise Malformed('name = "" is empty: write a name, such as web')
        if await _exists(ui_request, path, name):
            raise Malformed(f"name {name!r} is used by another role: change that role on its page")
        return await ui_request.post(_role_address(path, name), form_body(ui_request, ROLE))

    return await send_form(
        ui_request, send, lambda values: _role(path, "", values), _NEW_ROLE, method_url(path)
    )


@with_error_message
async def write_role(ui_request: UiRequest) -> HandlerReply:
    """Change a role."""
    path, name = _path(ui_request), ui_request["name"]

    async def send() -> object:
        return await ui_request.post(_role_address(path, name), form_body(ui_request, ROLE))

    return await send_form(
        ui_request, send, lambda values: _role(path, name, values), ROLE, method_url(path)
    )


@action
async def remove_role(ui_request: UiRequest) -> str:
    """Delete a role."""
    path = _path(ui_request)
    await ui_request.ask("DELETE", _role_address(path, ui_request["name"]))
    return method_url(path)


_NEW_ROLE = (FormSection("Role", (FormField("name", "Name", required=True),)), *ROLE)


async def _exists(ui_request: UiRequest, path: str, name: str) -> bool:
    try:
        await ui_request.get(_role_address(path, name))
    except NotFound:
        return False
    return True


def _role_address(path: str, name: str) -> str:
    return f"/v1/auth/{quote(path)}/role/{quote(name, safe='')}"


# --- forms --------------------------------------------------------------------------------------


def method_url(path: str) -> str:
    """Return the URL of the page of a login method."""
    return formatting.address("/ui/method/", path)


def _new_method(values: Mapping[str, object]) -> Found:
    return {
        "heading": "New login method",
        "form": "/ui/methods",
        "sections": NEW_METHOD,
        "values": values,
        "line": "steward auth enable -path PATH azure",
        "button": "Enable method",
    }


def _method(path: str, values: Mapping[str, object]) -> Found:
    return {
        "heading": f"Login method {path}",
        "place": path,
        "form": f"{method_url(path)}/edit",
        "sections": METHOD,
        "values": values,
        "line": formatting.command("auth", "tune", "-description", "TEXT", path),
        "button": "Save method",
    }


def _config(path: str, values: Mapping[str, object]) -> Found:
    return {
        "heading": f"Configuration of {path}",
        "place": path,
        "form": f"{method_url(path)}/config",
        "sections": CONFIG,
        "values": values,
        "line": formatting.command("write", f"auth/{path}/config", "client_id=ID"),
        "button": "Save configuration",
    }


def _role(path: str, name: str, values: Mapping[str, object]) -> Found:
    base = method_url(path)
    line = formatting.command("write", f"auth/{path}/role/{name or 'NAME'}", "bound_group_ids=ID")
    return {
        "heading": f"Role {name}" if name else "New role",
        "place": path,
        "form": formatting.address(f"{base}/role/", name) if name else f"{base}/roles",
        "sections": ROLE if name else _NEW_ROLE,
        "values": values,
        "line": line,
        "button": "Save role" if name else "Create role",
        "remove": formatting.address(f"{base}/role/", name, "/remove") if name else "",
        "remove_line": formatting.command("delete", f"auth/{path}/role/{name}"),
        "remove_about": (
            "Logins with this role are rejected immediately. Its tokens remain valid until they "
            "expire."
        ),
    }


async def _mount(ui_request: UiRequest, path: str) -> dict[str, Any]:
    mount: dict[str, Any] | None = (await ui_request.get("/v1/sys/auth"))["data"].get(f"{path}/")
    if mount is None:
        raise NotFound(f"there is no login method at {path}")
    return mount


def _path(ui_request: UiRequest) -> str:
    return ui_request["path"].strip("/")

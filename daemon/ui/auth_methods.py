"""The forms for auth methods of the jobs API, and for the binding rules of these methods.

The API stores no secret of a method, so no form contains a secret. A form keeps the parts of a
configuration that it does not show, such as a client assertion.
"""

from collections.abc import Mapping
from typing import Any

from daemon.ui import formatting
from daemon.ui.forms import FormField, FormSection, form_body, form_values, send_form
from daemon.ui.identity import ACCESS, text
from daemon.ui.render import Found, action, page, with_error_message
from daemon.web.reply import HandlerReply
from daemon.web.ui_session import UiRequest
from storage.errors import Malformed, NotFound

RULES = 100  # binding rules that the page of a method shows
_NAME = FormField("Name", "Name", hint="such as ci", required=True, said=("invalid name",))
_METHOD = FormSection(
    "Method",
    (
        FormField("Type", "Type", "choice", choices=("JWT", "OIDC"), said=("invalid token type",)),
        FormField("MaxTokenTTL", "TTL of tokens", "seconds", "such as 15m", optional=True),
        FormField(
            "TokenLocality",
            "Locality of tokens",
            "choice",
            choices=("local", "global"),
            said=("token locality",),
        ),
        FormField(
            "TokenNameFormat",
            "Name of tokens",
            hint="such as ${auth_method_name} ${value.repo}; empty: unchanged",
        ),
        FormField(
            "Default", "Default for logins without a method", "flag", said=("default method",)
        ),
    ),
)
CONFIG = (
    FormSection(
        "Keys of the issuer",
        (
            FormField("JWKSURL", "JWKS URL", said=("JWKS URL",)),
            FormField("JWKSCACert", "Certificate authority of the JWKS URL", "pem"),
            FormField("OIDCDiscoveryURL", "Discovery URL", hint="instead of a JWKS URL"),
            FormField("DiscoveryCaPem", "Certificate authorities of the discovery URL", "pems"),
            FormField("JWTValidationPubKeys", "Public keys", "pems", "instead of a URL"),
            FormField("SigningAlgs", "Algorithms", "list", "RS256, or empty"),
        ),
    ),
    FormSection(
        "Claims",
        (
            FormField("BoundAudiences", "Audiences", "list", "a token must have one of these"),
            FormField("BoundIssuer", "Issuers", "list", "a token must be from one of these"),
            FormField("ClaimMappings", "Claims", "pairs", "CLAIM=NAME, used as value.NAME"),
            FormField("ListClaimMappings", "Lists", "pairs", "CLAIM=NAME, used as list.NAME"),
        ),
    ),
    FormSection(
        "Clock leeway",
        (
            FormField("ExpirationLeeway", "After the expiration", "seconds", optional=True),
            FormField("NotBeforeLeeway", "Before the start of validity", "seconds", optional=True),
            FormField("ClockSkewLeeway", "For all timestamps", "seconds", optional=True),
        ),
    ),
    FormSection(
        "Logins in a browser (OIDC), stored only for other tools",
        (
            FormField("OIDCClientID", "Client"),
            FormField("OIDCScopes", "Scopes", "list"),
            FormField("AllowedRedirectURIs", "Redirect URIs", "list"),
            FormField("OIDCEnablePKCE", "With PKCE", "flag"),
            FormField("OIDCDisableUserInfo", "Without the user info endpoint", "flag"),
            FormField("VerboseLogging", "Log all claims", "flag"),
        ),
    ),
)
METHOD = (_METHOD, *CONFIG)
NEW_METHOD = (FormSection("Method", (_NAME, *_METHOD.fields)), *CONFIG)
RULE = (
    FormSection(
        "Binding rule",
        (
            FormField("Description", "Description", said=("description longer",)),
            FormField(
                "Selector",
                "Selector",
                hint='such as "ops" in list.groups; empty: every login',
                said=("selector",),
            ),
            FormField(
                "BindType",
                "Grants",
                "choice",
                choices=("policy", "role", "management"),
                said=("bind type",),
            ),
            FormField(
                "BindName",
                "Name of the policy or role",
                hint="such as ${value.team}-deployers; empty for management",
                said=("bind name",),
            ),
        ),
    ),
)


# --- methods ------------------------------------------------------------------------------------


@page("auth_method.html")
async def method(ui_request: UiRequest) -> Found:
    """Show an auth method with its binding rules."""
    name = ui_request["name"]
    document = await ui_request.get(_method_address(name))
    stubs = await ui_request.get("/v1/acl/binding-rules")
    ids = [rule["ID"] for rule in stubs if rule["AuthMethod"] == name]
    rules = [await ui_request.get(_rule_address(rule_id)) for rule_id in ids[:RULES]]
    return {
        "method": document,
        "facts": _facts(document, METHOD[:1]) + _facts(document["Config"] or {}, CONFIG),
        "rules": rules,
        "more_rules": len(ids) - len(rules),
    }


@page("login_form.html")
async def new_method(ui_request: UiRequest) -> Found:
    """Show the form for a new auth method."""
    del ui_request
    return _new_method({})


@with_error_message
async def create_method(ui_request: UiRequest) -> HandlerReply:
    """Create an auth method with the name in the form."""
    name = text(ui_request, "Name")

    async def send() -> object:
        if not name:
            raise Malformed('Name = "" is empty: write a name, such as ci')
        try:
            await ui_request.get(_method_address(name))
        except NotFound:
            body = _body(ui_request, {})
            return await ui_request.post("/v1/acl/auth-method", {**body, "Name": name})
        raise Malformed(f"Name {name!r} is used by another method: change it on its own page")

    return await send_form(ui_request, send, _new_method, NEW_METHOD, method_url(name))


@page("login_form.html")
async def edit_method(ui_request: UiRequest) -> Found:
    """Show the form of an auth method."""
    document = await ui_request.get(_method_address(ui_request["name"]))
    return _method(
        document["Name"], form_values({**(document["Config"] or {}), **document}, METHOD)
    )


@with_error_message
async def change_method(ui_request: UiRequest) -> HandlerReply:
    """Change an auth method."""
    name = ui_request["name"]

    async def send() -> object:
        stored_method = await ui_request.get(_method_address(name))
        body = {**_body(ui_request, stored_method["Config"] or {}), "Name": name}
        return await ui_request.post(_method_address(name), body)

    return await send_form(
        ui_request, send, lambda values: _method(name, values), METHOD, method_url(name)
    )


@action
async def remove_method(ui_request: UiRequest) -> str:
    """Delete an auth method with its binding rules."""
    await ui_request.ask("DELETE", _method_address(ui_request["name"]))
    return ACCESS


def _body(ui_request: UiRequest, current_config: Mapping[str, object]) -> dict[str, object]:
    """Return the request body for the auth method that a form describes.

    `current_config` is the current configuration of the method. Raises `Malformed`.
    """
    config = {name: value for name, value in current_config.items() if value not in (None, "")}
    for field in (field for section in CONFIG for field in section.fields):
        config.pop(field.name, None)  # an empty field resets the setting
    return {
        **form_body(ui_request, (_METHOD,)),
        "Config": {**config, **form_body(ui_request, CONFIG)},
    }


# --- binding rules ------------------------------------------------------------------------------


@page("login_form.html")
async def new_rule(ui_request: UiRequest) -> Found:
    """Show the form for a new binding rule of a method."""
    name = ui_request["name"]
    await ui_request.get(_method_address(name))
    return _rule(name, "", {})


@with_error_message
async def create_rule(ui_request: UiRequest) -> HandlerReply:
    """Create a binding rule of a method."""
    name = ui_request["name"]

    async def send() -> object:
        body = {**form_body(ui_request, RULE), "AuthMethod": name}
        return await ui_request.post("/v1/acl/binding-rule", body)

    return await send_form(
        ui_request, send, lambda values: _rule(name, "", values), RULE, method_url(name)
    )


@page("login_form.html")
async def edit_rule(ui_request: UiRequest) -> Found:
    """Show the form of a binding rule."""
    rule = await ui_request.get(_rule_address(ui_request["rule_id"]))
    return _rule(rule["AuthMethod"], rule["ID"], form_values(rule, RULE))


@with_error_message
async def change_rule(ui_request: UiRequest) -> HandlerReply:
    """Change a binding rule."""
    rule = await ui_request.get(_rule_address(ui_request["rule_id"]))
    name, rule_id = rule["AuthMethod"], rule["ID"]

    async def send() -> object:
        return await ui_request.post(_rule_address(rule_id), form_body(ui_request, RULE))

    return await send_form(
        ui_request, send, lambda values: _rule(name, rule_id, values), RULE, method_url(name)
    )


@action
async def remove_rule(ui_request: UiRequest) -> str:
    """Delete a binding rule."""
    path = _rule_address(ui_request["rule_id"])
    rule = await ui_request.get(path)
    await ui_request.ask("DELETE", path)
    return method_url(rule["AuthMethod"])


# --- pages --------------------------------------------------------------------------------------


def method_url(name: str) -> str:
    """Return the URL of the page of an auth method."""
    return formatting.address("/ui/auth-method/", name)


def _method_address(name: str) -> str:
    return formatting.address("/v1/acl/auth-method/", name)


def _rule_address(rule_id: str) -> str:
    return formatting.address("/v1/acl/binding-rule/", rule_id)


def _new_method(values: Mapping[str, object]) -> Found:
    return {
        "heading": "New auth method",
        "form": "/ui/auth-methods",
        "sections": NEW_METHOD,
        "values": values,
        "line": _line("/v1/acl/auth-method"),
        "button": "Create method",
    }


def _method(name: str, values: Mapping[str, object]) -> Found:
    return {
        "heading": f"Auth method {name}",
        "above": (name, method_url(name)),
        "form": f"{method_url(name)}/edit",
        "sections": METHOD,
        "values": values,
        "line": _line(_method_address(name)),
        "button": "Save method",
    }


def _rule(name: str, rule_id: str, values: Mapping[str, object]) -> Found:
    url = formatting.address("/ui/binding-rule/", rule_id)
    return {
        "heading": f"Binding rule {formatting.short(rule_id)}" if rule_id else "New binding rule",
        "above": (name, method_url(name)),
        "form": url if rule_id else f"{method_url(name)}/rules",
        "sections": RULE,
        "values": values,
        "line": _line(_rule_address(rule_id) if rule_id else "/v1/acl/binding-rule"),
        "button": "Save rule" if rule_id else "Create rule",
        "remove": f"{url}/remove" if rule_id else "",
        "remove_line": formatting.command(
            "operator", "api", "-X", "DELETE", _rule_address(rule_id)
        ),
        "remove_about": "Later logins do not get the rule's policy or role. Issued tokens keep it.",
    }


def _line(path: str) -> str:
    return formatting.command("operator", "api", "-X", "POST", "-d", "@FILE", path)


def _facts(
    config: Mapping[str, Any], sections: tuple[FormSection, ...]
) -> list[tuple[str, object]]:
    """Return the values that are set, with the labels of their fields."""
    values = form_values(config, sections)
    fields = [field for section in sections for field in section.fields]
    return [
        (field.label, "yes" if value is True else value)
        for field in fields
        if (value := values[field.name])
    ]

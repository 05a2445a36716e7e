"""Forms of auth methods and binding rules: values, errors at their fields, and permissions."""

import re
from html import unescape
from typing import Any

import pytest

from daemon.ui.auth_methods import METHOD, RULE
from daemon.ui.forms import errors_at
from tests.parts.ui.conftest import READER, Browser, Site
from tests.parts.ui.test_login_methods import value
from tests.service.test_auth_methods import PEM

FIELDS = {
    "Type": "JWT",
    "TokenLocality": "local",
    "MaxTokenTTL": "90m",
    "JWTValidationPubKeys": f"{PEM}\r\n{PEM}",
    "BoundAudiences": "steward\r\nothers",
    "ClaimMappings": "repository=repo\nteam=team",
    "ClockSkewLeeway": "5s",
}


@pytest.fixture
async def admin(site: Site) -> Browser:
    browser = site.browser()
    await browser.sign_in(await site.token())
    made = await browser.send("/ui/auth-methods", None, Name="ci", **FIELDS)
    assert (made.status_code, made.headers["location"]) == (303, "/ui/auth-method/ci")
    return browser


async def stored(site: Site, browser: Browser, path: str) -> Any:
    headers = {"X-Nomad-Token": await site.token()}
    answer = await browser.http.get(f"/v1/acl/{path}", headers=headers)
    assert answer.is_success, answer.text
    return answer.json()


async def test_an_auth_method_is_created_changed_and_deleted(site: Site, admin: Browser) -> None:
    config = (await stored(site, admin, "auth-method/ci"))["Config"]
    assert config["JWTValidationPubKeys"] == [PEM, PEM]
    assert config["ClaimMappings"] == {"repository": "repo", "team": "team"}

    page = (await admin.get("/ui/auth-method/ci/edit")).text
    assert (value(page, "MaxTokenTTL"), value(page, "ClockSkewLeeway")) == ("1h30m", "5s")
    assert value(page, "JWTValidationPubKeys") == f"{PEM.strip()}\n{PEM.strip()}"
    assert value(page, "BoundAudiences") == "steward\nothers"

    changed = {**FIELDS, "MaxTokenTTL": "15m", "ClaimMappings": "", "Default": "1"}
    sent = await admin.send("/ui/auth-method/ci/edit", None, **changed)
    assert sent.status_code == 303, sent.text
    method = await stored(site, admin, "auth-method/ci")
    assert (method["MaxTokenTTL"], method["Default"]) == ("15m0s", True)
    assert not method["Config"]["ClaimMappings"]
    assert 'href="/ui/auth-method/ci"' in (await admin.get("/ui/access")).text

    assert (await admin.send("/ui/auth-method/ci/remove")).status_code == 303
    assert "No auth methods." in (await admin.get("/ui/access")).text


async def test_edited_method_preserves_fields_without_an_input(site: Site, admin: Browser) -> None:
    headers = {"X-Nomad-Token": await site.token()}
    config = {
        "OIDCDiscoveryURL": "https://example.com",
        "OIDCClientID": "me",
        "OIDCClientSecret": "hidden",
        "OIDCClientAssertion": {"KeySource": "nomad", "Audience": ["a"]},
    }
    body = {
        "Name": "people",
        "Type": "OIDC",
        "TokenLocality": "global",
        "MaxTokenTTL": "1h",
        "Config": config,
    }
    made = await admin.http.post("/v1/acl/auth-method", json=body, headers=headers)
    assert made.is_success, made.text
    fields = {"Type": "OIDC", "OIDCDiscoveryURL": "https://example.org", "OIDCClientID": "me"}
    sent = await admin.send("/ui/auth-method/people/edit", None, TokenLocality="global", **fields)
    assert sent.status_code == 303, sent.text
    method = await stored(site, admin, "auth-method/people")
    kept = method["Config"]
    assert kept["OIDCDiscoveryURL"] == "https://example.org"
    assert kept["OIDCClientSecret"] == "redacted"
    assert kept["OIDCClientAssertion"]["Audience"] == ["a"]
    assert method["MaxTokenTTL"] == "1h0m0s"
    assert "does not support OIDC logins" in (await admin.get("/ui/auth-method/people")).text


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"Name": "c i"}, "Name"),
        ({"Name": "ci"}, "Name"),
        ({"Name": ""}, "Name"),
        ({"MaxTokenTTL": "1s"}, "MaxTokenTTL"),
        ({"MaxTokenTTL": "soon"}, "MaxTokenTTL"),
        ({"ClockSkewLeeway": "25h"}, "ClockSkewLeeway"),
        ({"JWTValidationPubKeys": "no key"}, "JWTValidationPubKeys"),
        ({"JWTValidationPubKeys": ""}, "JWTValidationPubKeys"),
        ({"SigningAlgs": "ES256"}, "SigningAlgs"),
        ({"ClaimMappings": "team"}, "ClaimMappings"),
        ({"Type": "OIDC"}, "OIDCClientID"),
    ],
)
async def test_invalid_auth_method_is_shown_with_the_error_at_its_field(
    admin: Browser, wrong: dict[str, str], name: str
) -> None:
    fields = {"Name": "other", "TokenNameFormat": "<b>", **FIELDS, **wrong}
    answer = await admin.send("/ui/auth-methods", None, **fields)
    assert answer.status_code == 400
    assert re.search(rf'id="{name}"[^>]*aria-invalid="true"', answer.text), answer.text
    assert f'id="{name}-about"' in answer.text
    assert "&lt;b&gt;" in answer.text
    assert "/ui/auth-method/other" not in (await admin.get("/ui/access")).text


async def test_a_binding_rule_is_created_changed_and_deleted(site: Site, admin: Browser) -> None:
    place = "/ui/auth-method/ci/rules"
    assert "each login is rejected" in (await admin.get("/ui/auth-method/ci")).text
    selector = '"ops" in list.groups'
    rule = {"BindType": "policy", "BindName": "${value.team}", "Selector": selector}
    made = await admin.send(place, None, **rule)
    assert (made.status_code, made.headers["location"]) == (303, "/ui/auth-method/ci")
    page = (await admin.get("/ui/auth-method/ci")).text
    assert selector in unescape(page)
    found = re.search(r'href="(/ui/binding-rule/[^"]+)"', page)
    assert found
    form = (await admin.get(found[1])).text
    assert value(form, "Selector") == selector
    sent = await admin.send(found[1], None, **{**rule, "Selector": "", "Description": "all"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/ui/auth-method/ci")
    kept = await stored(site, admin, f"binding-rule/{found[1].rpartition('/')[2]}")
    assert (kept["Selector"], kept["Description"]) == ("", "all")
    removed = await admin.send(f"{found[1]}/remove")
    assert (removed.status_code, removed.headers["location"]) == (303, "/ui/auth-method/ci")
    assert "No binding rules" in (await admin.get("/ui/auth-method/ci")).text


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"BindName": ""}, "BindName"),
        ({"BindType": "management"}, "BindName"),
        ({"Selector": '"ops" in'}, "Selector"),
        ({"Description": "x" * 300}, "Description"),
    ],
)
async def test_invalid_binding_rule_is_shown_with_the_error_at_its_field(
    admin: Browser, wrong: dict[str, str], name: str
) -> None:
    fields = {"BindType": "role", "BindName": "ops", **wrong}
    answer = await admin.send("/ui/auth-method/ci/rules", None, **fields)
    assert answer.status_code == 400
    assert re.search(rf'id="{name}"[^>]*aria-invalid="true"', answer.text), answer.text


async def test_without_the_capability_the_forms_are_disabled_and_refused(
    site: Site, admin: Browser
) -> None:
    reader = site.browser()
    await reader.sign_in(await site.token(READER))
    page = (await reader.get("/ui/auth-methods")).text
    assert re.search('<button class="main" disabled>', page)
    assert "Your token does not allow this. Required:" in page
    refused = await reader.send("/ui/auth-methods", None, Name="theirs", **FIELDS)
    assert refused.status_code == 403
    assert "/ui/auth-method/ci" not in (await reader.get("/ui/access")).text
    assert (await reader.get("/ui/auth-method/ci")).status_code == 403


def test_a_message_names_all_its_fields() -> None:
    message = "2 errors: invalid token locality 'x'; invalid config: missing OIDCClientID"
    assert set(errors_at(message, METHOD, {})) == {"TokenLocality", "OIDCClientID"}
    assert set(errors_at("bind name is missing", RULE, {})) == {"BindName"}

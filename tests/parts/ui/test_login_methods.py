"""Forms of login methods: methods, configurations, roles and bounds."""

import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from daemon.acl.keyring import Keyring
from daemon.acl.tokens import TokenStore
from daemon.ui.forms import errors_at
from daemon.ui.login_methods import ROLE
from storage.store import Store
from tests.parts.identity.test_lazy_methods import Clock, opening
from tests.parts.ui.conftest import Browser, Site, opened

GROUP = "7f6ad4f4-1f4a-4a04-8a08-2ac4b2e7f001"
READS = (
    'path "sys/auth" { capabilities = ["read"] } path "auth/*" { capabilities = ["read", "list"] }'
)


@pytest.fixture
async def cloud(store: Store, tmp_path: Path) -> AsyncIterator[Site]:
    """Run a site with login methods."""
    tokens = TokenStore(store, Clock(), Keyring(bytes(32)), asks=True)
    async with opening(store, tokens, tmp_path) as door:
        async for item in opened(store, tmp_path, asks=True, door=door):
            yield item


@pytest.fixture
async def admin(cloud: Site) -> Browser:
    browser = cloud.browser()
    await browser.sign_in(await cloud.token())
    assert (await browser.send("/ui/methods", path="azure", type="azure")).status_code == 303
    return browser


def value(page: str, name: str) -> str:
    """Return the value of a field of a form."""
    found = re.search(rf'id="{name}"[^>]*>\n?([^<]*)</textarea>', page)
    found = found or re.search(rf'<input[^>]*value="([^"]*)"[^>]*id="{name}"', page)
    assert found, name
    return unescape(found[1])


async def data(browser: Browser, secret: str, path: str) -> Any:
    answer = await browser.http.get(path, headers={"X-Vault-Token": secret})
    return answer.json()["data"]


async def test_role_with_bindings_is_created_changed_and_deleted(
    cloud: Site, admin: Browser
) -> None:
    secret, path = await cloud.token(), "/v1/auth/azure/role/web"
    fields = {
        "bound_group_ids": f"{GROUP}\r\n\r\n",
        "bound_locations": "westeurope\nnortheurope",
        "token_policies": "web",
        "token_ttl": "1h",
        "token_bound_cidrs": "10.0.0.0/8",
        "token_type": "default",
        "alias_metadata": "team=a=b",
    }
    made = await admin.send("/ui/method/azure/roles", None, name="web", **fields)
    assert (made.status_code, made.headers["location"]) == (303, "/ui/method/azure")
    role = await data(admin, secret, path)
    assert role["bound_group_ids"] == [GROUP]
    assert role["bound_locations"] == ["westeurope", "northeurope"]
    assert (role["token_ttl"], role["alias_metadata"]) == (3600, {"team": "a=b"})

    page = (await admin.get("/ui/method/azure/role/web")).text
    assert value(page, "bound_locations") == "westeurope\nnortheurope"
    assert (value(page, "token_ttl"), value(page, "alias_metadata")) == ("1h", "team=a=b")

    again = await admin.send("/ui/method/azure/roles", None, name="web", **fields)
    assert again.status_code == 400
    changed = {**fields, "bound_locations": "", "token_ttl": "90", "token_no_default_policy": "1"}
    assert (await admin.send("/ui/method/azure/role/web", None, **changed)).status_code == 303
    role = await data(admin, secret, path)
    assert (role["bound_locations"], role["token_ttl"]) == ([], 90)
    assert role["token_no_default_policy"] is True

    assert (await admin.send("/ui/method/azure/role/web/remove")).status_code == 303
    assert "No roles." in (await admin.get("/ui/method/azure")).text


async def test_invalid_role_is_shown_with_the_error_at_its_field(
    cloud: Site, admin: Browser
) -> None:
    fields = {"name": "web", "bound_group_ids": GROUP, "token_policies": "<b>"}
    for wrong, name in (
        ({"token_ttl": "2h", "token_max_ttl": "1h"}, "token_max_ttl"),
        ({"token_bound_cidrs": "10.0.0.1\nnowhere"}, "token_bound_cidrs"),
        ({"bound_group_ids": ""}, "bound_service_principal_ids"),
        ({"alias_metadata": "team"}, "alias_metadata"),
        ({"token_ttl": "soon"}, "token_ttl"),
        ({"name": ""}, "name"),
    ):
        answer = await admin.send("/ui/method/azure/roles", None, **{**fields, **wrong})
        assert answer.status_code == 400
        assert re.search(rf'id="{name}"[^>]*aria-invalid="true"', answer.text), (wrong, name)
        assert f'id="{name}-about"' in answer.text
        assert "&lt;b&gt;" in answer.text
        assert "<b>" not in answer.text
    listed = await admin.http.get(
        "/v1/auth/azure/role?list=true", headers={"X-Vault-Token": await cloud.token()}
    )
    assert listed.status_code == 404


async def test_configuration_keeps_its_secret_hidden(cloud: Site, admin: Browser) -> None:
    place, secret = "/ui/method/azure/config", await cloud.token()
    fields = {
        "tenant_id": GROUP,
        "resource": "https://management.azure.com/",
        "client_id": "client",
        "max_retries": "5",
        "retry_delay": "2s",
        "root_password_ttl": "",
    }
    assert (
        await admin.send(place, None, client_secret="s3cr3t-of-ours", **fields)
    ).status_code == 303
    found = await data(admin, secret, "/v1/auth/azure/config")
    assert (found["max_retries"], found["retry_delay"]) == (5, 2 * 10**9)
    assert found["root_password_ttl"] == 15768000
    page = (await admin.get(place)).text
    assert "s3cr3t-of-ours" not in page
    assert (value(page, "retry_delay"), value(page, "max_retry_delay")) == ("2s", "1m")
    shown = re.sub(r"<[^>]+>", " ", (await admin.get("/ui/method/azure")).text).split()
    for name, text in (("retry_delay", "2s"), ("root_password_ttl", "4380h")):
        assert shown[shown.index(name) + 1] == text

    both = await admin.send(place, None, **fields, client_secret="x", remove_client_secret="1")
    assert both.status_code == 400
    audience = await admin.send(place, None, **fields, identity_token_audience="a")
    assert audience.status_code == 400  # the stored secret is still there
    assert re.search('id="identity_token_audience"[^>]*aria-invalid', audience.text)
    swapped = {**fields, "identity_token_audience": "a", "remove_client_secret": "1"}
    assert (await admin.send(place, None, **swapped)).status_code == 303

    warned = await admin.send(place, None, **{**swapped, "tenant_id": "ours"})
    assert warned.status_code == 200
    assert "Saved with warnings" in warned.text
    assert "is not a UUID" in unescape(warned.text)


async def test_a_method_is_changed_and_disabled(cloud: Site, admin: Browser) -> None:
    place, secret = "/ui/method/azure/edit", await cloud.token()
    page = (await admin.get(place)).text
    assert value(page, "default_lease_ttl") == ""
    sent = {"description": "People", "default_lease_ttl": "8h", "max_lease_ttl": "24h"}
    assert (await admin.send(place, None, **sent)).status_code == 303
    found = (await data(admin, secret, "/v1/sys/auth"))["azure/"]
    assert found["config"]["default_lease_ttl"] == 8 * 3600
    wrong = await admin.send(place, None, **{**sent, "max_lease_ttl": "1h"})
    assert wrong.status_code == 400
    assert 'aria-invalid="true"' in wrong.text
    taken = await admin.send("/ui/methods", None, path="azure", type="azure")
    assert re.search('id="path"[^>]*aria-invalid', taken.text)
    assert (await admin.send("/ui/method/azure/disable")).status_code == 303
    assert "azure/" not in await data(admin, secret, "/v1/sys/auth")


async def test_without_the_capability_the_forms_are_disabled_and_refused(
    cloud: Site, admin: Browser
) -> None:
    fields = {"bound_group_ids": GROUP, "token_type": "default"}
    await admin.send("/ui/method/azure/roles", None, name="web", **fields)
    reader = cloud.browser()
    await reader.sign_in(await cloud.token(READS))
    for place in ("config", "edit", "roles", "role/web"):
        page = (await reader.get(f"/ui/method/azure/{place}")).text
        assert re.search('<button class="main" disabled>', page), place
        assert "Your token does not allow this. Required:" in page
        refused = await reader.send(f"/ui/method/azure/{place}", None, name="x", **fields)
        assert refused.status_code == 403
    writer = cloud.browser()
    rules = READS + ' path "auth/azure/role/web" { capabilities = ["read", "update"] }'
    await writer.sign_in(await cloud.token(rules))
    assert "disabled>" not in (await writer.get("/ui/method/azure/role/web")).text
    stranger = await admin.http.post("/ui/method/azure/role/web", data=fields)
    assert stranger.status_code == 403  # the request has no CSRF token


def test_message_is_shown_at_its_fields() -> None:
    period = "token period of '1h' is greater than the backend's maximum lease TTL"
    assert set(errors_at(period, ROLE, {})) == {"token_period"}
    quoted = errors_at('cannot use "a.b"', ROLE, {"bound_locations": "x\na.b"})
    assert set(quoted) == {"bound_locations"}
    assert errors_at("no", ROLE, {}) == {}

"""Signing in at the web interface with a directory identity, and the reasons for refusals."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from daemon.clock import SystemClock
from daemon.fences import Fences
from daemon.identity.lazy_methods import LazyMethods
from daemon.web.ui_session import COOKIE
from storage.errors import StorageFull
from storage.queries import tokens
from storage.store import Store
from tests.parts.identity.conftest import PRINCIPAL, Cloud, Login
from tests.parts.ui.conftest import Browser, Site, opened


@pytest.fixture
async def site(store: Store, tmp_path: Path, login: Login) -> AsyncIterator[Site]:
    """Run a site with a login method, whose directory accepts the tokens that tests mint."""
    door = LazyMethods(Fences(SystemClock()))
    with door.open(login.methods):
        async for item in opened(store, tmp_path, asks=True, door=door):
            yield item


async def log_in(browser: Browser, jwt: str, **fields: str) -> httpx.Response:
    given = {"role": "dev", "method": "cloudid", "jwt": jwt, **fields}
    return await browser.send("/ui/sign-in", None, **given)


def of_logins(site: Site) -> list[str]:
    """Return the names of the tokens from logins."""
    found = site.cluster.store.read(tokens.list_all)
    return [token.name for token in found if token.path == "auth/cloudid/login"]


async def test_directory_identity_signs_in(site: Site, cloud: Cloud) -> None:
    browser = site.browser()
    answer = await log_in(browser, cloud.mint(), next="/ui/access")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/access")
    assert f"cloudid-{PRINCIPAL}" in (await browser.get("/ui/access")).text


async def test_login_token_ends_with_its_session(site: Site, cloud: Cloud) -> None:
    browser = site.browser()
    await log_in(browser, cloud.mint())
    assert of_logins(site) == [f"cloudid-{PRINCIPAL}"]
    await browser.send("/ui/sign-out")
    assert of_logins(site) == []


async def test_sign_out_needs_no_capability(site: Site, cloud: Cloud, login: Login) -> None:
    await login.role("bare", bound_service_principal_ids=PRINCIPAL, token_no_default_policy=True)
    browser = site.browser()
    await log_in(browser, cloud.mint(), role="bare")
    assert len(of_logins(site)) == 1
    await browser.send("/ui/sign-out")
    assert of_logins(site) == []


async def test_new_sign_in_revokes_the_token_of_the_previous_login(
    site: Site, cloud: Cloud
) -> None:
    browser = site.browser()
    await log_in(browser, cloud.mint())
    await log_in(browser, cloud.mint())
    assert len(of_logins(site)) == 1
    await browser.sign_in(await site.token())
    assert of_logins(site) == []


async def test_login_without_a_session_leaves_no_token(
    site: Site, cloud: Cloud, login: Login
) -> None:
    await login.role("few", bound_service_principal_ids=PRINCIPAL, token_num_uses=5)
    assert (await log_in(site.browser(), cloud.mint(), role="few")).status_code == 400
    assert of_logins(site) == []


async def test_session_ends_even_if_its_token_cannot_be_revoked(
    site: Site, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = site.browser()
    await log_in(browser, cloud.mint())
    proof, cookie = await browser.proof(), str(browser.http.cookies.get(COOKIE))

    async def full(_work: object) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(site.cluster.store, "write", full)
    given = {"data": {"proof": proof}, "headers": {"Origin": browser.address}}
    answer = await browser.http.post("/ui/sign-out", **given)
    assert (answer.status_code, "no room" in answer.text) == (507, True)
    headers = {"Cookie": f"{COOKIE}={cookie}"}
    assert (await site.browser().http.get("/ui/", headers=headers)).status_code == 303


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "other"},
        {"method": "none"},
        {"method": "../token"},
        {"method": "token"},
        {"method": "cloud\0id"},
        {"method": "cloudid\0"},
        {"method": ""},
        {"role": ""},
    ],
)
async def test_login_refused_by_its_method_opens_no_session(
    site: Site, cloud: Cloud, fields: dict[str, str]
) -> None:
    browser, jwt = site.browser(), cloud.mint()
    answer = await log_in(browser, jwt, **fields)
    assert answer.status_code in (400, 403, 404)
    assert 'role="alert"' in answer.text
    assert jwt not in answer.text
    assert (await browser.get("/ui/")).status_code == 303


async def test_login_form_requests_only_login_data(site: Site, cloud: Cloud) -> None:
    master = site.browser()
    await master.sign_in(await site.token())
    answer = await log_in(master, cloud.mint(), method="cloudid/role")
    assert (answer.status_code, 'role="alert"' in answer.text) == (404, True)
    roles = await master.http.get("/ui/method/cloudid")
    assert "<h3>login" not in roles.text


async def test_token_not_signed_by_the_directory_is_refused(site: Site, cloud: Cloud) -> None:
    browser = site.browser()
    head, body, _ = cloud.mint().split(".")
    assert (await log_in(browser, f"{head}.{body}.AAAA")).status_code in (400, 403)
    assert (await browser.get("/ui/")).status_code == 303
    assert of_logins(site) == []


async def test_login_is_explained_rule_by_rule_without_issuing_a_token(
    site: Site, cloud: Cloud, login: Login
) -> None:
    await login.role("narrow", bound_service_principal_ids="someone-else")
    master = site.browser()
    await master.sign_in(await site.token())
    jwt = cloud.mint()
    for role, word in (("dev", "is-accepted"), ("narrow", "is-refused")):
        answer = await master.send("/ui/method/cloudid/explain", None, role=role, jwt=jwt)
        head = answer.text.partition("A login as")[2].partition("</h2>")[0]
        assert word in head
        assert jwt not in answer.text
    assert of_logins(site) == []


async def test_method_shows_its_roles_and_settings_without_its_secret(site: Site) -> None:
    master = site.browser()
    await master.sign_in(await site.token())
    text = (await master.get("/ui/method/cloudid")).text
    assert PRINCIPAL in text
    assert "fake-client-secret-1" not in text

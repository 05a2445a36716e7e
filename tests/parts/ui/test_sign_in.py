"""Sign-in with a token or a single-use link, and the lifetime of the session."""

import secrets
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.acl import caller_cache, one_time_tokens
from daemon.acl.audit import AuditScope
from daemon.acl.check import ANYONE
from daemon.acl.grant import CapabilitySet
from daemon.config.settings import Settings
from daemon.web.listeners import tls_context
from daemon.web.reply import HandlerReply
from daemon.web.request import Request
from daemon.web.router import Router
from daemon.web.session_store import IDLE, MOST_OF_OWNER, SessionStore
from daemon.web.ui_session import COOKIE, SECURE_COOKIE, UiRequest
from storage.errors import UnknownToken
from storage.queries import tokens
from storage.store import Store
from tests.fakes.authority import Authority
from tests.parts.api.requests import caller, request
from tests.parts.ui.conftest import Site, opened
from tests.samples import NOW


async def test_user_without_a_session_is_asked_to_sign_in(site: Site) -> None:
    answer = await site.browser().get("/ui/jobs")
    assert (answer.status_code, answer.headers["Location"]) == (
        303,
        "/ui/sign-in?next=%2Fui%2Fjobs",
    )


async def test_token_secret_gives_access_to_the_pages(site: Site) -> None:
    browser = site.browser()
    answer = await browser.sign_in(await site.token(), "/ui/jobs")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/jobs")
    assert (await browser.get("/ui/jobs")).status_code == 200


async def test_cookie_is_hidden_from_scripts_and_other_sites(site: Site) -> None:
    secret = await site.token()
    cookie = (await site.browser().sign_in(secret)).headers["Set-Cookie"]
    assert secret not in cookie
    assert {"Path=/ui", "HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))


@pytest.mark.parametrize("other", ['seen={"a": 1}', "a:b=1", "flag", "path=/", "x=\xfc"])
async def test_cookies_of_other_services_do_not_hide_the_session(site: Site, other: str) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    ours = f"{COOKIE}={browser.http.cookies.get(COOKIE)}"
    for cookies in (f"{other}; {ours}", f"{ours}; {other}"):
        headers = {"Cookie": cookies.encode("latin-1")}
        assert (await site.browser().http.get("/ui/", headers=headers)).status_code == 200


async def test_duplicate_session_cookies_are_rejected_and_reported_to_the_browser(
    site: Site,
) -> None:
    ours, theirs = site.browser(), site.browser()
    names = []
    for browser in (theirs, ours):
        await browser.sign_in(await site.token())
        names.append(f"{COOKIE}={browser.http.cookies.get(COOKIE)}")
    for cookies in ("; ".join(names), "; ".join(reversed(names))):
        for page, status in (("/ui/jobs", 403), ("/ui/variables", 200), ("/ui/sign-in", 200)):
            answer = await site.browser().http.get(page, headers={"Cookie": cookies})
            assert answer.status_code == status
            assert "Your browser sent two session cookies" in answer.text
            assert "Sign out" not in answer.text
    assert "two session cookies" not in (await ours.get("/ui/jobs")).text


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def secure_site(store: Store, tmp_path: Path, authority: Authority) -> AsyncIterator[Site]:
    """Run a site over TLS."""
    certificate, key = authority.certify("daemon")
    context = tls_context(Settings(tls_cert=certificate, tls_key=key))
    async for item in opened(store, tmp_path, asks=True, context=context):
        yield item


async def test_cookie_over_tls_has_a_name_reserved_for_tls(
    secure_site: Site, authority: Authority
) -> None:
    browser, other = (secure_site.browser(authority.client()) for _ in range(2))
    cookie = (await browser.sign_in(await secure_site.token())).headers["Set-Cookie"]
    name, _, secret = cookie.partition(";")[0].partition("=")
    assert name == SECURE_COOKIE
    assert "Secure" in cookie.split("; ")
    assert (await browser.get("/ui/jobs")).status_code == 200
    headers = {"Cookie": f"{COOKIE}={secret}"}  # as a service without TLS could set it
    assert (await other.http.get("/ui/jobs", headers=headers)).status_code == 303


async def test_wrong_secret_gives_no_access(site: Site) -> None:
    browser = site.browser()
    answer = await browser.sign_in("0f4dc1d2-8a8e-4b77-8b2f-3d1f0a6c5e11")
    assert answer.status_code == 403
    assert "There is no token with this secret" in answer.text
    assert browser.http.cookies.get(COOKIE) is None


async def test_missing_secret_gives_no_access(site: Site) -> None:
    assert (await site.browser().sign_in("")).status_code == 400


async def test_cookie_gives_access_only_to_pages(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    cookie = f"{COOKIE}={browser.http.cookies.get(COOKIE)}"  # browsers send it only to /ui/
    answer = await site.browser().http.get("/v1/jobs", headers={"Cookie": cookie})
    assert answer.status_code == 403


async def test_a_session_ends_with_its_token(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token(expires_at=NOW + 1))
    site.cluster.clock.time += 1
    answer = await browser.get("/ui/")
    assert answer.headers["Location"] == "/ui/sign-in?next=%2Fui%2F&ended=1"
    assert "Max-Age=0" in answer.headers["Set-Cookie"]


async def test_a_session_ends_when_its_token_is_revoked(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    (token,) = site.cluster.store.read(tokens.list_all)
    await site.cluster.store.write(lambda tx: tokens.remove(tx, token.accessor))
    assert (await browser.get("/ui/")).status_code == 303


async def test_session_ends_after_its_idle_timeout(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    site.cluster.clock.time += IDLE + 1
    assert (await browser.get("/ui/")).status_code == 303


async def test_used_session_and_its_cookie_are_extended(site: Site) -> None:
    browser = site.browser()
    cookie = (await browser.sign_in(await site.token())).headers["Set-Cookie"]
    assert "Max-Age" not in cookie  # the daemon limits the session
    for _ in range(3):
        site.cluster.clock.time += IDLE
        assert (await browser.get("/ui/")).status_code == 200


async def test_sign_out_invalidates_every_copy_of_the_cookie(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    cookie = str(browser.http.cookies.get(COOKIE))
    await browser.send("/ui/sign-out")
    answer = await site.browser().http.get("/ui/", headers={"Cookie": f"{COOKIE}={cookie}"})
    assert answer.status_code == 303


async def test_new_sign_in_issues_another_cookie(site: Site) -> None:
    browser, secret = site.browser(), await site.token()
    await browser.sign_in(secret)
    first = str(browser.http.cookies.get(COOKIE))
    await browser.sign_in(secret)
    assert browser.http.cookies.get(COOKIE) != first
    answer = await site.browser().http.get("/ui/", headers={"Cookie": f"{COOKIE}={first}"})
    assert answer.status_code == 303


async def test_a_link_signs_in_once(site: Site) -> None:
    parts, secret = site.parts, await site.token()
    token = parts.tokens.resolve(secret).token
    await one_time_tokens.create_one_time_token(
        parts.store, parts.tokens, token, secret, one_time="link", now=NOW
    )
    first, second = site.browser(), site.browser()
    assert (await first.send("/ui/sign-in", one_time="link")).status_code == 303
    assert (await first.get("/ui/")).status_code == 200
    assert (await second.send("/ui/sign-in", one_time="link")).status_code == 403


async def test_long_rights_of_a_page_are_built_in_a_thread(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, threads = site.browser(), list[threading.Thread]()
    build = caller_cache._grant

    def noted(*given: Any) -> CapabilitySet:
        threads.append(threading.current_thread())
        return build(*given)

    rules = "\n".join(f'namespace "n{number}" {{ policy = "read" }}' for number in range(200))
    await browser.sign_in(await site.token(rules))
    monkeypatch.setattr(caller_cache, "_grant", noted)
    await site.token(f'{rules}\nnamespace "m" {{ policy = "read" }}')  # changes the policy
    await browser.get("/ui/jobs")
    assert threads
    assert threading.main_thread() not in threads


async def test_token_with_few_uses_starts_no_session(site: Site) -> None:
    browser = site.browser()
    answer = await browser.sign_in(await site.token(uses_left=5))
    assert answer.status_code == 400
    assert browser.http.cookies.get(COOKIE) is None


@pytest.mark.parametrize(
    "target", ["https://evil.example/", "//evil.example", "/ui/\\evil", "/v1/jobs", "/ui/\r\nX: y"]
)
async def test_sign_in_does_not_redirect_to_other_sites(site: Site, target: str) -> None:
    answer = await site.browser().sign_in(await site.token(), target)
    assert answer.headers["Location"] == "/ui/"


async def test_sign_in_is_not_offered_without_access_control(open_site: Site) -> None:
    answer = await open_site.browser().get("/ui/")
    assert answer.status_code == 200
    assert "Sign in" not in answer.text


async def test_many_sessions_of_one_token_do_not_evict_those_of_others(site: Site) -> None:
    browser, weak = site.browser(), site.browser()
    await browser.sign_in(await site.token())
    secret = await site.token('namespace "default" { policy = "read" }')
    first = site.browser()
    await first.sign_in(secret)
    for _ in range(MOST_OF_OWNER):
        weak.http.cookies.clear()
        await weak.sign_in(secret)
    assert (await browser.get("/ui/jobs")).status_code == 200
    assert (await weak.get("/ui/jobs")).status_code == 200
    assert (await first.get("/ui/jobs")).status_code == 303


async def _never(asked: Request, audit_scope: AuditScope) -> HandlerReply:
    raise AssertionError(asked.path)


@pytest.mark.parametrize("is_own", [True, False])
async def test_evicted_session_revokes_its_login_token(site: Site, is_own: bool) -> None:
    sessions = SessionStore(lambda: secrets.token_urlsafe(8))
    secret = await site.token(subject="person")

    async def sign_in(given: str, *, is_own: bool) -> None:
        asked = request(site.cluster.store, ANYONE, caller())
        asked = msgspec.structs.replace(asked, parts=site.parts)
        audit_scope = site.parts.audit.open_scope("POST", "/ui/sign-in", "", "")
        visit = UiRequest(asked, None, _never, sessions, audit_scope, Router(()))
        await visit.sign_in(given, is_own=is_own)

    await sign_in(secret, is_own=is_own)
    for _ in range(MOST_OF_OWNER):
        await sign_in(await site.token(subject="person"), is_own=True)
    if is_own:
        with pytest.raises(UnknownToken):
            site.parts.tokens.resolve(secret)
    else:
        site.parts.tokens.resolve(secret)


async def test_list_of_sessions_marks_the_own_session(site: Site) -> None:
    secret = await site.token()
    first, second = site.browser(), site.browser()
    await first.sign_in(secret)
    await second.sign_in(secret)
    await first.get("/ui/jobs")
    rows = [(await each.get("/ui/access")).text.split("<tr>") for each in (first, second)]
    marked = [["this browser" in row for row in page if "End session" in row] for page in rows]
    assert marked == [[True, False], [True, False]]  # the session that was used last is first

"""Reloads of open pages: equal pages are sent once, and viewers with one token share a rendering."""

import re
from unittest.mock import Mock

import httpx
import msgspec
import pytest
import trio

from daemon.ui import jobs as pages
from daemon.ui import render
from daemon.web.shared_pages import AGE, MOST, SharedPages
from storage.queries import policies, tokens
from storage.records.acl import Policy
from storage.writer import Transaction
from tests.parts.ui.conftest import READER, Browser, Site

TAG = re.compile(r'data-tag="([^"]*)"')
INDEX = re.compile(r'data-index="(\d+)"')
PROOFS = re.compile(r'name="proof" value="([^"]*)"')


def tag(page: httpx.Response) -> str:
    match = TAG.search(page.text)
    assert match is not None
    return match[1]


async def reload(browser: Browser, path: str, shown: str) -> httpx.Response:
    """Reload a page as its script does; `shown` is the tag of the page that the browser shows."""
    return await browser.http.get(path, headers={"If-None-Match": f'"{shown}"'})


@pytest.fixture
def renderings(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Count the renderings."""
    counted = Mock(side_effect=render._rendered)
    monkeypatch.setattr(render, "_rendered", counted)
    return counted


@pytest.mark.parametrize(
    "path", ["", "jobs", "job/web", "nodes", "services", "evaluations", "runs"]
)
async def test_unchanged_page_is_not_sent_again(open_site: Site, path: str) -> None:
    await open_site.run()
    browser = open_site.browser()
    page = await browser.get(f"/ui/{path}")
    again = await reload(browser, f"/ui/{path}", tag(page))
    assert (again.status_code, again.content) == (304, b"")
    found = INDEX.search(page.text)
    assert found is not None
    assert again.headers["X-Service-Index"] == found[1]


async def test_changed_page_is_sent_with_its_new_tag(open_site: Site) -> None:
    browser = open_site.browser()
    before = tag(await browser.get("/ui/jobs"))
    await open_site.run()
    page = await reload(browser, "/ui/jobs", before)
    assert page.status_code == 200
    assert "/ui/job/web" in page.text
    assert tag(page) != before
    assert (await reload(browser, "/ui/jobs", tag(page))).status_code == 304


async def test_concurrent_reloads_share_one_rendering(open_site: Site, renderings: Mock) -> None:
    found = []

    async def load() -> None:
        found.append((await reload(open_site.browser(), "/ui/jobs", "old")).text)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(load)
    assert len(set(found)) == 1
    assert renderings.call_count < 20


async def test_sessions_of_a_token_share_a_page_but_not_their_csrf_tokens(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.web.shared_pages.AGE", 3600.0)
    secret = await site.token()
    reads = Mock(side_effect=pages.optional)
    monkeypatch.setattr(pages, "optional", reads)
    own: list[str] = []
    for browser in (site.browser(), site.browser()):
        await browser.sign_in(secret)
        page = await reload(browser, "/ui/", "old")
        assert set(PROOFS.findall(page.text)) == {await browser.proof()}
        own.append(await browser.proof())
    assert own[0] != own[1]
    assert len({call.args[1] for call in reads.mock_calls}) == reads.call_count


async def test_tokens_with_different_permissions_do_not_share_a_page(
    site: Site, master: Browser, reader: Browser
) -> None:
    await site.run("hidden", namespace="default")
    page = (await reload(master, "/ui/job/hidden", "old")).text
    assert "Required:" not in page
    assert "Required:" in (await reload(reader, "/ui/job/hidden", "old")).text


async def test_changed_permissions_change_the_page_immediately(site: Site, reader: Browser) -> None:
    await site.run()
    before = await reload(reader, "/ui/job/web", "old")
    rules = READER.replace('"read" }', '"write" }', 1)
    await site.cluster.store.write(lambda tx: policies.put(tx, Policy(name="theirs", rules=rules)))
    after = await reload(reader, "/ui/job/web", tag(before))
    assert after.status_code == 200
    assert after.text.count("Required:") < before.text.count("Required:")


async def test_changed_token_changes_the_page_immediately(site: Site, reader: Browser) -> None:
    await site.run()
    before = await reload(reader, "/ui/job/web", "old")
    assert (await reload(reader, "/ui/job/web", tag(before))).status_code == 304
    rules = READER.replace('"read" }', '"write" }', 1)

    def grant_more(tx: Transaction) -> None:
        policies.put(tx, Policy(name="more", rules=rules))
        for token in tokens.list_all(tx):
            if token.policies == ("theirs",):
                tokens.update(tx, msgspec.structs.replace(token, policies=("theirs", "more")))

    await site.cluster.store.write(grant_more)
    after = await reload(reader, "/ui/job/web", tag(before))
    assert after.status_code == 200
    assert after.text.count("Required:") < before.text.count("Required:")


async def test_page_of_an_earlier_session_is_sent_again(site: Site) -> None:
    """The forms of the page hold the CSRF token of the earlier session."""
    secret, browser = await site.token(), site.browser()
    await browser.sign_in(secret)
    before = tag(await browser.get("/ui/jobs"))
    assert (await reload(browser, "/ui/jobs", before)).status_code == 304
    await browser.sign_in(secret)
    after = await reload(browser, "/ui/jobs", before)
    assert after.status_code == 200
    assert set(PROOFS.findall(after.text)) == {await browser.proof()}


async def test_error_page_has_the_csrf_token_and_not_its_placeholder(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token())
    page = await reload(browser, "/ui/job/nope", "old")
    assert page.status_code == 404
    assert render._PROOF_MARK not in page.text
    assert set(PROOFS.findall(page.text)) == {await browser.proof()}


async def test_failed_page_is_rendered_again_for_the_next_viewer(open_site: Site) -> None:
    browser = open_site.browser()
    assert (await reload(browser, "/ui/job/web", "old")).status_code == 404
    await open_site.run()
    assert (await reload(browser, "/ui/job/web", "old")).status_code == 200


def test_page_is_shared_for_a_limited_time() -> None:
    shared, grant = SharedPages(), object()
    first = shared.find(("a",), grant, 0.0)
    assert shared.find(("a",), grant, AGE / 2) is first
    assert shared.find(("b",), grant, AGE / 2) is not first
    assert shared.find(("a",), grant, AGE) is not first


def test_page_is_not_shared_after_a_change_of_permissions() -> None:
    shared = SharedPages()
    assert shared.find(("a",), object(), 0.0) is not shared.find(("a",), object(), 0.0)


def test_number_of_shared_pages_is_limited() -> None:
    shared, grant = SharedPages(), object()
    first = shared.find((-1,), grant, 0.0)
    for number in range(MOST):
        shared.find((number,), grant, 0.0)
    assert shared.find((-1,), grant, 0.0) is not first

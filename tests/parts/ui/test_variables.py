"""Variables in forms: permissions, and no overwriting of concurrent changes."""

import re
from html import unescape
from typing import Any

import pytest

from tests.parts.ui.conftest import Browser, Site

TAG = re.compile("<[^>]*>")
LISTER = 'namespace "default" { variables { path "*" { capabilities = ["list"] } } }'


async def put(browser: Browser, index: str = "0", **fields: str) -> Any:
    given = {"path": "app", "name.1": "key", "value.1": "first", "index": index, **fields}
    return await browser.send("/ui/variables", None, **given)


async def index_of(browser: Browser) -> str:
    match = re.search(r'name="index" value="(\d+)"', (await browser.get("/ui/variable/app")).text)
    assert match is not None
    return match[1]


async def items(browser: Browser) -> Any:
    return (await browser.http.get("/v1/var/app")).json()["Items"]


async def test_a_variable_is_stored_and_shown(open_site: Site) -> None:
    browser = open_site.browser()
    answer = await put(browser, **{"name.2": "", "value.2": "of no name"})
    assert answer.headers["Location"] == "/ui/variable/app?namespace=default"
    assert "first" in (await browser.get("/ui/variable/app")).text
    assert await items(browser) == {"key": "first"}


async def test_concurrent_change_is_not_overwritten(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    index = await index_of(browser)
    await put(browser, index, **{"value.1": "second"})
    answer = await put(browser, index, **{"value.1": "third"})
    assert answer.status_code == 400
    assert "reload it" in answer.text
    assert await items(browser) == {"key": "second"}


async def test_a_variable_is_removed(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    index = await index_of(browser)
    await browser.send("/ui/variables/remove", None, path="app", index=index)
    assert (await browser.get("/ui/variable/app")).status_code == 404


async def test_value_is_returned_unchanged(open_site: Site) -> None:
    browser, value = open_site.browser(), "\n two\nlines </textarea><b>"
    await put(browser, **{"value.1": value})
    text = (await browser.get("/ui/variable/app")).text
    match = re.search(r'name="value.1"[^>]*>\n(.*?)</textarea>', text, re.DOTALL)
    assert match is not None
    assert unescape(match[1]) == value
    assert await items(browser) == {"key": value}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"path": ""}, "path is empty: write a path"),
        ({"index": "x"}, "is not the index"),
        ({"name.2": "key"}, "occurs twice"),
        ({"path": "a b"}, "path"),
    ],
)
async def test_invalid_form_is_reported(
    open_site: Site, fields: dict[str, str], fault: str
) -> None:
    answer = await put(open_site.browser(), **fields)
    assert answer.status_code == 400
    assert fault in answer.text


async def test_list_permission_permits_neither_reads_nor_changes(site: Site) -> None:
    master, lister = site.browser(), site.browser()
    await master.sign_in(await site.token())
    await put(master, **{"value.1": "veiled"})
    await lister.sign_in(await site.token(LISTER))
    assert "app" in (await lister.get("/ui/variables")).text
    answer = await lister.get("/ui/variable/app")
    assert (answer.status_code, "veiled" in answer.text) == (403, False)
    assert (await put(lister)).status_code == 403


async def test_policy_rules_are_shown_to_the_holder_of_the_policy(site: Site) -> None:
    browser = site.browser()
    await browser.sign_in(await site.token(LISTER))
    page = await browser.get("/ui/policy/theirs")
    assert 'capabilities = ["list"]' in unescape(TAG.sub("", page.text))  # the text of the policy
    assert (await browser.get("/ui/policy/others")).status_code in (403, 404)


async def test_access_page_shows_the_identity_without_secrets(site: Site) -> None:
    browser, secret = site.browser(), await site.token(LISTER)
    await browser.sign_in(secret)
    text = (await browser.get("/ui/access")).text
    assert "theirs" in text
    assert secret not in text
    assert "steward acl token list" not in text  # needs a management token

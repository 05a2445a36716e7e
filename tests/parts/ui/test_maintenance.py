"""Sessions, notification tests, and snapshots in the web interface."""

import re
from html import unescape
from pathlib import Path

import pytest
import trio

from daemon.ui import access
from storage.queries import audit
from tests.parts.ui.conftest import READER, Browser, Site
from tests.samples import job

ENDS = re.compile(r'action="/ui/session/(\w+)/end"')


async def signed_in(site: Site, secret: str) -> Browser:
    browser = site.browser()
    await browser.sign_in(secret)
    return browser


async def ends(browser: Browser) -> list[str]:
    return ENDS.findall((await browser.get("/ui/access")).text)


def recorded(site: Site) -> list[str]:
    """Return the paths in the audit log."""
    return [item.path for item in site.cluster.store.read(lambda db: audit.after(db, 0))]


async def is_in(browser: Browser) -> bool:
    return (await browser.get("/ui/jobs")).status_code == 200


async def test_user_ends_another_session_of_the_same_token(site: Site) -> None:
    secret = await site.token(READER, name="reader")
    mine, forgotten = await signed_in(site, secret), await signed_in(site, secret)
    page = (await mine.get("/ui/access")).text
    assert page.count("this browser") == 1
    assert secret not in page
    this, other = await ends(mine)
    assert (await mine.send(f"/ui/session/{other}/end")).status_code == 303
    assert (await is_in(mine), await is_in(forgotten)) == (True, False)
    await mine.send(f"/ui/session/{this}/end")
    assert not await is_in(mine)
    assert recorded(site) == [f"/ui/session/{item}/end" for item in (other, this)]


async def test_only_a_management_token_ends_sessions_of_other_tokens(site: Site) -> None:
    reader = await signed_in(site, await site.token(READER, name="reader"))
    master = await signed_in(site, await site.token(name="master"))
    (own,) = await ends(reader)
    both = await ends(master)
    assert len(both) == 2
    (masters,) = set(both) - {own}
    answer = await reader.send(f"/ui/session/{masters}/end")
    assert (answer.status_code, await is_in(master)) == (404, True)
    await master.send(f"/ui/session/{own}/end")
    assert not await is_in(reader)


async def test_a_session_of_a_token_with_bound_addresses_is_listed_and_ended(site: Site) -> None:
    bound = await signed_in(site, await site.token(READER, bound_cidrs=("127.0.0.0/8",)))
    master = await signed_in(site, await site.token(name="master"))
    (own,) = await ends(bound)
    assert own in await ends(master)
    await master.send(f"/ui/session/{own}/end")
    assert not await is_in(bound)


async def test_only_the_session_of_this_browser_ends_its_drafts(site: Site) -> None:
    secret = await site.token(READER)
    mine, _ = await signed_in(site, secret), await signed_in(site, secret)
    assert (await mine.get("/ui/access")).text.count('name="ends_this"') == 1


async def test_recent_sessions_are_shown_with_the_total_number(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_SESSIONS", 2)
    secret = await site.token(READER)
    browsers = [await signed_in(site, secret) for _ in range(3)]
    assert len(await ends(browsers[0])) == 2
    assert "The 2 most recently used of 3 sessions." in (await browsers[0].get("/ui/access")).text


async def test_a_live_stream_ends_with_its_session(site: Site) -> None:
    browser = await signed_in(site, await site.token(READER))
    master = await signed_in(site, await site.token(name="master"))
    (own,) = await ends(browser)
    with trio.fail_after(60):
        async with browser.http.stream("GET", "/ui/events") as stream:
            pieces = stream.aiter_text()
            assert "event: begin" in await anext(pieces)
            await site.cluster.register(job("first"))
            while "first" not in await anext(pieces):  # heartbeats
                pass
            await master.send(f"/ui/session/{own}/end")
            await site.cluster.register(job("second"))
            assert "second" not in "".join([piece async for piece in pieces])


async def test_token_list_has_pages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_TOKENS", 2)
    master = await signed_in(site, await site.token(name="token-0"))
    for number in (1, 2):
        await site.token(READER, name=f"token-{number}")
    first = (await master.get("/ui/access")).text
    (rest,) = re.findall(r'rel="next" href="([^"]*)"', first)
    second = (await master.get(unescape(rest))).text
    names = [set(re.findall(r"<td[^>]*>(token-\d)</td>", page)) for page in (first, second)]
    assert (len(names[0]), names[0] | names[1]) == (2, {"token-0", "token-1", "token-2"})


async def test_without_tokens_there_are_no_sessions(open_site: Site) -> None:
    browser = open_site.browser()
    assert "Sessions of the web interface" not in (await browser.get("/ui/access")).text
    assert (await browser.send("/ui/session/0/end")).status_code == 404


async def test_receivers_of_notifications_are_tested(open_site: Site) -> None:
    page = (await open_site.browser().send("/ui/notify", None, name="night")).text
    assert open_site.receivers.asked == ["night"]
    assert recorded(open_site) == ["/ui/notify"]
    assert "&lt;night&gt;" in page
    assert "is-failed" in page
    assert "steward notify test night" in page


async def test_a_snapshot_is_downloaded_as_a_file(open_site: Site, tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path)  # at the path of a daemon's store
    answer = await open_site.browser().send("/ui/snapshot")
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="steward-')
    assert answer.content[:2] == b"\x1f\x8b"  # gzip
    assert answer.headers["Digest"].startswith("sha-256=")
    assert recorded(open_site) == ["/ui/snapshot"]


async def test_refused_snapshot_names_the_missing_capability(site: Site) -> None:
    browser = await signed_in(site, await site.token('agent { policy = "read" }'))
    page = (await browser.get("/ui/settings")).text
    assert "Required: a management token" in page
    assert "Required: write on operator" in page
    assert (await browser.send("/ui/snapshot")).status_code == 403
    assert (await browser.send("/ui/notify")).status_code == 403

"""Terminals of pages: owners, permissions and time limits."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from wsproto.events import TextMessage

from daemon.web import websocket
from daemon.web.parameters import MAX_PARAMETERS
from daemon.web.session_store import IDLE
from daemon.web.ui_session import COOKIE
from storage.queries import audit, tokens
from storage.records.task import Action
from tests.parts.ui.conftest import READER, Browser, Site
from tests.parts.ui.test_pages import Elements
from tests.samples import group, task
from tests.websocket_client import Conversation, talk

ACTION = Action(name="say", command="/bin/echo", args=["a", "b"])
OUTSIDE = (
    ("Origin", "http://evil.example"),
    ("Origin", "null"),
    ("Origin", "http://127.0.0.1:1"),  # a service of a task; browsers send it the same cookie
    ("X-Nothing", ""),
)


def terminal(page: str) -> dict[str, str | None]:
    """Return the values that a page passes to its script."""
    forms = [found for tag, found in Elements(page).found if tag == "form"]
    return next(form for form in forms if form.get("id") == "terminal-form")


def of_browser(browser: Browser, *others: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a browser: its cookie and its fetch metadata."""
    cookie = browser.http.cookies.get(COOKIE) or ""
    said = others or (("Origin", browser.address),)
    return [(a.encode(), b.encode()) for a, b in (("Cookie", f"{COOKIE}={cookie}"), *said)]


async def begin(socket: Conversation, secret: str | None) -> None:
    """Send the first message of a client."""
    await socket.accepted()
    await socket.send(TextMessage(data=json.dumps({"version": 1, "auth_token": secret})))


Talk = Callable[..., AbstractAsyncContextManager[Conversation]]


async def opened(site: Site, browser: Browser, query: str = "") -> tuple[str, Talk]:
    """Open a terminal's page; return its CSRF token, and a function that opens the WebSocket."""
    found = site.cluster.allocations()[0]
    answer = await browser.get(f"/ui/allocation/{found.id}/terminal{query}")
    told = terminal(answer.text)
    address = urlsplit(str(told["data-talk"]))
    asked = dict(parse_qsl(address.query))
    if not query:
        asked |= {"task": "main", "command": json.dumps(["/bin/sh"])}

    def talks(*headers: tuple[str, str], of: Browser = browser) -> Any:
        return talk(site.address, address.path, headers=of_browser(of, *headers), **asked)

    return str(told["data-proof"]), talks


async def talks_noted(site: Site) -> list[int]:
    """Return the statuses of page terminals in the audit log."""
    await site.parts.audit.flush()
    found = site.cluster.store.read(lambda db: audit.after(db, 0))
    return [item.status for item in found if item.path.startswith("/ui/v1/client/")]


@pytest.fixture
async def master(site: Site) -> Browser:
    """Yield the browser of a user with all permissions, with a running job."""
    await site.run("web", group("g", task("main", actions=[ACTION])))
    browser = site.browser()
    await browser.sign_in(await site.token())
    return browser


async def test_a_page_opens_a_terminal_with_its_session(site: Site, master: Browser) -> None:
    proof, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, proof)
        assert await socket.next() == {"stdout": {"data": "main /bin/sh True"}}
        await socket.send(TextMessage(data='"typed"'))
        assert await socket.next() == "typed"


async def test_action_runs_as_declared_in_the_job(site: Site, master: Browser) -> None:
    proof, talks = await opened(site, master, "?task=main&action=say")
    async with talks() as socket:
        await begin(socket, proof)
        assert await socket.next() == {"stdout": {"data": "main /bin/echo a b True"}}


async def test_job_page_links_to_its_actions(site: Site, master: Browser) -> None:
    text = (await master.get("/ui/job/web")).text
    found = site.cluster.allocations()[0].id
    assert f"/ui/allocation/{found}/terminal?task=main&amp;action=say" in text


async def test_undeclared_action_is_not_found(site: Site, master: Browser) -> None:
    found = site.cluster.allocations()[0].id
    for query in ("task=main&action=rm", "task=other&action=say"):
        answer = await master.get(f"/ui/allocation/{found}/terminal?{query}")
        assert answer.status_code == 404


@pytest.mark.parametrize("header", OUTSIDE)
async def test_cross_origin_page_is_rejected(
    site: Site, master: Browser, header: tuple[str, str]
) -> None:
    _, talks = await opened(site, master)
    async with talks(header) as socket:
        assert await socket.next() is None
        assert socket.refused == 403


@pytest.mark.parametrize("site_of_page", ["cross-site", "same-site"])
async def test_page_marked_as_cross_site_by_the_browser_is_rejected(
    site: Site, master: Browser, site_of_page: str
) -> None:
    _, talks = await opened(site, master)
    async with talks(("Origin", master.address), ("Sec-Fetch-Site", site_of_page)) as socket:
        assert await socket.next() is None
        assert socket.refused == 403


async def test_two_session_cookies_are_rejected(site: Site, master: Browser) -> None:
    other = site.browser()
    await other.sign_in(await site.token())
    proof, _ = await opened(site, other)
    theirs = (
        f"{COOKIE}={other.http.cookies.get(COOKIE)}; {COOKIE}={master.http.cookies.get(COOKIE)}"
    )
    path = "/ui/v1/client/allocation/x/exec"
    headers = [(b"Cookie", theirs.encode()), (b"Origin", site.address.encode())]
    async with talk(site.address, path, headers=headers, ws_handshake="true") as socket:
        await begin(socket, proof)
        assert await socket.next() is None
        assert (socket.code, socket.reason) == (1011, "Permission denied")


@pytest.mark.parametrize("before", ["", "/ui"])
async def test_too_many_parameters_are_reported(site: Site, before: str) -> None:
    path = f"{before}/v1/client/allocation/x/exec"
    headers = [(b"Origin", site.address.encode())]
    many = {f"a{number}": "1" for number in range(MAX_PARAMETERS + 1)}
    async with talk(site.address, path, headers=headers, **many) as socket:
        assert await socket.next() is None
        assert socket.refused == 400


@pytest.mark.parametrize("proof", ["", "x", None])
async def test_caller_without_the_csrf_token_gets_no_terminal(
    site: Site, master: Browser, proof: str | None
) -> None:
    _, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, proof)
        assert await socket.next() is None
        assert socket.code is not None


async def test_csrf_token_of_another_session_is_invalid(site: Site, master: Browser) -> None:
    other = site.browser()
    await other.sign_in(await site.token())
    proof, _ = await opened(site, other)
    _, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, proof)
        assert await socket.next() is None
        assert (socket.code, socket.reason) == (1011, "Permission denied")


async def test_terminal_without_a_session_is_refused(site: Site, master: Browser) -> None:
    proof, talks = await opened(site, master)
    for said in (proof, ""):
        async with talks(of=site.browser()) as socket:
            await begin(socket, said)
            assert await socket.next() is None
            assert socket.reason == "Permission denied"


async def test_read_permission_gives_no_terminal(site: Site, master: Browser) -> None:
    reader = site.browser()
    await reader.sign_in(await site.token(READER))
    for query in ("", "?task=main&action=say"):
        proof, talks = await opened(site, reader, query)
        async with talks() as socket:
            await begin(socket, proof)
            assert await socket.next() is None
            assert socket.reason == "Permission denied"


async def test_cookie_opens_only_terminals_of_pages(site: Site, master: Browser) -> None:
    found = site.cluster.allocations()[0].id
    path = f"/v1/client/allocation/{found}/exec"
    given = {"task": "main", "command": '["/bin/sh"]'}
    async with talk(site.address, path, headers=of_browser(master), **given) as socket:
        assert await socket.next() is None
        assert socket.reason == "Permission denied"


async def test_terminal_ends_at_sign_out(site: Site, master: Browser) -> None:
    proof, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, proof)
        await socket.next()
        await master.send("/ui/sign-out")
        assert await socket.next() is None
        assert (socket.code, socket.reason) == (1011, "Permission denied")
    assert await talks_noted(site) == [200]


async def test_refused_terminal_is_logged(site: Site, master: Browser) -> None:
    _, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, "x")
        await socket.next()
    assert await talks_noted(site) == [403]


async def test_terminal_ends_after_the_idle_timeout_of_its_session(
    site: Site, master: Browser
) -> None:
    proof, talks = await opened(site, master)
    async with talks() as socket:
        await begin(socket, proof)
        await socket.next()
        site.cluster.clock.time += IDLE + 1
        assert await socket.next() is None
        assert socket.reason == "Permission denied"


@pytest.mark.parametrize("of_page", [True, False])
async def test_a_terminal_ends_with_the_token(site: Site, master: Browser, of_page: bool) -> None:
    secret = await site.token()
    proof, talks = await opened(site, master)
    if of_page:
        await master.sign_in(secret)
        proof, talks = await opened(site, master)
        said = proof
    else:
        said = secret
    found = site.cluster.allocations()[0].id
    path = f"/v1/client/allocation/{found}/exec"
    given = {"task": "main", "command": '["/bin/sh"]', "ws_handshake": "true"}
    opening = talks() if of_page else talk(site.address, path, **given)
    async with opening as socket:
        await begin(socket, said)
        await socket.next()
        token = site.parts.tokens.resolve(secret).token
        await site.cluster.store.write(lambda tx: tokens.remove(tx, token.accessor))
        assert await socket.next() is None
        assert socket.reason == "Permission denied"


async def test_pages_send_their_origin_without_access_control(
    open_site: Site,
) -> None:
    await open_site.run("web", group("g", task("main")))
    proof, talks = await opened(open_site, open_site.browser())
    async with talks() as socket:
        await begin(socket, proof)
        assert await socket.next() is not None
    async with talks(("Origin", "http://127.0.0.1:1")) as socket:
        assert await socket.next() is None
        assert socket.refused == 403


async def test_page_without_an_origin_gets_no_websocket(site: Site) -> None:
    path = "/ui/v1/client/allocation/x/exec"
    async with talk(site.address, path, headers=[], ws_handshake="true") as socket:
        assert await socket.next() is None
        assert socket.refused == 403


@pytest.mark.parametrize("of_page", [True, False])
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("{" + ",".join(f'"k{number}":1' for number in range(80_000)) + "} x", 1009),
        ("é" * 4096, 1008),
    ],
    ids=["long", "wide"],
)
async def test_a_handshake_beyond_its_limit_is_not_decoded(
    site: Site, monkeypatch: pytest.MonkeyPatch, said: str, code: int, of_page: bool
) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(websocket, "decode", lambda record, body: decoded.append(body))
    path = f"{'/ui' if of_page else ''}/v1/client/allocation/x/exec"
    headers = [(b"Origin", site.address.encode())]
    async with talk(site.address, path, headers=headers, ws_handshake="true") as socket:
        await socket.accepted()
        await socket.send(TextMessage(data=said))
        assert await socket.next() is None
        assert socket.code == code
    assert decoded == []


async def test_messages_after_the_handshake_can_be_long(site: Site, master: Browser) -> None:
    found = site.cluster.allocations()[0].id
    path, secret = f"/v1/client/allocation/{found}/exec", await site.token()
    query = {"task": "main", "command": '["/bin/sh"]', "ws_handshake": "true"}
    frame = json.dumps({"stdin": {"data": "x" * 100_000}})
    async with talk(site.address, path, **query) as socket:
        await begin(socket, secret)
        await socket.send(TextMessage(data=frame))  # does not wait for an answer to the handshake
        await socket.next()
        assert await socket.next() == json.loads(frame)

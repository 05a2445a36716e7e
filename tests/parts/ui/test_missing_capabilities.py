"""A form that the API would refuse is disabled, and names the missing capability."""

from html.parser import HTMLParser

import pytest

from daemon.ui.routes import PAGES
from storage.records.job import Parameterized, Periodic
from tests.parts.ui.conftest import READER, Browser, Site
from tests.parts.ui.test_pages import SHOWN, filled
from tests.samples import job

WITHOUT_API = {"/ui/sign-in", "/ui/sign-out", "/ui/density", "/ui/session/{session_id}/end"}
SUBMITTER = 'namespace "default" { policy = "write" } node { policy = "read" }'


class Forms(HTMLParser):
    """The forms of a page that change data: action, fields, and whether the form can be sent."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._open: tuple[str, dict[str, str]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form" and given.get("method") == "post":
            self._open = (given["action"], {})
        elif self._open is None:
            return
        elif tag in ("input", "textarea", "select"):
            self._open[1][given.get("name", "")] = given.get("value", "")
        elif tag == "button" and given.get("type") != "button" and "disabled" not in given:
            self.found.append(self._open)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None


async def fill(site: Site, browser: Browser) -> dict[str, str]:
    """Fill the store; return the values of the placeholders in paths."""
    found = await filled(site, browser=browser)
    await site.cluster.register(
        job("nightly", type="batch", periodic=Periodic(spec="@daily", spec_type="cron"))
    )
    await site.cluster.register(job("convert", type="batch", parameterized_job=Parameterized()))
    return found


async def visit(browser: Browser, found: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """Return the forms on all pages that this user can send."""
    forms = []
    jobs = [found["job_id"], "nightly", "convert"]
    for path in SHOWN:
        for job_id in jobs if "{job_id}" in path else jobs[:1]:
            text = (await browser.get(path.format_map({**found, "job_id": job_id}))).text
            forms += Forms(text).found
    return [
        (action, fields)
        for action, fields in forms
        if action not in WITHOUT_API and "/session/" not in action
    ]


def test_every_action_names_its_api_call() -> None:
    actions = [page for page in PAGES if page.method == "POST" and page.path not in WITHOUT_API]
    assert [action.path for action in actions if not action.calls] == []


@pytest.mark.parametrize("rules", [READER, SUBMITTER, 'agent { policy = "read" }'])
async def test_no_enabled_form_is_refused(site: Site, rules: str) -> None:
    master, browser = site.browser(), site.browser()
    await browser.sign_in(await site.token(rules))
    await master.sign_in(await site.token())
    found = await fill(site, master)
    forms = await visit(browser, found)
    assert (rules == SUBMITTER) == bool(forms)
    sent = {}
    for action, fields in forms:
        answer = await browser.send(action, None, **{**fields, "purge": ""})
        sent[action.partition("?")[0]] = answer.status_code
    assert 403 not in sent.values(), sent


async def test_management_token_finds_no_form_disabled(open_site: Site) -> None:
    browser = open_site.browser()
    found = await fill(open_site, browser)
    for path in SHOWN:
        text = (await browser.get(path.format_map(found))).text
        assert "Your token does not allow this" not in text, path
    assert len({action for action, _ in await visit(browser, found)}) > 10


async def test_reader_sees_the_missing_capability(site: Site) -> None:
    browser = site.browser()
    await site.run()
    await browser.sign_in(await site.token(READER))
    text = (await browser.get("/ui/job/web")).text
    assert "submit-job or purge-job or deregister-job on the namespace default" in text
    assert "scale-job or submit-job on the namespace default" in text
    (allocation,) = site.cluster.allocations()
    text = (await browser.get(f"/ui/allocation/{allocation.id}")).text
    assert "alloc-lifecycle on the namespace default" in text
    assert "write on node" in (await browser.get(f"/ui/node/{allocation.node_id}")).text
    assert "plan-job on any namespace" in (await browser.get("/ui/run")).text

"""A rejected form keeps what the user entered, with the error at the field that it concerns."""

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from storage.records.group import Scaling
from storage.records.job import Parameterized
from tests.parts.ui.conftest import Browser, Site
from tests.samples import group, job

FREEZE = {"reason": "release of <b>4.2</b>", "namespace": "default", "jobs": "ledger-*"}


class Fields(HTMLParser):
    """The values of the fields of a form, and the fields that have an error."""

    def __init__(self, text: str, action: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self.faults: list[str] = []
        self.is_open = False  # the form is not in a closed part of the page
        self._action, self._is_here, self._in = action, False, ""
        self._details: list[bool] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "details":
            self._details.append("open" in given)
        elif tag == "form" and given.get("action", "").split("?")[0] == self._action:
            self._is_here, self.is_open = True, all(self._details)
        elif self._is_here and (name := given.get("name")):
            if given.get("type") != "checkbox" or "checked" in given:
                self.values[name] = given.get("value", "")
            self._in = name if tag == "textarea" else ""
            if "aria-invalid" in given:
                self.faults.append(name)

    def handle_data(self, data: str) -> None:
        if self._in:
            self.values[self._in] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self._details.pop()
        elif tag == "form":
            self._is_here = False
        self._in = ""


async def rejected(browser: Browser, path: str, /, **fields: str) -> tuple[Fields, str]:
    """Send a form that the API rejects; return its fields as shown again, and the page."""
    answer = await browser.send(path, None, **fields)
    assert answer.status_code == 400, answer.text
    shown = Fields(answer.text, path.split("?")[0])
    assert shown.is_open
    entered = {name: value for name, value in fields.items() if value}
    assert {name: shown.values.get(name, "").removeprefix("\n") for name in entered} == entered
    return shown, unescape(re.sub(r"<[^>]*>", " ", answer.text))


async def test_rejected_freeze_names_the_field(open_site: Site) -> None:
    browser = open_site.browser()
    fields = {**FREEZE, "strength": "steps", "until": "tomorrow"}
    answer = await browser.send("/ui/freezes", None, **fields)
    assert answer.status_code == 400
    shown = Fields(answer.text, "/ui/freezes")
    assert shown.faults == ["until"]
    assert {name: shown.values[name] for name in FREEZE} == FREEZE
    assert '<option value="steps" selected>' in answer.text
    assert 'id="until-fault"' in answer.text
    assert 'data-follow=""' in answer.text  # a reload would lose the values


async def test_rejected_variable_keeps_all_rows(open_site: Site) -> None:
    rows = {"name.1": "user", "value.1": "shop", "name.2": "user", "value.2": "line\nline"}
    _, page = await rejected(open_site.browser(), "/ui/variables", path="app", **rows)
    assert "the name 'user' occurs twice" in page


async def test_conflict_keeps_the_values_and_the_old_index(open_site: Site) -> None:
    browser = open_site.browser()
    row = {"name.1": "key", "value.1": "old"}
    assert (await browser.send("/ui/variables", None, path="app", **row)).status_code == 303
    stale = {"path": "app", "namespace": "default", "index": "1", "name.1": "key", "value.1": "new"}
    _, page = await rejected(browser, "/ui/variables", **stale)
    assert "app has changed since this page was loaded" in page


async def test_rejected_calendar_keeps_its_text(open_site: Site) -> None:
    fields = {"name": "business", "namespace": "default", "document": '{"Weekdays": ["mon"'}
    shown, page = await rejected(open_site.browser(), "/ui/calendars", **fields)
    assert "the calendar is not JSON" in page
    assert shown.values["index"] == "0"


@pytest.mark.parametrize(
    ("path", "fields", "fault"),
    [
        ("/ui/tokens", {"name": "night", "type": "client", "ttl": "soon"}, "ttl"),
        ("/ui/policies", {"new": "1", "name": "a b", "rules": "namespace {}"}, "name"),
        ("/ui/roles", {"name": "a b", "description": "readers"}, "name"),
    ],
)
async def test_rejected_access_form_names_the_field(
    master: Browser, path: str, fields: dict[str, str], fault: str
) -> None:
    shown, _ = await rejected(
        master, path, **{name: value for name, value in fields.items() if name != "type"}
    )
    assert fault in shown.faults


async def test_rejected_dispatch_keeps_metadata_and_payload(open_site: Site) -> None:
    block = Parameterized(payload="optional", meta_required=["bucket", "key"])
    await open_site.cluster.register(job("convert", type="batch", parameterized_job=block))
    path = "/ui/job/convert/dispatch"
    fields = {"meta.bucket": "media", "meta.key": "", "payload": "line\nline"}
    shown, _ = await rejected(open_site.browser(), path, **fields)
    assert shown.faults == ["meta.key"]


async def test_rejected_count_is_shown_in_its_open_panel(open_site: Site) -> None:
    bounds = Scaling(min=1, max=3, enabled=True)
    await open_site.cluster.register(job("web", group("web", scaling=bounds)))
    fields = {"group": "web", "count": "9"}
    await rejected(open_site.browser(), "/ui/job/web/scale", **fields)


async def test_denied_form_names_the_missing_capability(reader: Browser) -> None:
    answer = await reader.send("/ui/freezes", None, **FREEZE, strength="begin")
    assert answer.status_code == 403
    assert "Permission denied: your token does not allow this." in answer.text
    assert "on the namespace default" in answer.text

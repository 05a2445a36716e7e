"""The pages of calendars: a year with its closed days, and forms that overwrite no other change."""

import re
from typing import Any

from tests.parts.ui.conftest import Browser, Site

BUSINESS = """{"Weekdays": ["mon", "tue", "wed", "thu", "fri"], "Hours": ["08:00-18:00"],
    "Holidays": {"2026-12-25": "<b>Christmas</b>", "2026-12-28": "a long holiday",
                 "2026-12-29": "a long holiday"}}"""


async def put(browser: Browser, index: str = "0", document: str = BUSINESS) -> Any:
    fields = {"name": "business", "namespace": "default", "index": index, "document": document}
    return await browser.send("/ui/calendars", None, **fields)


async def index_of(browser: Browser) -> str:
    match = re.search(
        r'name="index" value="(\d+)"', (await browser.get("/ui/calendar/business")).text
    )
    assert match is not None
    return match[1]


async def test_a_year_shows_closed_days_with_their_reasons(open_site: Site) -> None:
    browser = open_site.browser()
    answer = await put(browser)
    assert answer.headers["Location"] == "/ui/calendar/business?namespace=default"
    page = (await browser.get("/ui/calendar/business?year=2026")).text
    assert "2026-12-28 to 2026-12-29</td><td>a long holiday" in page
    assert "&lt;b&gt;Christmas&lt;/b&gt;" in page
    assert "<b>Christmas" not in page
    assert page.count('class="day-closed"') == 3 + 1  # and one in the legend
    assert page.count('class="day-part') == 258 + 1
    assert "258 of 365 days are open" in page
    assert "366 days" in (await browser.get("/ui/calendar/business?year=2028")).text


async def test_all_calendars_are_listed(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    page = (await browser.get("/ui/calendars")).text
    assert '<a href="/ui/calendar/business?namespace=default">business</a>' in page


async def test_a_concurrent_change_is_not_overwritten(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    index = await index_of(browser)
    await put(browser, index, "{}")
    answer = await put(browser, index)
    assert answer.status_code == 400
    assert "reload it" in answer.text


async def test_invalid_document_is_refused_with_its_error(open_site: Site) -> None:
    browser = open_site.browser()
    for document, message in (
        ("{", "the calendar is not JSON"),
        ("[]", "the calendar must be a JSON object"),
        ('{"Hours": ["8-18"]}', "use a period such as 08:00-18:00"),
    ):
        answer = await put(browser, document=document)
        assert answer.status_code == 400
        assert message in answer.text


async def test_year_out_of_range_is_refused(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    assert (await browser.get("/ui/calendar/business?year=1492")).status_code == 400


async def test_a_calendar_is_removed(open_site: Site) -> None:
    browser = open_site.browser()
    await put(browser)
    index = await index_of(browser)
    await browser.send(
        "/ui/calendars/remove", None, name="business", namespace="default", index=index
    )
    assert (await browser.get("/ui/calendar/business")).status_code == 404


ICALENDAR = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:20261224
SUMMARY:Christmas Eve
END:VEVENT
END:VCALENDAR
"""


async def test_an_icalendar_file_is_imported(open_site: Site) -> None:
    browser = open_site.browser()
    fields = {"name": "days", "namespace": "default", "content": ICALENDAR}
    answer = await browser.send("/ui/calendars/import", None, **fields)
    assert answer.headers["Location"] == "/ui/calendar/days?namespace=default"
    assert "Christmas Eve" in (await browser.get("/ui/calendar/days?year=2026")).text
    for content, message in (("", "content is empty"), ("x", "iCalendar")):
        answer = await browser.send("/ui/calendars/import", None, **{**fields, "content": content})
        assert (answer.status_code, message in answer.text) == (400, True), answer.text

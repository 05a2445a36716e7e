"""Calendars, queues and freezes in a real browser."""

from pathlib import Path

from tests.browser.chromium import Tab, keep
from tests.browser.conftest import act
from tests.browser.sample_jobs import fill_plans, small
from tests.service.daemon import Steward, open_steward

HOLIDAYS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//test//EN
BEGIN:VEVENT
UID:1
DTSTAMP:20260101T000000Z
DTSTART;VALUE=DATE:{year}0601
RRULE:FREQ=YEARLY
SUMMARY:Day of the founders
END:VEVENT
END:VCALENDAR
"""


async def test_a_calendar_is_stored_imported_and_removed(browser: Tab, tmp_path: Path) -> None:
    file = tmp_path / "days.ics"
    async with open_steward(tmp_path, "--dev") as steward:
        await browser.open(f"{steward.address}/ui/calendars")
        await browser.write("#new input[name=name]", "business")
        await browser.write("#new textarea", "{no JSON")
        await browser.press("form[action='/ui/calendars'] button.main")
        await browser.until_text("main", "not JSON")
        assert len(browser.faults) == 1  # the status of the refused form
        browser.faults.clear()
        await browser.open(f"{steward.address}/ui/calendars")
        await browser.write("#new input[name=name]", "business")
        await browser.press("form[action='/ui/calendars'] button.main")
        assert await browser.value("location.pathname") == "/ui/calendar/business"
        year = await browser.value("document.querySelector('#year h2').textContent")
        file.write_text(HOLIDAYS.format(year=year))
        await browser.choose("#import input[type=file]", file)
        await browser.until("document.querySelector('#import textarea').value.includes('founders')")
        await browser.press("form[action='/ui/calendars/import'] button.main")
        await browser.until_text("#year", "Day of the founders")
        await keep(browser, "calendar")
        await act(browser, "/ui/calendars/remove")
        assert await browser.value("location.pathname") == "/ui/calendars"
        assert browser.faults == []


async def test_queue_page_follows_its_runs(browser: Tab, tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev") as steward:
        await fill_plans(steward)
        await browser.open(f"{steward.address}/ui/queues")
        await browser.press("#queues a[href*='reports']")
        await browser.until_text("#queue", "waiting")
        await browser.until_text("#live", "live")
        await keep(browser, "queues")
        await steward.delete("/v1/job/report-a")
        await browser.until("!document.getElementById('queue').textContent.includes('waiting')")
        await browser.until_text("#queue", "report-b")
        assert browser.faults == []


async def test_freeze_is_shown_on_each_page_until_its_end(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/freezes")
    await browser.click("#new summary")
    await browser.write("#new input[name=reason]", "Closing of the year")
    await browser.write("#new input[name=jobs]", "ledger-*")
    await browser.write("#new input[name=until]", "+2h")
    await browser.press("form[action='/ui/freezes'] button.main")
    await browser.until_text("#freezes", "ledger-*")
    await keep(browser, "freezes")
    await filled.register(small("ledger-1", "/bin/true"))
    await browser.open(f"{filled.address}/ui/jobs")
    await browser.until_text(".message.freeze", "Closing of the year")
    await browser.press(".message.freeze a")
    await act(browser, "/ui/freezes/thaw")
    await browser.until("document.querySelector('.message.freeze') === null")
    await filled.until("/v1/job/ledger-1", lambda shown: shown["Status"] == "dead")
    assert browser.faults == []

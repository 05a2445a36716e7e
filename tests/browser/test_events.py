"""The list of events and the times of pages in a real browser."""

from tests.browser.chromium import Tab
from tests.service.daemon import Steward

SHOWN = "[...document.querySelectorAll('#events tbody tr:not([hidden])')].map((one) => one.cells[0].textContent)"


async def test_events_are_sentences_that_can_be_filtered(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/log")
    await browser.until_text("#events", "Job etl was registered")
    await browser.until_text("#events", "Run etl/1 of etl began")
    times = (
        "[...document.querySelectorAll('#events tbody tr')].map((one) => one.cells[3].textContent)"
    )
    await browser.until(f"{times}.some((one) => /^\\d/.test(one))")
    await browser.until(f"!{times}.some((one) => one.includes('before'))")
    for name, value in (("topic", "Job"), ("text", "TRAIN")):
        await browser.write(f"#event-filter [name={name}]", value)
    rows = await browser.value(SHOWN)
    assert "Job train-model was registered" in rows
    assert {row.split()[1] for row in rows} == {"train-model"}
    await browser.write("#event-filter [name=topic]", "Allocation")
    await browser.write("#event-filter [name=text]", "of web")
    link = "#events tbody tr:not([hidden]) a"
    assert await browser.value(f"document.querySelector(\"{link}\").pathname.split('/')[2]") == (
        "allocation"
    )
    await browser.press(f"{link}[href^='/ui/job/web']")
    assert browser.faults == []


async def test_relative_times_are_updated_and_show_the_time_zone(
    browser: Tab, filled: Steward
) -> None:
    await browser.open(f"{filled.address}/ui/jobs")
    time = "document.querySelector('#jobs time')"
    await browser.value(f"{time}.dispatchEvent(new Event('pointerover', {{bubbles: true}}))")
    title: str = await browser.value(f"{time}.title")
    assert title.count("\n") == 1
    assert title.endswith(" UTC")
    for seconds, words in ((7260, "2 h 1 min ago"), (-90, "in 1 min 30 s"), (0, "now")):
        text = await browser.value(
            f"{time}.dateTime = new Date(Date.now() - {seconds}e3).toISOString(); tick(); {time}.textContent"
        )
        assert text == words

"""The search finds objects and actions by keyboard in a real browser."""

from tests.browser.chromium import Tab
from tests.service.daemon import Steward

FIELD = "#palette input"


async def test_a_job_is_found_and_stopped_by_keyboard(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/")
    await browser.key("k", control=True)
    await browser.until("document.getElementById('palette').open")
    await browser.until_text("#palette .results", "Overview")
    await browser.write(FIELD, "stop web")
    await browser.until_text("#palette .results", "Stop web")
    await browser.key("ArrowDown")
    assert await browser.value("document.activeElement.pathname") == "/ui/job/web"
    await browser.value("window.gone = true")
    await browser.key("Enter")
    await browser.until_loaded("/ui/job/web")
    await browser.until("document.querySelector('details.act[open] form[action*=stop]') !== null")
    await browser.press("form[action^='/ui/job/web/stop'] button.danger")
    await browser.until_text("#head", "stopped")

    await browser.key("/")
    await browser.write(FIELD, "variab")
    await browser.value("window.gone = true")
    await browser.key("Enter")  # before the results appear
    await browser.until_loaded("/ui/variables")

    await browser.key("?")
    await browser.until_text("#key-list", "Find anything")
    await browser.key("Escape")
    await browser.until("!document.getElementById('key-list').open")
    await browser.value("window.gone = true")
    await browser.key("g")
    await browser.key("j")
    await browser.until_loaded("/ui/jobs")
    assert browser.faults == []


async def test_link_target_in_a_collapsed_section_is_expanded(
    browser: Tab, filled: Steward
) -> None:
    await browser.open(f"{filled.address}/ui/variables")
    await browser.key("/")
    await browser.write(FIELD, "create a var")
    await browser.until_text("#palette .results", "Create a variable")
    await browser.key("Enter")
    await browser.until("document.getElementById('new').open")
    assert not await browser.value("document.getElementById('palette').open")
    assert browser.faults == []

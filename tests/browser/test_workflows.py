"""Users control the run of a workflow in a real browser."""

from tests.browser.chromium import Tab
from tests.browser.test_user_journeys import act
from tests.service.daemon import Steward


async def test_a_gate_is_approved_and_a_failure_accepted(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/runs")
    await browser.press("#runs a[href^='/ui/job/etl/run']")
    await browser.until_text("#gate-publish", "Publish the model?")
    await browser.until_text("#steps", "it failed")
    assert await browser.value("document.querySelectorAll('.flow .step').length") == 7

    await browser.write("form[action='/ui/job/etl/run/approve'] input[name=note]", "looks right")
    await act(browser, "/ui/job/etl/run/approve")
    # No reload: the page receives the changes.
    await browser.until("document.getElementById('gate-publish') === null")
    await browser.until_text("#acts", "looks right")
    await act(browser, "/ui/job/etl/run/accept")
    await browser.until_text("#run h2", "succeeded")
    assert await browser.value("document.querySelectorAll('.flow .is-failed').length") == 0

    await browser.press("#graph .step a, #steps a.also")
    assert await browser.value("location.pathname.startsWith('/ui/allocation/')")
    assert browser.faults == []

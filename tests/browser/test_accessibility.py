"""Accessibility of the pages: screen reader, keyboard, phone and dark mode."""

from pathlib import Path

import pytest

from tests.browser.chromium import Tab, keep
from tests.service.daemon import Steward

AXE = Path(__file__).parent / "fetched" / "axe.min.js"
PHONE = 375  # pixels
PHONE_OR_LESS = 500
SERIOUS = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`))
"""
PAGES = (
    "",
    "jobs",
    "job/web",
    "job/web/definition",
    "job/web/logs",
    "job/web/versions",
    "job/web/compare?old=0&new=1",
    "job/backup/launches",
    "job/convert/launches",
    "runs",
    "job/etl/run",
    "allocation/{alloc}",
    "allocation/{alloc}/logs",
    "allocation/{alloc}/logs?q=GET",
    "allocation/{alloc}/files",
    "allocation/{alloc}/terminal",
    "node/{node}",
    "services",
    "evaluations",
    "variables",
    "access",
    "settings",
    "run",
    "run?job=web",
    "sign-in",
    "log",
    "find?q=web",
    "keys",
)


async def pages(steward: Steward) -> list[str]:
    """Return the addresses of pages that show something."""
    placed = await steward.allocations("web", "running", "complete")
    alloc = next(alloc for alloc in placed if alloc["ClientStatus"] == "running")
    (node,) = await steward.get("/v1/nodes")
    return [
        f"{steward.address}/ui/{page.format(alloc=alloc['ID'], node=node['ID'])}" for page in PAGES
    ]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_serious(
    browser: Tab, filled: Steward, scheme: str, width: int
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not there: python packaging/vendor/fetch.py")
    feature = {"name": "prefers-color-scheme", "value": scheme}
    await browser.tell("Emulation.setEmulatedMedia", features=[feature])
    await browser.tell(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=width < PHONE_OR_LESS,
    )
    await filled.post("/v1/job/backup/periodic/pause")
    for address in await pages(filled):
        await browser.open(address)
        if address.endswith("/terminal"):
            await browser.click("#terminal-form button.main")
            await browser.until_text("#terminal-state", "connected")
        if scheme == "dark" and width > PHONE_OR_LESS and address.endswith("/job/web"):
            await keep(browser, "dark")
        await browser.value(f"{AXE.read_text()}; null")
        assert await browser.value(SERIOUS) == [], address


async def test_no_page_is_wider_than_a_phone(browser: Tab, filled: Steward) -> None:
    await browser.tell(
        "Emulation.setDeviceMetricsOverride",
        width=PHONE,
        height=700,
        deviceScaleFactor=1,
        mobile=True,
    )
    for address in await pages(filled):
        await browser.open(address)
        assert await browser.value("document.documentElement.scrollWidth") <= PHONE, address
        if address.endswith("/job/web"):
            await keep(browser, "phone")


async def test_the_keyboard_leads_everywhere_and_back(browser: Tab, filled: Steward) -> None:
    *_, alloc = (page for page in await pages(filled) if page.endswith("/terminal"))
    await browser.open(f"{filled.address}/ui/job/web")
    await browser.key("Tab")
    assert await browser.value("document.activeElement.className") == "skip"
    await browser.key("/")
    assert await browser.value("document.activeElement.closest('dialog').id") == "palette"
    await browser.key("Escape")
    await browser.until("!document.getElementById('palette').open")
    await browser.value("document.querySelector('details.act summary').focus()")
    await browser.key("Enter")
    await browser.until("document.querySelector('details.act').open")
    await browser.key("Escape")
    await browser.until("!document.querySelector('details.act').open")

    await browser.open(alloc)
    await browser.value("document.querySelector('#terminal-form button.main').focus()")
    await browser.key("Enter")
    await browser.until("document.activeElement.closest('#terminal') !== null")
    await browser.key("Tab")
    assert await browser.value("document.activeElement.closest('#terminal') !== null")
    await browser.key("F6", control=True)
    assert await browser.value("document.activeElement.id") == "terminal-end"
    assert browser.faults == []

"""Accessibility of the pages: screen reader, keyboard, phone and dark mode."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.addresses import GROUPS, WITH_TOKENS, addresses
from tests.browser.chromium import Tab, keep
from tests.browser.conftest import SECRET, sign_in
from tests.browser.sample_jobs import fill
from tests.service.daemon import Steward, open_steward

AXE = Path(__file__).parent / "fetched" / "axe.min.js"
PHONE_OR_LESS = 500  # pixels
PHONE = 375
SIZES = {PHONE: 667, 390: 844, 1280: 900}  # width and height
# Each theme at each of two widths. A page is loaded once and shown in all four views.
VIEWS = [(scheme, width) for width in (390, 1280) for scheme in ("light", "dark")]
# A page gets the event of its new size before the next frame.
RESIZED = "new Promise((done) => requestAnimationFrame(() => done(null)))"
SERIOUS = """
axe.run(document, {resultTypes: ["violations"], ...OPTIONS}).then((found) => found.violations
  .filter((one) => ["serious", "critical"].includes(one.impact))
  .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`))
"""
# The dark theme changes only colors, and only these rules read colors.
COLOR_RULES = {"runOnly": ["color-contrast", "link-in-text-block"]}
UI = Path(__file__).parents[2] / "daemon" / "ui"
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*:root \{([^{}]{1,2000})\}\s*\}")
COLOR = re.compile(r"--[a-z-]{1,20}: #[0-9a-f]{6}")
# Finds elements that clip their content. Only a scrolling container may have content wider than
# itself.
CLIPPED = """
[...document.querySelectorAll("main *, header *, footer *")].filter((item) => {
  const style = getComputedStyle(item);
  const cuts = style.overflowX === "hidden" || style.overflowX === "clip";
  return cuts && item.closest("[aria-hidden], [role=img], input, .hidden") === null && item.clientWidth > 1
    && item.scrollWidth > item.clientWidth + 1;
}).map((item) => item.outerHTML.slice(0, 200))
"""


@asynccontextmanager
async def opened(directory: Path, browser: Tab, group: str) -> AsyncIterator[list[str]]:
    """Run a daemon with data for each page of a group; yield the addresses of the pages."""
    flags = ("--dev", "--acl") if group in WITH_TOKENS else ("--dev",)
    async with open_steward(directory, *flags) as steward:
        if group in WITH_TOKENS:
            await steward.post("/v1/acl/bootstrap", {"BootstrapSecret": SECRET})
            steward.token = SECRET
            await sign_in(browser, steward)
        else:
            await fill(steward)
        yield await addresses(steward, group)


async def view(browser: Tab, scheme: str, width: int) -> None:
    """Show the page in this theme and with this width, without transitions between colors."""
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    await browser.tell("Emulation.setEmulatedMedia", features=features)
    await browser.resize(width, SIZES[width], is_phone=width < PHONE_OR_LESS)
    await browser.value(RESIZED)


async def violations(browser: Tab, scheme: str) -> Any:
    """Return serious violations of all rules, or of the rules that the dark theme can violate."""
    options = COLOR_RULES if scheme == "dark" else {}
    return await browser.value(SERIOUS.replace("OPTIONS", json.dumps(options)))


def test_dark_theme_changes_only_colors() -> None:
    texts = {path.name: path.read_bytes() for path in UI.rglob("*.*") if path.is_file()}
    assert [name for name, text in texts.items() if b"prefers-color-scheme" in text] == [
        "style.css"
    ]
    style = texts["style.css"].decode()
    assert style.count("prefers-color-scheme") == 1
    (dark,) = DARK.findall(style)
    changed = dict(line.strip().split(": ") for line in dark.split(";") if line.strip())
    assert changed.pop("--shadow") == "none"
    assert [item for item in changed.items() if not COLOR.fullmatch(": ".join(item))] == []


@pytest.mark.parametrize("group", GROUPS)
async def test_pages_fit_a_phone_and_axe_finds_no_serious_violation(
    browser: Tab, tmp_path: Path, group: str
) -> None:
    # A daemon, a browser and each page are started once for both checks.
    async with opened(tmp_path, browser, group) as places:
        for address in places:
            await view(browser, "light", PHONE)
            await show(browser, address)
            assert await browser.value("document.documentElement.scrollWidth") <= PHONE, address
            assert await browser.value(CLIPPED) == [], address
            if not AXE.exists():
                continue
            await browser.value(f"{AXE.read_text()}; null")
            for scheme, width in VIEWS:
                await view(browser, scheme, width)
                if address.endswith("/job/web") and scheme == "dark":
                    await keep(browser, "phone" if width < PHONE_OR_LESS else "dark")
                assert await violations(browser, scheme) == [], (address, scheme, width)
    if not AXE.exists():
        pytest.skip("axe-core is missing: run python packaging/vendor/fetch.py")


# Pages that appear only as the response to a form. Each row has the page of the form, the form's
# action and fields, and the heading of the response.
RESULTS = (
    ("access", "/ui/tokens", {"name": "night", "policy.lookers": "1"}, "night"),
    ("access", "/ui/tokens", {"ttl": "soon"}, "Access"),
    ("freezes", "/ui/freezes", {"reason": "night", "until": "soon"}, "Freezes"),
    ("variables", "/ui/variables", {"path": "a b"}, "Variables"),
    ("access", "/ui/explain", {"method": "GET", "path": "/v1/jobs"}, "GET /v1/jobs"),
    ("settings", "/ui/notify", {}, "Notification test"),
    ("method/azure", "/ui/method/azure/explain", {"role": "web", "jwt": "a.b.c"}, "azure"),
    ("methods", "/ui/methods", {"path": "//"}, "New login method"),
    ("method/azure/roles", "/ui/method/azure/roles", {"name": "x", "token_ttl": "?"}, "New role"),
    ("auth-methods", "/ui/auth-methods", {"Name": "a b"}, "New auth method"),
    ("auth-method/ci/rules", "/ui/auth-method/ci/rules", {"Selector": "?"}, "New binding rule"),
    ("run", "/ui/plan", {"source": "job {"}, "Run a job"),
)
SEND = """
((form, fields) => {
  for (const [name, value] of Object.entries(fields)) {
    const hidden = Object.assign(document.createElement("input"), {type: "hidden", name, value});
    form.querySelectorAll(`[name="${name}"]`).forEach((one) => one.removeAttribute("name"));
    form.append(hidden);
  }
  form.submit();
})(document.querySelector(FORM), FIELDS)
"""


async def test_axe_finds_no_serious_violation_in_form_responses(
    browser: Tab, tmp_path: Path
) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is missing: run python packaging/vendor/fetch.py")
    async with opened(tmp_path, browser, "forms") as (first, *_):
        for page, action, fields, heading in RESULTS:
            await browser.open(f"{first.rpartition('/')[0]}/{page}")
            form = json.dumps(f'form[action="{action}"], form:has([formaction="{action}"])')
            send = SEND.replace("FORM", form).replace("FIELDS", json.dumps(fields))
            await browser.value("window.isOld = true")
            await browser.value(send)
            wanted = json.dumps(heading)
            await browser.until(
                f"!window.isOld && document.querySelector('h1').textContent.includes({wanted})"
            )
            await browser.value(f"{AXE.read_text()}; null")
            for scheme, width in VIEWS:
                await view(browser, scheme, width)
                assert await violations(browser, scheme) == [], (action, scheme, width)


async def show(browser: Tab, address: str) -> None:
    """Open a page, and the connection of its terminal."""
    await browser.open(address)
    if address.endswith("/terminal"):
        await browser.click("#terminal-form button.main")
        await browser.until_text("#terminal-state", "connected")


async def test_every_control_is_reachable_by_keyboard(browser: Tab, filled: Steward) -> None:
    *_, alloc = (page for page in await addresses(filled, "allocation") if "/terminal" in page)
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


async def test_part_with_the_focus_shows_its_changes_when_the_focus_leaves(
    browser: Tab, filled: Steward
) -> None:
    await browser.open(f"{filled.address}/ui/job/web")
    await browser.until_text("#live", "live")
    await browser.value("document.querySelector('#allocations a').focus()")
    await browser.value("document.getElementById('allocations').dataset.seen = '1'; null")
    await filled.delete("/v1/job/web")
    await browser.until_text("#live", "live, changes wait")
    kept = "document.getElementById('allocations').dataset.seen"
    assert await browser.value(kept) == "1"
    assert await browser.value("document.activeElement.closest('#allocations') !== null")
    await browser.value("document.querySelector('.skip').focus()")
    await browser.until(f"{kept} === undefined")
    await browser.until("document.getElementById('live').textContent === 'live'")
    assert browser.faults == []


async def test_times_of_the_part_with_the_focus_do_not_count_as_changes(
    browser: Tab, filled: Steward
) -> None:
    await browser.open(f"{filled.address}/ui/job/web")
    await browser.until_text("#live", "live")
    await browser.value("document.querySelector('#allocations a').focus()")
    times = "document.querySelectorAll('#allocations time')"
    assert await browser.value(f"{times}.length") > 0
    await browser.value(f"for (const time of {times}) time.textContent = '9 d ago'")
    await browser.value("tag = NO_TAG; refresh()")
    assert await browser.value("[document.getElementById('live').textContent, held.length]") == [
        "live",
        0,
    ]
    assert browser.faults == []


async def test_escape_in_an_open_form_returns_the_focus_to_its_button(
    browser: Tab, filled: Steward
) -> None:
    await browser.open(f"{filled.address}/ui/job/web")
    await browser.value("document.querySelector('details.act summary').focus()")
    await browser.key("Enter")
    await browser.until("document.querySelector('details.act').open")
    await browser.key("Tab")
    inside = "document.activeElement.matches('details.act :not(summary)')"
    assert await browser.value(inside)
    await browser.key("Escape")
    await browser.until("!document.querySelector('details.act').open")
    assert await browser.value(
        "document.activeElement === document.querySelector('details.act summary')"
    )

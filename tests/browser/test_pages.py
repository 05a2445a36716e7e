"""Every page on real data: no script fails, and no request gets a 404.

With PICTURES=docs/images the tests create the pictures of the documentation.
"""

from tests.browser.chromium import PICTURES, Tab, keep
from tests.browser.sample_jobs import SERVICE
from tests.service.daemon import Steward


async def see(browser: Tab, steward: Steward, path: str, picture: str = "") -> None:
    """Open a page, and store its screenshot if screenshots are requested."""
    await browser.open(f"{steward.address}/ui/{path}")
    await browser.until("document.querySelector('h1') !== null")
    assert await browser.value("document.querySelector('[role=alert]') === null")
    if picture and PICTURES:
        await browser.until(
            "document.body.dataset.follow === '' || "
            "!['', 'not connected'].includes(document.getElementById('live').textContent)"
        )
        await keep(browser, picture)


async def test_every_page_is_complete(browser: Tab, filled: Steward) -> None:
    (node,) = await filled.get("/v1/nodes")
    placed = await filled.allocations("web", "running", "complete")
    alloc = next(alloc for alloc in placed if alloc["ClientStatus"] == "running")

    await see(browser, filled, "", "overview")
    await see(browser, filled, "jobs", "jobs")
    await see(browser, filled, "job/web", "job")
    await see(browser, filled, "job/web/definition", "definition")
    await see(browser, filled, "job/web/versions", "versions")
    await see(browser, filled, "job/web/compare?old=0&new=1", "compare")
    await see(browser, filled, "job/web/deployments", "deployments")
    await see(browser, filled, "job/web/evaluations", "job-evaluations")
    await see(browser, filled, "job/web/logs")
    await browser.until_text("#log", "server")
    await browser.until_text("#log", "GET /index.html 200")
    await see(browser, filled, "job/train-model", "waiting")
    await see(browser, filled, "job/backup/launches", "slots")
    await see(browser, filled, "job/convert/launches", "dispatch")
    await browser.value("document.getElementById('calendar').scrollIntoView()")
    await keep(browser, "runs")
    await see(browser, filled, "job/etl/run", "workflow")
    await see(browser, filled, "runs")
    await browser.key("/")
    await browser.write("#palette input", "we")
    await browser.until_text("#palette .results", "web.web[0]")
    await keep(browser, "find")
    await see(browser, filled, f"allocation/{alloc['ID']}", "allocation")
    await see(browser, filled, f"allocation/{alloc['ID']}/files", "files")
    await see(browser, filled, f"allocation/{alloc['ID']}/logs")
    await browser.until_text("#log", "GET /index.html 200")
    await see(browser, filled, f"node/{node['ID']}", "node")
    await see(browser, filled, f"evaluation/{alloc['EvalID']}", "evaluation")
    await see(browser, filled, "settings", "settings")
    for path in ("services", "nodes", "evaluations", "variables", "run", "sign-in"):
        await see(browser, filled, path, path)
    for path in ("access", "run?job=web", "log"):
        await see(browser, filled, path)
    await browser.until_text("#events", "JobRegistered")
    await keep(browser, "events")

    await browser.open(f"{filled.address}/ui/run?job=web")
    changed = SERVICE.replace("blue", "green").replace("count = 3", "count = 5")
    await browser.write("textarea[name=source]", changed)
    await browser.press("form[action='/ui/plan'] button")
    await browser.until_text("#plan", "All allocations would be placed")
    await browser.value("document.getElementById('plan').scrollIntoView()")
    await keep(browser, "plan")
    await browser.open(f"{filled.address}/ui/run?job=web")
    changed = (await browser.value("editor.field.value")).replace("count = 3", "count = 4")
    await browser.write("textarea[name=source]", changed)
    await browser.until_text("#plan-beside", "The job changes")
    await keep(browser, "editor")
    await browser.value("editor.isSending = true")  # so that leaving the page shows no dialog
    assert browser.faults == []


async def test_comparison_shows_both_versions_on_a_phone(browser: Tab, filled: Steward) -> None:
    """A phone is too narrow for two columns, so the lines of the two files appear in one column."""
    await browser.resize(390, 844, is_phone=True)
    await browser.open(f"{filled.address}/ui/job/web/compare?old=0&new=1")
    seen = """[...document.querySelectorAll(".beside code")].filter((line) => {
      const place = line.getBoundingClientRect();
      return place.width > 0 && place.right <= 390;
    }).map((line) => line.textContent.trim())"""
    lines = await browser.value(seen)
    assert [line[-11:] for line in lines if "memory" in line] == ["memory = 32", "memory = 48"]
    assert len([line for line in lines if 'provider = "nomad"' in line]) == 1

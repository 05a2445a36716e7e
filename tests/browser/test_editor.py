"""Users edit job files in a real browser: problems, keys, drafts, and the plan next to the text."""

import json

from tests.browser.chromium import Tab
from tests.browser.test_user_journeys import SOURCE
from tests.service.daemon import Steward

FIELD = "textarea[name=source]"


async def put_cursor(browser: Tab, text: str, after: str) -> None:
    """Replace the text, and put the cursor behind a part of it."""
    await browser.write(FIELD, text)
    place = text.index(after) + len(after)
    await browser.value(f"editor.field.focus(); editor.field.setSelectionRange({place}, {place})")


async def test_file_is_checked_planned_and_run(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/run")
    await browser.until_text("#problems", "valid")
    broken = SOURCE.replace("count = 2", "cuont = 2")
    await browser.write(FIELD, broken)
    await browser.until_text("#problems", 'Did you mean "count"?')
    line = broken[: broken.index("cuont")].count("\n") + 1
    marked = "[...document.querySelectorAll('.paint .line')].findIndex(one => one.matches('.has-problem'))"
    assert await browser.value(marked) == line - 1
    await browser.click("#problems [data-line]")
    selected = "editor.field.value.slice(editor.field.selectionStart, editor.field.selectionEnd)"
    assert (await browser.value(selected)).strip() == "cuont = 2"

    await browser.write(FIELD, SOURCE)
    await browser.until_text("#plan-beside", "All allocations would be placed")
    assert await browser.value("document.querySelector('.paint').textContent.length") > 100
    await browser.write(FIELD, f"{SOURCE}\n# more")
    assert await browser.value("document.querySelector('#plan button.main').disabled")
    await browser.until("!document.querySelector('#plan-beside').matches('.is-stale')")
    await browser.press("form[action='/ui/run'] button.main")
    assert await browser.value("location.pathname") == "/ui/job/clock"
    assert await browser.value("localStorage.length") == 0
    assert browser.faults == []


async def test_keys_are_completed_by_their_block(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/run")
    await browser.until("editor.keys !== undefined")
    text = 'job "x" {\n  group "g" {\n    # task {\n    res\n  }\n}\n'
    await put_cursor(browser, text, "res")
    await browser.value("editor.offer()")
    offered = "[...document.querySelectorAll('#offers li')].map((one) => one.textContent)"
    assert await browser.value(offered) == ["reschedule { }", "restart { }"]
    await browser.key("ArrowDown")
    await browser.key("Enter")
    assert "    restart {\n      \n    }\n" in await browser.value("editor.field.value")
    await browser.tell("Input.insertText", text="att")
    await browser.until("!document.getElementById('offers').hidden")
    await browser.key("Tab")
    assert "      attempts = \n" in await browser.value("editor.field.value")

    await put_cursor(browser, 'job "x" {\n  meta {\n    steward_n\n  }\n}\n', "steward_n")
    await browser.value("editor.offer()")
    assert "steward_notify" in await browser.value(offered)
    for text, after in (
        ('job "x" {\n  type = "ser\n}\n', "ser"),
        ('job "x" {\n  # gro\n}\n', "gro"),
        ('job "x" {\n  group "g" {\n    task "t" {\n      config {\n        com\n', "com"),
        ('job "x" {\n  x = <<EOF\ngro\nEOF\n}\n', "gro"),
    ):
        await put_cursor(browser, text, after)
        await browser.value("editor.offer(true)")
        assert await browser.value("document.getElementById('offers').hidden"), text
    assert browser.faults == []


async def test_draft_survives_navigation_until_discarded(browser: Tab, filled: Steward) -> None:
    await browser.open(f"{filled.address}/ui/run?job=web")
    changed = (await browser.value("editor.field.value")).replace("count = 3", "count = 4")
    await browser.write(FIELD, changed)
    await browser.until("localStorage.length === 1")
    asks = "!dispatchEvent(new Event('beforeunload', {cancelable: true}))"
    assert await browser.value(asks)
    await browser.value("editor.isSending = true")  # otherwise leaving the page shows a dialog

    await browser.open(f"{filled.address}/ui/run")
    assert await browser.value("document.getElementById('draft').hidden")
    assert not await browser.value(asks)
    await browser.open(f"{filled.address}/ui/run?job=web")
    await browser.until("!document.getElementById('draft').hidden")
    await browser.click("#draft .use")
    assert json.dumps(await browser.value("editor.field.value")) == json.dumps(changed)
    await browser.until_text("#plan-beside", "The job changes")
    await browser.value("editor.isSending = true")
    await browser.open(f"{filled.address}/ui/run?job=web")
    await browser.click("#draft .drop")
    assert await browser.value("localStorage.length") == 0
    assert browser.faults == []

"""The log of a task in a real browser: stream, search, colors, and restarts."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.browser.chromium import Tab, keep
from tests.browser.sample_jobs import small
from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN

# Prints 4,000 lines with one special line, hostile lines, colors, and then the contents of a file.
SCRIPT = """
trap 'exit 0' TERM
i=0
while [ $i -lt 4000 ]; do echo "line $i of the past"; i=$((i+1)); [ $i = 37 ] && echo needle; done
printf '\\033[31mred words\\033[0m and plain\\n'
printf '<img src=x onerror=window.hacked=1><script>window.hacked=1</script>\\n'
printf '\\033]8;;javascript:window.hacked=1\\007a link\\033]8;;\\007\\n'
echo trouble >&2
printf 'half a line'
touch $NOMAD_ALLOC_DIR/ready
while [ ! -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.05; done
printf ' and its end\\n'
while :; do [ -e $NOMAD_ALLOC_DIR/more ] && { echo after the restart; rm $NOMAD_ALLOC_DIR/more; }; sleep 0.05; done
"""


@pytest.fixture
async def printing(tmp_path: Path) -> Any:
    """Run a daemon with a job that has printed many lines."""
    async with open_steward(tmp_path, "--dev") as running:
        one = small("talk", "/bin/sh", "-c", SCRIPT, Type="service")
        await running.register(one)
        (alloc,) = await running.allocations("talk", "running")
        with trio.fail_after(HAPPENS_WITHIN):
            # Only a page that begins after the first lines has a link to earlier lines.
            while not (await running.log_of(alloc["ID"], "main")).endswith("half a line"):
                pass
        yield running, alloc["ID"]


def shared(steward: Steward, alloc_id: str, name: str) -> Path:
    return next(steward.data_dir.glob(f"**/{alloc_id}/alloc")) / name


async def at_end(browser: Tab) -> bool:
    place = "document.getElementById('log')"
    shown = f"{place}.scrollTop + {place}.clientHeight >= {place}.scrollHeight - 8"
    return bool(await browser.value(shown))


async def test_log_page_shows_colors_and_escapes_output(
    browser: Tab, printing: tuple[Steward, str]
) -> None:
    steward, alloc_id = printing
    page = f"{steward.address}/ui/allocation/{alloc_id}/logs"
    await browser.open(page)
    await browser.until_text("#log", "half a line")
    await browser.until_text("#log .is-unfinished", "unfinished")
    await browser.until_text("#log-state", "following")
    assert await at_end(browser)

    # Colors become CSS classes, and markup in the output has no effect.
    assert await browser.value("document.querySelector('#log .fg-red').textContent") == "red words"
    assert await browser.value("window.hacked === undefined")
    assert await browser.value("document.querySelector('#log img, #log script') === null")
    assert await browser.value("document.getElementById('log').textContent.includes('a link')")
    assert await browser.value("document.querySelector('#log .is-stderr').textContent") != ""
    await keep(browser, "logs")

    # The user has scrolled to earlier lines. New lines do not move them.
    before = await browser.value("document.querySelectorAll('#log .line').length")
    await browser.value("document.getElementById('log').scrollTop = 300")
    await browser.until("!document.getElementById('log-follow').checked")
    top = await browser.value("document.getElementById('log').scrollTop")
    shared(steward, alloc_id, "go").touch()
    await browser.until_text("#log", "half a line and its end")
    await browser.until("!document.getElementById('log-jump').hidden")
    assert await browser.value("document.querySelector('#log .is-unfinished') === null")
    assert await browser.value("document.getElementById('log').scrollTop") == top
    assert await browser.value("document.querySelectorAll('#log .line').length") == before

    first = await browser.value("document.querySelector('#log .line').id")
    await browser.click("#log-earlier")
    await browser.until(f"document.querySelector('#log .line').id !== '{first}'")
    shift = (
        f"document.getElementById('{first}').offsetTop - document.getElementById('log').offsetTop"
    )
    assert await browser.value(f"{shift} > 300")
    assert await browser.value("document.getElementById('log').scrollTop > 300")
    await browser.click("#log-jump")
    assert await at_end(browser)

    # The daemon restarts: the log continues after the last line without duplicates.
    await steward.kill_and_restart()
    shared(steward, alloc_id, "more").touch()
    await browser.until_text("#log", "after the restart")
    ids = "[...document.querySelectorAll('#log .line')].map((one) => one.id)"
    assert await browser.value(f"new Set({ids}).size === {ids}.length")
    ours = [
        fault
        for fault in browser.faults
        if "ERR_CONNECTION" not in fault and "ERR_INCOMPLETE" not in fault
    ]
    assert ours == []


async def test_line_before_the_scroll_event_does_not_move_the_reader(
    browser: Tab, printing: tuple[Steward, str]
) -> None:
    steward, alloc_id = printing
    await browser.open(f"{steward.address}/ui/allocation/{alloc_id}/logs")
    await browser.until_text("#log-state", "following")
    await browser.value("addEventListener('scroll', (event) => event.stopPropagation(), true)")
    await browser.value("document.getElementById('log').scrollTop = 300")
    shared(steward, alloc_id, "go").touch()
    await browser.until_text("#log", "half a line and its end")
    assert await browser.value("document.getElementById('log').scrollTop") == 300


async def test_a_log_is_searched_on_the_daemon(browser: Tab, printing: tuple[Steward, str]) -> None:
    steward, alloc_id = printing
    await browser.open(f"{steward.address}/ui/allocation/{alloc_id}/logs")
    await browser.until_text("#log", "half a line")
    await browser.write("#log-tools input[name=q]", "NEEDLE")
    await browser.press("#log-tools button")
    lines = "[...document.querySelectorAll('#log .line > span')].map((one) => one.textContent)"
    assert await browser.value(lines) == [
        "line 35 of the past",
        "line 36 of the past",
        "needle",
        "line 37 of the past",
        "line 38 of the past",
    ]
    await keep(browser, "log-search")
    await browser.press("#log .is-match > a")
    assert await browser.value(
        "document.querySelector('#log .line:target > span').textContent"
    ) == ("needle")
    assert await browser.value("document.querySelectorAll('#log .line').length > 50")
    await browser.press("#log-tools a.button")
    await browser.until_text("#log", "half a line")
    assert browser.faults == []


async def test_log_of_a_job_merges_allocations_with_prefixes_and_survives_a_restart(
    browser: Tab, tmp_path: Path
) -> None:
    async with open_steward(tmp_path, "--dev") as steward:
        # Each allocation prints fewer lines than the page shows, so that lines of both allocations
        # are visible.
        script = SCRIPT.replace("4000", "150")
        one = small("talk", "/bin/sh", "-c", script, Type="service")
        one["TaskGroups"][0]["Count"] = 2
        await steward.register(one)
        first, second = await steward.allocations("talk", "running", "running")
        unfinished = 0
        with trio.fail_after(HAPPENS_WITHIN):
            while unfinished < 2:  # no event reports a written line
                shown = await steward.get("/v1/job/talk/logs/lines")
                unfinished = sum(bool(line.get("Unfinished")) for line in shown["Lines"])
                await trio.sleep(0.02)
        page = f"{steward.address}/ui/job/talk/logs"
        await browser.open(page)
        await browser.until_text("#log-state", "following")
        await browser.until("document.querySelectorAll('#log .is-unfinished').length === 2")
        names = "[...document.querySelectorAll('#log .from')].map((one) => one.textContent)"
        prefixes = {f"{alloc['ID'][:8]} main" for alloc in (first, second)}
        assert set(await browser.value(names)) == prefixes
        assert await browser.value("document.querySelector('#log .fg-red') !== null")
        assert await browser.value("window.hacked === undefined")
        assert await at_end(browser)
        await keep(browser, "job-logs")

        await browser.value("document.getElementById('log').scrollTop = 300")
        await browser.until("!document.getElementById('log-follow').checked")
        top = await browser.value("document.getElementById('log').scrollTop")
        before = await browser.value("document.querySelectorAll('#log .line').length")
        shared(steward, first["ID"], "go").touch()
        await browser.until_text("#log", "half a line and its end")
        assert await browser.value("document.getElementById('log').scrollTop") == top
        earliest = await browser.value("document.querySelector('#log .line').id")
        await browser.click("#log-earlier")
        await browser.until(f"document.querySelector('#log .line').id !== '{earliest}'")
        assert await browser.value("document.querySelectorAll('#log .line').length") > before

        await steward.kill_and_restart()
        shared(steward, first["ID"], "more").touch()
        await browser.until_text("#log", "after the restart")
        ids = "[...document.querySelectorAll('#log .line')].map((one) => one.id)"
        assert await browser.value(f"new Set({ids}).size === {ids}.length")

        await browser.open(page)
        await browser.write("#log-tools input[name=q]", "NEEDLE")
        await browser.press("#log-tools button")
        hits = "document.querySelectorAll('#log .is-match').length"
        assert await browser.value(hits) == 2


async def test_logs_are_read_and_searched_without_scripts(printing: tuple[Steward, str]) -> None:
    steward, alloc_id = printing
    with trio.fail_after(HAPPENS_WITHIN):
        while "half a line" not in await steward.log_of(alloc_id, "main"):
            await steward.get("/v1/agent/self")
    for place in (f"allocation/{alloc_id}", "job/talk"):
        for query, text in (({}, "red words"), ({"q": "needle"}, "line 37 of the past")):
            page = await steward.request("GET", f"/ui/{place}/logs", **query)
            assert text in page.text
            assert "<script>window.hacked" not in page.text
        newest = (await steward.request("GET", f"/ui/{place}/logs")).text
        (earlier,) = re.findall(r'id="log-earlier" href="([^"]*)"', newest)
        page = await steward.request("GET", unescape(earlier))
        assert "line 3700 of the past" in page.text
        assert "Newest lines" in page.text

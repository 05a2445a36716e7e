"""The charts of pages in a real browser."""

import math
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.queries import usage_history
from storage.queries.usage_history import COARSE, FINE, LENGTH
from storage.records.base import SECOND
from storage.records.usage_history import SeriesKey, UsageBlock, UsageMetric
from storage.store import open_store
from storage.writer import Transaction
from tests.browser.chromium import Tab, keep
from tests.browser.sample_jobs import SERVICE, submit
from tests.service.daemon import Steward, open_steward, store_dir

WEB = SeriesKey("job", "web", "default")


def samples(begin: int, step: int) -> UsageBlock:
    """Return the samples of a day with high load around noon and occasional restarts."""
    times = range(begin, begin + LENGTH[step], step)
    waves = [0.5 + 0.4 * math.sin(at / 86400 * 2 * math.pi) for at in times]
    ripple = [math.sin(at / 700) * math.sin(at / 1900) for at in times]
    both = list(zip(waves, ripple, strict=True))
    return {
        UsageMetric.CPU: [round(40 * wave + 9 * abs(small)) for wave, small in both],
        UsageMetric.MEMORY: [round(52_000 + 20_000 * wave + 2500 * small) for wave, small in both],
        UsageMetric.RESTARTS: [int(at % 31_200 < step) for at in times],
        UsageMetric.ALLOCATIONS: [3 for _ in times],
    }


def record(tx: Transaction, now: int) -> None:
    """Store three days of samples of a job."""
    for step, length in ((COARSE, 3 * 86400), (FINE, 7200)):
        end = now // LENGTH[step] * LENGTH[step]
        for begin in range(end - length // LENGTH[step] * LENGTH[step], end, LENGTH[step]):
            usage_history.put(tx, step, begin, {WEB: samples(begin, step)})


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[Steward]:
    """Run a daemon with a job that has run for days."""
    async with open_steward(tmp_path, "--dev") as running:
        await submit(running, SERVICE)
        await running.stop()
        now = time.time_ns()
        async with open_store(store_dir(running.data_dir), cluster_id="", now=now) as store:
            await store.write(lambda tx: record(tx, now // SECOND), is_long=True)
        await running.start()
        yield running


async def test_charts_show_days_and_current_values(browser: Tab, recorded: Steward) -> None:
    await browser.open(f"{recorded.address}/ui/job/web?range=24h")
    await browser.until("document.querySelectorAll('#usage svg[role=img]').length >= 3")
    assert await browser.value("document.querySelector('#usage .line').getTotalLength()") > 100
    titles = "[...document.querySelectorAll('#usage svg rect title')].map((one) => one.textContent)"
    assert await browser.value(f"{titles}.some((one) => /UTC: [0-9.]+ %$/.test(one))")
    assert await browser.value("document.querySelectorAll('#usage .restart').length") > 0
    await browser.value("document.getElementById('usage').scrollIntoView()")
    await keep(browser, "usage")

    await browser.press("#usage .ranges a")
    await browser.until(
        "document.querySelector('#usage .ranges a[aria-current]').text.includes('5m')"
    )
    await browser.until("document.querySelector('#usage .line') !== null")
    assert browser.faults == []


# Bars whose labels are wider than their parts, so that they overlap.
OVERLAPPING = """
[...document.querySelectorAll(".bar.has-words .part")].filter((part) =>
  part.scrollWidth > part.clientWidth + 1).map((part) => part.title)
"""


BROKEN = """
  group "NAME" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/false"
      }
    }
  }
}
"""


async def test_labels_of_a_bar_do_not_overlap(browser: Tab, tmp_path: Path) -> None:
    async with open_steward(tmp_path, "--dev") as steward:
        await submit(steward, SERVICE.rstrip().removesuffix("}") + BROKEN.replace("NAME", "broken"))
        await steward.until("/v1/job/web/state", lambda shown: shown["State"] == "degraded")
        await browser.open(f"{steward.address}/ui/")
        bars = "document.querySelectorAll('.columns .bar.has-words .part').length"
        assert await browser.value(bars) == 2
        assert await browser.value(OVERLAPPING) == []


async def test_long_name_of_a_failed_group_fits_a_phone(browser: Tab, tmp_path: Path) -> None:
    name = "x" * 120
    async with open_steward(tmp_path, "--dev") as steward:
        await submit(steward, 'job "web" {' + BROKEN.replace("NAME", name))
        await steward.until("/v1/job/web/state", lambda shown: shown["State"] == "failed")
        await browser.resize(390, 844, is_phone=True)
        await browser.open(f"{steward.address}/ui/job/web")
        await browser.until_text("#error", name)
        assert await browser.value("document.documentElement.scrollWidth") == 390

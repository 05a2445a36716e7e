"""Time until a browser shows the list of many jobs, and the transfer size of this page.

    python -m bench.first_paint [--jobs 5000]

The first paint is the browser's own measurement, from the start of the navigation. The first page
load has an empty cache and is reported separately.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import httpx
import trio

from tests.browser.chromium import open_browser
from tests.service.daemon import open_steward

VISITS = 12
WRITERS = 16  # concurrent requests
SEEN = """
new Promise((resolve) => new PerformanceObserver((list) => {
  const [paint] = list.getEntriesByName("first-contentful-paint");
  const kinds = ["navigation", "resource"];
  const seen = kinds.flatMap((kind) => performance.getEntriesByType(kind));
  if (paint) resolve([paint.startTime, seen.reduce((sum, one) => sum + one.transferSize, 0)]);
}).observe({type: "paint", buffered: true}))
"""


async def fill(address: str, jobs: int) -> None:
    """Register this many jobs without allocations."""
    task = {"Name": "t", "Driver": "raw_exec", "Config": {"command": "true"}}
    groups = [{"Name": "g", "Count": 0, "Tasks": [task]}]
    numbers = iter(range(jobs))

    async def write(client: httpx.AsyncClient) -> None:
        for number in numbers:
            job = {"ID": f"job-{number}", "TaskGroups": groups}
            (await client.post(f"{address}/v1/jobs", json={"Job": job})).raise_for_status()

    async with httpx.AsyncClient(timeout=60) as client, trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(write, client)


async def main(jobs: int) -> None:
    """Measure the time to the first paint and the size, and print them."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        async with open_steward(place, "--dev") as steward, open_browser(place) as tab:
            await fill(steward.address, jobs)
            paints, sizes = [], []
            for _ in range(VISITS):
                await tab.open(f"{steward.address}/ui/jobs")
                paint, size = await tab.value(SEEN)
                paints.append(paint)
                sizes.append(size)
    results = {
        "jobs": jobs,
        "first load, ms": round(paints[0]),
        "later loads, median, ms": round(statistics.median(paints[1:])),
        "later loads, maximum, ms": round(max(paints[1:])),
        "first load, kB": round(sizes[0] / 1000, 1),
        "later loads, kB": round(statistics.median(sizes[1:]) / 1000, 1),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=5000)
    trio.run(main, parser.parse_args().jobs)

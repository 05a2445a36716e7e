"""The pages of the web interface on a large store: first paint, size, and cost of open pages.

    python -m bench.pages [--jobs 5000] [--children 100000] [--open 200]

The store has the given number of jobs, and of finished children with an allocation each. The
browser measures the first paint, from the start of the navigation. The size is that of the page and
its styles and scripts, compressed by gzip.

The cost of open pages is the CPU time of the daemon, first without changes, and then with one
dispatched child per second. It is measured for one page in a browser, for many event streams as
pages open them, and for as many event streams whose clients also reload the list of jobs after
changes.
"""

import argparse
import gzip
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import trio

from bench.first_paint import SEEN
from bench.first_paint import fill as register
from bench.full_store import PARENT, fill
from bench.idle import spent
from bench.reads import rest
from daemon.config.data_directory import store_dir
from storage.store import FILE_NAME
from tests.browser.chromium import Tab, open_browser
from tests.service.daemon import Steward, open_steward

VISITS = 9
SECONDS = 20.0  # duration of each measurement with open pages
PAUSE = 8.0  # seconds between two reloads while changes continue
TAG = re.compile(r'data-tag="([^"]*)"')
FILES = re.compile(r'(?:src|href|data-live-script)="(/ui/static/[^"]+)"')
PAGES = (
    *("", "jobs", "job/old", "job/old/definition", "job/old/versions", "job/old/launches"),
    *(
        "job/old/evaluations",
        "job/old/deployments",
        "job/old/logs",
        "job/job-1",
        "runs",
        "services",
    ),
    *("allocation/{alloc}", "allocation/{alloc}/logs", "allocation/{alloc}/files"),
    *("nodes", "node/{node}", "evaluations", "evaluation/{evaluation}", "variables", "access"),
    *("log", "settings", "run", "find?q=job", "keys", "methods", "sign-in"),
)
EDITOR = ("editor", "codemirror", "xterm", "terminal")


async def prepare(place: Path) -> None:
    """Create a store, and run one child in it to completion."""
    async with open_steward(place, "--dev") as steward:
        await steward.post("/v1/jobs", {"Job": PARENT})
        await steward.post("/v1/job/old/dispatch", {})
        while True:
            if (await steward.get("/v1/job/old/summary"))["Children"]["Dead"]:
                return
            await trio.sleep(0.2)


async def weigh(steward: Steward, path: str) -> float:
    """Return the compressed size in kB of a page with its files, without editor and terminal."""
    async with httpx.AsyncClient(base_url=steward.address, timeout=60) as client:
        page = await client.get(f"/ui/{path}")
        names = {
            file_name
            for file_name in FILES.findall(page.text)
            if not any(w in file_name for w in EDITOR)
        }
        bodies = [page.content, *[(await client.get(name)).content for name in sorted(names)]]
    return sum(len(gzip.compress(body)) for body in bodies) / 1000


async def paint(tab: Tab, address: str, pid: int) -> tuple[float, float]:
    """Return the median time to the first paint, and the daemon's CPU time, in milliseconds.

    The first load, with an empty cache, is not counted. The CPU time includes the files of the page
    and its event stream.
    """
    times, before = list[float](), 0.0
    for number in range(VISITS):
        if number == 1:
            before = spent(pid)
        await tab.open(address)
        times.append((await tab.value(SEEN))[0])
    return statistics.median(times[1:]), 1000 * (spent(pid) - before) / (VISITS - 1)


async def reload(client: httpx.AsyncClient, changed: trio.Event) -> None:
    """Reload the list of jobs after changes, with the longest pause between two reloads."""
    tag = "none"
    while True:
        await changed.wait()
        page = await client.get("/ui/jobs", headers={"If-None-Match": f'"{tag}"'})
        if match := TAG.search(page.text):
            tag = match[1]
        await trio.sleep(PAUSE)


@asynccontextmanager
async def opened(steward: Steward, number: int, *, reloads: bool) -> AsyncIterator[None]:
    """Keep this many pages open while the block runs; each of them follows the events."""

    async def follow(client: httpx.AsyncClient, begun: trio.Event, changed: trio.Event) -> None:
        async with client.stream("GET", "/ui/events") as stream:
            async for chunk in stream.aiter_bytes():
                begun.set()
                if b'"Index"' in chunk:
                    changed.set()

    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=steward.address, timeout=None, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(number):
            begun, changed = trio.Event(), trio.Event()
            nursery.start_soon(follow, client, begun, changed)
            if reloads:
                nursery.start_soon(reload, client, changed)
            await begun.wait()
        yield
        nursery.cancel_scope.cancel()


async def share(steward: Steward, *, dispatches: bool) -> float:
    """Return the CPU use of the daemon in percent of a core, with or without regular dispatches."""
    before, began = spent(steward.pid), time.monotonic()
    while (left := began + SECONDS - time.monotonic()) > 0:
        if dispatches:
            await steward.post("/v1/job/small/dispatch", {})
        await trio.sleep(min(left, 1.0))
    return 100 * (spent(steward.pid) - before) / (time.monotonic() - began)


async def main(jobs: int, children: int, number: int) -> None:
    """Run all measurements on a store with this many jobs and children, and print the results."""
    with tempfile.TemporaryDirectory(prefix="steward-pages-", dir=Path.cwd()) as name:
        place = Path(name)
        await prepare(place)
        fill(store_dir(place / "data") / FILE_NAME, children, 10 * children)
        async with open_steward(place, "--dev") as steward:
            await register(steward.address, jobs)
            await steward.post("/v1/jobs", {"Job": {**PARENT, "ID": "small"}})
            rest(steward.pid)
            await paint_pages(steward, place)
            for dispatches in (False, True):
                base = await share(steward, dispatches=dispatches)
                kind = "one dispatch per second" if dispatches else "no changes"
                async with open_browser(place) as tab:
                    await tab.open(f"{steward.address}/ui/jobs")
                    cost = await share(steward, dispatches=dispatches) - base
                print(f"the list of jobs in a browser, {kind}: {cost:.2f} % of a core", flush=True)
                for reloads in (False, True):
                    async with opened(steward, number, reloads=reloads):
                        cost = await share(steward, dispatches=dispatches) - base
                    words = "pages that reload" if reloads else "event streams"
                    print(f"{number} {words}, {kind}: {cost:.2f} % of a core", flush=True)


async def paint_pages(steward: Steward, place: Path) -> None:
    """Print the first paint and the size of each page."""
    (node,) = await steward.get("/v1/nodes")
    (alloc,) = await steward.get("/v1/allocations?per_page=1")
    names = {"alloc": alloc["ID"], "evaluation": alloc["EvalID"], "node": node["ID"]}
    async with open_browser(place) as tab:
        for page in PAGES:
            path = page.format_map(names)
            took, cpu = await paint(tab, f"{steward.address}/ui/{path}", steward.pid)
            size = await weigh(steward, path)
            print(
                f"{page or 'overview':<28} {took:6.0f} ms {cpu:6.0f} ms CPU {size:6.1f} kB",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--children", type=int, default=100_000)
    parser.add_argument("--open", type=int, default=200)
    options = parser.parse_args()
    trio.run(main, options.jobs, options.children, options.open)

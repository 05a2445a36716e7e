"""Workflows: `python -m bench.flows [--chain 100] [--array 1000] [--layers 20] [--wide 50]`.

A daemon runs a chain, an array, a layered graph, runs that share a queue, and jobs that follow each
other. All tasks run `/bin/true`. Times between tasks are computed from the times that the daemon
stores. The script also measures one decision about 2,000 steps, the page of the layered run, and
the limits of the host in the same run. With `--waiting N`, it only measures N runs that wait at a
gate. With `--frozen N`, it only measures how fast N runs begin after a freeze that held them.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import trio

from bench.first_paint import SEEN
from bench.idle import spent
from bench.limits import fdatasync_per_s, fork_exec_per_s
from bench.reads import daemon, resident, rest
from daemon.flow.advance import Elements, advance
from daemon.flow.graph import Graph, Step
from storage.records.flow import FlowRun
from tests.browser.chromium import open_browser

ROUNDS = 20  # runs that share a queue, or runs whose end starts another job
VISITS = 9  # page loads
BATCH = 1000  # runs per bulk dispatch
SECONDS = 20.0  # duration of the measurement with waiting runs


def step(name: str, needs: Iterable[str] = (), count: int = 1) -> dict[str, Any]:
    meta = {"steward_needs": ", ".join(needs)} if needs else {"steward_redo": "true"}
    task = {
        "Name": "main",
        "Driver": "raw_exec",
        "Config": {"command": "/bin/true"},
        "Resources": {"CPU": 1, "MemoryMB": 10},
        "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 10},
    }
    return {
        "Name": name,
        "Count": count,
        "Meta": meta,
        "Tasks": [task],
        "EphemeralDisk": {"SizeMB": 20},
    }


class Daemon:
    """A client for the part of the API that this script needs."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._http = httpx.Client(base_url=self.address, timeout=600)

    def register(self, job_id: str, groups: list[dict[str, Any]], **fields: object) -> None:
        job = {"ID": job_id, "Type": "batch", "TaskGroups": groups, **fields}
        self._http.post("/v1/jobs", json={"Job": job}).raise_for_status()

    def get(self, path: str, **query: str) -> Any:  # noqa: ANN401  # JSON
        return self._http.get(path, params=query).raise_for_status().json()

    def send(self, method: str, path: str, **body: object) -> Any:  # noqa: ANN401  # JSON
        return self._http.request(method, path, json=body).raise_for_status().json()

    def took(self, path: str) -> float:
        """Send a request and return its duration in ms."""
        began = time.perf_counter()
        self._http.get(path).raise_for_status()
        return (time.perf_counter() - began) * 1000

    def dispatch(self, job_id: str, number: int) -> None:
        path = f"/v1/job/{job_id}/dispatch/bulk"
        self._http.post(path, content=b"{}\n" * number).raise_for_status()

    def until_dead(self, job_id: str) -> None:
        index = "1"
        while True:
            answer = self._http.get(f"/v1/job/{job_id}", params={"index": index, "wait": "60s"})
            if answer.raise_for_status().json()["Status"] == "dead":
                return
            index = answer.headers["X-Nomad-Index"]

    def times(self, job_id: str) -> dict[str, tuple[float, float]]:
        """Return the start and the end of each group's task, in ms."""
        return {
            one["TaskGroup"]: (_ms(state["StartedAt"]), _ms(state["FinishedAt"]))
            for one in self.get(f"/v1/job/{job_id}/allocations")
            for state in one["TaskStates"].values()
        }


def _ms(text: str) -> float:
    whole, _, fraction = text.rstrip("Z").partition(".")
    return (
        datetime.fromisoformat(whole + "+00:00").timestamp() * 1000
        + float(f"0.{fraction or 0}") * 1000
    )


def shown(what: str, values: list[float]) -> None:
    ordered = sorted(values)
    p95 = ordered[int(len(ordered) * 0.95) - 1]
    print(f"{what}: p50 {statistics.median(ordered):.1f} ms, p95 {p95:.1f} ms", flush=True)


def chain(steward: Daemon, number: int) -> None:
    groups = [step(f"s{index}", [f"s{index - 1}"] if index else ()) for index in range(number)]
    began = time.perf_counter()
    steward.register("chain", groups)
    steward.until_dead("chain")
    took, times = time.perf_counter() - began, steward.times("chain")
    shown(
        "end of a step to the start of the next",
        [times[f"s{index}"][0] - times[f"s{index - 1}"][1] for index in range(1, number)],
    )
    print(f"chain of {number}: {took:.2f} s", flush=True)


def array(steward: Daemon, number: int) -> None:
    began = time.perf_counter()
    steward.register("array", [step("a", count=number)])
    steward.until_dead("array")
    print(f"array of {number}: {time.perf_counter() - began:.2f} s", flush=True)


def layers(steward: Daemon, depth: int, wide: int) -> None:
    groups = [
        step(
            f"l{level}-{index}",
            [f"l{level - 1}-{(index + more) % wide}" for more in range(min(3, wide))]
            if level
            else (),
        )
        for level in range(depth)
        for index in range(wide)
    ]
    began = time.perf_counter()
    steward.register("layers", groups)
    registered = time.perf_counter() - began
    steward.until_dead("layers")
    took = time.perf_counter() - began
    print(
        f"{depth} layers of {wide}: registered in {registered * 1000:.0f} ms, "
        f"completed in {took:.2f} s",
        flush=True,
    )


def page(steward: Daemon, pid: int, directory: Path) -> None:
    """Measure the page of the layered run: response time, CPU time, and time in a browser."""
    answers = {
        what: [steward.took(path) for _ in range(VISITS)]
        for what, path in (("view", "/v1/job/layers/run"), ("page", "/ui/job/layers/run"))
    }
    for what, values in answers.items():
        shown(f"{what} of the layered run, response", values)

    async def paint() -> list[float]:
        async with open_browser(directory) as tab:
            paints = []
            for _ in range(VISITS):
                await tab.open(f"{steward.address}/ui/job/layers/run")
                paints.append((await tab.value(SEEN))[0])
            return paints

    before = spent(pid)
    shown("page of the layered run, first paint", trio.run(paint))
    print(
        f"CPU of the daemon per page load: {(spent(pid) - before) / VISITS * 1000:.0f} ms",
        flush=True,
    )


def waiting(steward: Daemon, pid: int, number: int) -> None:
    gated = step("a")
    gated["Meta"]["steward_gate"] = "Begin?"
    steward.register("hold", [gated], ParameterizedJob={})
    # The first runs fill the caches of SQLite and import modules. Neither is a cost of each run.
    steward.dispatch("hold", 1)
    rest(pid)
    idle = resident(pid)
    steward.dispatch("hold", BATCH)
    rest(pid)
    before, began = resident(pid), time.perf_counter()
    for first in range(0, number, BATCH):
        steward.dispatch("hold", min(BATCH, number - first))
    rest(pid)
    took = time.perf_counter() - began
    (last,) = steward.get("/v1/runs", per_page="1", reverse="true")
    assert last["Status"] == "running"
    used = spent(pid)
    time.sleep(SECONDS)
    share = (spent(pid) - used) / SECONDS * 100
    print(
        f"{number} waiting runs: created in {took:.1f} s, {share:.2f} % of a core, "
        f"memory {idle} MiB with 1 run, {before} MiB with {BATCH}, and {resident(pid)} MiB after",
        flush=True,
    )


def frozen(steward: Daemon, pid: int, number: int) -> None:
    """Measure how fast held runs begin after a freeze."""
    steward.register("hold", [step("a")], ParameterizedJob={})
    freeze = steward.send("POST", "/v1/freeze", Jobs="hold*", Reason="bench")["ID"]
    for first in range(0, number, BATCH):
        steward.dispatch("hold", min(BATCH, number - first))
    while len(steward.get("/v1/runs", prefix="hold/", per_page=str(number))) < number:
        time.sleep(0.1)  # leave the CPU to the daemon
    used, began = spent(pid), time.perf_counter()
    steward.send("DELETE", f"/v1/freeze/{freeze}")
    while steward.get("/v1/job/hold/summary")["Children"]["Pending"]:
        time.sleep(0.1)  # a short pause, so that the requests cost little CPU time
    took = time.perf_counter() - began
    print(
        f"{number} runs held by a freeze: began within {took:.1f} s, {number / took:.1f} per s, "
        f"{(spent(pid) - used) / took * 100:.1f} % of a core",
        flush=True,
    )


def queue(steward: Daemon) -> None:
    names = [f"queued-{number}" for number in range(ROUNDS)]
    for name in names:
        steward.register(name, [step("a")], Meta={"steward_run_concurrency": "db"})
    for name in names:
        steward.until_dead(name)
    spans = sorted(steward.times(name)["a"] for name in names)
    shown(
        "hand-over of a slot",
        [later[0] - one[1] for one, later in pairwise(spans)],
    )


def triggers(steward: Daemon) -> None:
    steward.register("after", [step("a")], ParameterizedJob={}, Meta={"steward_after": "source"})
    delays = []
    for number in range(ROUNDS):
        steward.register("source", [step("a")], Meta={"n": str(number)})
        steward.until_dead("source")
        while len(children := steward.get("/v1/jobs", prefix="after/")) <= number:
            time.sleep(0.01)
        newest = max(children, key=lambda one: int(one["CreateIndex"]))["ID"].replace("/", "%2F")
        steward.until_dead(newest)
        latest = max(
            _ms(one["TaskStates"]["main"]["FinishedAt"])
            for one in steward.get("/v1/job/source/allocations")
        )
        delays.append(steward.times(newest)["a"][0] - latest)
    shown("end of a run to the start of its follower", delays)


def decision(number: int = 2000) -> None:
    names = [f"s{index}" for index in range(number)]
    steps = [
        Step(name=name, needs=tuple(names[max(index - 50, 0) : max(index - 47, 0)]))
        for index, name in enumerate(names)
    ]
    graph = Graph(steps=tuple(steps))
    run = FlowRun(namespace="default", job_id="x", number=1, version=0, began=1)
    rows = {one.name: one for one in advance(graph, run, {}, {}, now=2).steps}
    spent = []
    for _ in range(20):
        began = time.thread_time()
        advance(graph, run, rows, {"s0": Elements(good=1)}, now=3)
        spent.append((time.thread_time() - began) * 1000)
    shown(f"CPU of a decision about {number} steps", spent)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("chain", 100), ("array", 1000), ("layers", 20), ("wide", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name in ("waiting", "frozen"):
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steward-flows-", dir=Path.cwd()) as name:
        directory = Path(name)
        print(
            f"host: load {os.getloadavg()[0]:.1f}, {fork_exec_per_s():.0f} fork+exec/s, "
            f"{fdatasync_per_s(directory):.0f} fdatasync/s",
            flush=True,
        )
        if options.waiting:
            with daemon(directory / "data") as (port, pid):
                waiting(Daemon(port), pid, options.waiting)
            return
        if options.frozen:
            with daemon(directory / "data") as (port, pid):
                frozen(Daemon(port), pid, options.frozen)
            return
        decision()
        with daemon(directory / "data") as (port, pid):
            steward = Daemon(port)
            chain(steward, options.chain)
            queue(steward)
            triggers(steward)
            array(steward, options.array)
            layers(steward, options.layers, options.wide)
            page(steward, pid, directory)
            print(f"memory: {resident(pid)} MiB", flush=True)


if __name__ == "__main__":
    main()

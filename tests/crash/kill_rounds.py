"""SIGKILL under load, at random points determined by a seed.

Acknowledged writes must persist, and running tasks must keep running. One daemon goes through all
rounds on the same data. In each round clients register, update, stop and dispatch jobs
concurrently. After a random number of acknowledged requests the daemon is killed and restarted.
Each task writes a line when it starts, so that a second start is detected. The tests are in several
files, because parallel test runners distribute whole files.
"""

import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.crash.ledger import Starts, is_alive, job
from tests.service.daemon import Steward, open_steward
from tests.time_limits import HAPPENS_WITHIN

SEED = 20261121
ROUNDS = int(os.environ.get("TEST_KILLS", "60"))
PER_TEST = 10  # rounds; a test has a time limit
PARTS = 3  # files of tests
CLIENTS = 5
MOST_REQUESTS = 25  # acknowledged before the kill

# A client that is cut off during a request leaves a generator of the HTTP library to the GC.
CUT_OFF = pytest.mark.filterwarnings(
    "ignore:.*ByteStream.__aiter__:pytest.PytestUnraisableExceptionWarning"
)

RUNS_ON = "echo $NOMAD_ALLOC_ID $$ >> {starts}; exec sleep 600"
ENDS = "echo $NOMAD_ALLOC_ID $$ >> {starts}; exit {code}"


class Ledger:
    """The promises of the daemon."""

    def __init__(self, directory: Path) -> None:
        self.starts = Starts(directory)
        self.versions: dict[str, int] = {}  # job -> newest acknowledged version
        self.stopped: dict[str, bool] = {}  # job -> whether the last acknowledged write stopped it
        self.uncertain: set[str] = set()  # jobs with an unacknowledged write
        self.children: set[str] = set()
        self.codes: dict[str, int] = {}  # job -> exit status of its task
        self.acknowledged = 0

    def started_twice(self) -> list[str]:
        """Return the allocations whose task started more than once."""
        return [alloc_id for alloc_id, count in self.starts.counts().items() if count > 1]


class Client:
    """A client that works with the daemon until the kill, and records its promises."""

    def __init__(self, steward: Steward, ledger: Ledger, name: str, chance: random.Random) -> None:
        self.steward, self.ledger, self.name, self.chance = steward, ledger, name, chance
        self.number = 0

    async def work(self, enough: trio.Event, limit: int) -> None:
        while not enough.is_set():
            target = ""
            try:
                target = await self.act()
            except httpx.TransportError:
                self.ledger.uncertain.add(self.target)
                return
            self.ledger.acknowledged += 1
            assert target
            if self.ledger.acknowledged >= limit:
                enough.set()

    async def act(self) -> str:
        choice = self.chance.random()
        mine = [version for version in self.ledger.versions if version.startswith(self.name)]
        if choice < 0.4 or not mine:
            return await self.register(f"{self.name}-{self.number}")
        if choice < 0.6:
            return await self.register(self.chance.choice(mine))
        if choice < 0.8:
            return await self.stop(self.chance.choice(mine))
        return await self.dispatch()

    async def register(self, job_id: str) -> str:
        self.target = job_id
        self.number += 1
        code = self.ledger.codes.setdefault(job_id, self.chance.choice([-1, 0, 3]))
        command = RUNS_ON if code < 0 else ENDS
        text = command.format(starts=self.ledger.starts.path, code=code)
        definition = job(
            job_id, "service" if code < 0 else "batch", text, Meta={"n": f"{self.number}"}
        )
        await self.steward.register(definition)
        self.ledger.versions[job_id] = self.ledger.versions.get(job_id, -1) + 1
        self.ledger.stopped[job_id] = False
        return job_id

    async def stop(self, job_id: str) -> str:
        self.target = job_id
        await self.steward.delete(f"/v1/job/{job_id}")
        self.ledger.versions[job_id] += 1
        self.ledger.stopped[job_id] = True
        return job_id

    async def dispatch(self) -> str:
        self.target = "parent"
        done = await self.steward.post("/v1/job/parent/dispatch", {})
        self.ledger.children.add(done["DispatchedJobID"])
        return str(done["DispatchedJobID"])


async def round_of(steward: Steward, ledger: Ledger, number: int) -> None:
    """Send requests, kill the daemon during one of them, restart it, and check every promise."""
    chance = random.Random(SEED + number)  # repeatable, not secret
    ledger.acknowledged = 0
    enough = trio.Event()
    limit = chance.randint(1, MOST_REQUESTS)
    async with trio.open_nursery() as nursery:
        for client in range(CLIENTS):
            one = Client(steward, ledger, f"r{number}c{client}", chance)
            nursery.start_soon(one.work, enough, limit)
        await enough.wait()
        await steward.kill()
    alive = ledger.starts.alive()
    await steward.start()
    await check(steward, ledger, alive)


async def check(steward: Steward, ledger: Ledger, alive: set[str]) -> None:
    await steward.until(
        "/v1/evaluations", lambda shown: all(item["Status"] != "pending" for item in shown)
    )
    listed = {item["ID"]: item for item in await steward.get("/v1/jobs")}
    assert ledger.versions.keys() | ledger.children <= listed.keys()
    for job_id, version in ledger.versions.items():
        if job_id in ledger.uncertain:
            continue
        found = await steward.get(f"/v1/job/{job_id}")
        assert (found["Version"], found["Stop"]) == (version, ledger.stopped[job_id])
    allocations = await steward.until(
        "/v1/allocations",
        lambda shown: all(has_settled(item, ledger) for item in shown),
    )
    assert ledger.started_twice() == []
    pids = ledger.starts.pids()
    for alloc in allocations:
        if alloc["ID"] in alive and alloc["DesiredStatus"] == "run":
            assert (alloc["ClientStatus"], is_alive(pids[alloc["ID"]], alloc["ID"])) == (
                "running",
                True,
            )
    wanted = {alloc["ID"] for alloc in allocations if alloc["ClientStatus"] == "running"}
    # New tasks may not have written their line yet. The daemon must first find the tasks that its
    # predecessor was about to kill.
    with trio.move_on_after(HAPPENS_WITHIN):
        while ledger.starts.alive() != wanted:
            await steward.get("/v1/agent/health")
    assert ledger.starts.alive() == wanted
    await forget(steward, ledger)


def has_settled(allocation: dict[str, Any], ledger: Ledger) -> bool:
    """Return whether an allocation is in a final state."""
    code = ledger.codes.get(allocation["JobID"], 0)
    if allocation["DesiredStatus"] != "run":
        return allocation["ClientStatus"] in ("complete", "failed")
    if code < 0:
        return bool(allocation["ClientStatus"] == "running")
    expected = "complete" if code == 0 else "failed"
    return bool(allocation["ClientStatus"] == expected and true_code(allocation) == code)


def true_code(allocation: dict[str, Any]) -> int:
    events = allocation["TaskStates"]["t"]["Events"]
    codes = [event["ExitCode"] for event in events if event["Type"] == "Terminated"]
    return int(codes[-1]) if codes else -1


async def forget(steward: Steward, ledger: Ledger) -> None:
    """Purge all jobs, so that the next round starts with an empty table."""
    for item in await steward.get("/v1/jobs"):  # includes jobs of unacknowledged writes
        if item["ID"] != "parent":
            await steward.delete(f"/v1/job/{item['ID']}", purge=True)
    ledger.versions.clear()
    ledger.stopped.clear()
    ledger.uncertain.clear()
    ledger.children.clear()
    await steward.until("/v1/jobs", lambda shown: {item["ID"] for item in shown} == {"parent"})


def firsts(part: int) -> list[int]:
    """Return the number of the first round of each test in one part."""
    return list(range(0, ROUNDS, PER_TEST))[part::PARTS]


async def live(directory: Path, first: int) -> None:
    """Execute the rounds of one test."""
    async with open_steward(directory, "--dev") as steward:
        ledger = Ledger(directory)
        text = ENDS.format(starts=ledger.starts.path, code=0)
        await steward.register(job("parent", "batch", text, ParameterizedJob={}))
        for number in range(first, first + PER_TEST):
            await round_of(steward, ledger, number)

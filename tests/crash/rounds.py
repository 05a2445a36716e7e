"""SIGKILL under load, at seeded random points: what was acknowledged is kept, what runs runs on.

One daemon lives through all of it on the same data. In each round clients register, update, stop and
dispatch at the same time; after a random number of acknowledged requests the daemon is killed
and started again. Each task writes a line when it starts, so that what started twice shows.
The tests are in several files, which those that run them side by side hand out whole.
"""

import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.crash.ledger import Starts, is_alive, job
from tests.patience import HAPPENS_WITHIN
from tests.service.daemon import Steward, open_steward

SEED = 20261121
ROUNDS = int(os.environ.get("TEST_KILLS", "200"))
PER_TEST = 10  # rounds; a test has a deadline
PARTS = 3  # files of tests
CLIENTS = 5
MOST_REQUESTS = 25  # acknowledged before the kill

# A client cut off while it sends leaves a generator of the HTTP library to the garbage collector.
CUT_OFF = pytest.mark.filterwarnings(
    "ignore:.*ByteStream.__aiter__:pytest.PytestUnraisableExceptionWarning"
)

RUNS_ON = "echo $NOMAD_ALLOC_ID $$ >> {starts}; exec sleep 600"
ENDS = "echo $NOMAD_ALLOC_ID $$ >> {starts}; exit {code}"


class Ledger:
    """What the daemon has promised."""

    def __init__(self, directory: Path) -> None:
        self.starts = Starts(directory)
        self.versions: dict[str, int] = {}  # job -> the newest version that was acknowledged
        self.stopped: dict[str, bool] = {}  # job -> whether the last acknowledged write stopped it
        self.uncertain: set[str] = set()  # jobs with a write whose answer never came
        self.children: set[str] = set()
        self.codes: dict[str, int] = {}  # job -> how its task ends
        self.acknowledged = 0

    def started_twice(self) -> list[str]:
        """Return the allocations whose task was started more than once."""
        return [alloc_id for alloc_id, count in self.starts.counts().items() if count > 1]


class Client:
    """Somebody who works with the daemon until it is gone, and writes down what it promised."""

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
        mine = [one for one in self.ledger.versions if one.startswith(self.name)]
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
    """Work, be killed in the middle of it, start again, and check every promise."""
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
        "/v1/evaluations", lambda shown: all(one["Status"] != "pending" for one in shown)
    )
    listed = {one["ID"]: one for one in await steward.get("/v1/jobs")}
    assert ledger.versions.keys() | ledger.children <= listed.keys()
    for job_id, version in ledger.versions.items():
        if job_id in ledger.uncertain:
            continue
        found = await steward.get(f"/v1/job/{job_id}")
        assert (found["Version"], found["Stop"]) == (version, ledger.stopped[job_id])
    allocations = await steward.until(
        "/v1/allocations",
        lambda shown: all(has_settled(one, ledger) for one in shown),
    )
    assert ledger.started_twice() == []
    pids = ledger.starts.pids()
    for one in allocations:
        if one["ID"] in alive and one["DesiredStatus"] == "run":
            assert (one["ClientStatus"], is_alive(pids[one["ID"]], one["ID"])) == ("running", True)
    wanted = {one["ID"] for one in allocations if one["ClientStatus"] == "running"}
    # What runs since a moment ago may not have come so far, and what the daemon before this one was
    # about to end for good has to be looked for first.
    with trio.move_on_after(HAPPENS_WITHIN):
        while ledger.starts.alive() != wanted:
            await steward.get("/v1/agent/health")
    assert ledger.starts.alive() == wanted
    await forget(steward, ledger)


def has_settled(allocation: dict[str, Any], ledger: Ledger) -> bool:
    """Tell whether an allocation is in the state in which it will stay."""
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
    """Purge everything, so that the next round begins with an empty table."""
    for one in await steward.get("/v1/jobs"):  # also what was done but never acknowledged
        if one["ID"] != "parent":
            await steward.delete(f"/v1/job/{one['ID']}", purge=True)
    ledger.versions.clear()
    ledger.stopped.clear()
    ledger.uncertain.clear()
    ledger.children.clear()
    await steward.until("/v1/jobs", lambda shown: {one["ID"] for one in shown} == {"parent"})


def firsts(part: int) -> list[int]:
    """Return with which rounds the tests of one of the parts begin."""
    return list(range(0, ROUNDS, PER_TEST))[part::PARTS]


async def live(directory: Path, first: int) -> None:
    """Live through the rounds of one test."""
    async with open_steward(directory, "--dev") as steward:
        ledger = Ledger(directory)
        text = ENDS.format(starts=ledger.starts.path, code=0)
        await steward.register(job("parent", "batch", text, ParameterizedJob={}))
        for number in range(first, first + PER_TEST):
            await round_of(steward, ledger, number)

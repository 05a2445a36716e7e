"""Every interface shows the same state and reason of a job after any events.

Each run is a random sequence of events: jobs are submitted, placed, run, fail, are stopped, paused
and dispatched. After each step, the test reads the state of every job from every interface.
"""

import random
import re
from collections.abc import Awaitable, Callable
from html import unescape
from typing import NamedTuple
from urllib.parse import quote

import pytest
import trio
from click.testing import CliRunner

from daemon.cli.core.command_tree import COMMANDS, CommandLine
from daemon.evals import job_states
from daemon.notify.context import context_of
from daemon.text.job_state import State
from storage.queries import allocations, periodic, tallies
from storage.read_pool import ReadSnapshot
from storage.records.allocation import ClientStatus, DesiredStatus, TaskEvent
from storage.records.group import ReschedulePolicy, Update
from storage.records.job import Job, Parameterized, Periodic
from storage.records.notification import Notification, NotifyEvent
from storage.records.task import Resources
from storage.writer import Transaction
from tests.parts.ui.conftest import Browser, Site
from tests.samples import group, job, task

STEPS = 30
FEWEST = 5  # different states that a useful run must show
NEVER = ReschedulePolicy(attempts=0, unlimited=False)
ROLLING = Update(max_parallel=1, health_check="task_states")
ROW = re.compile(
    r'<tr><td[^>]*><a href="/ui/job/[^"]*">([^<]*)</a>.*?<td[^>]*><span class="state is-(\w+)">(.*?)</td>',
    re.DOTALL,
)
HEADING = re.compile(r'<h1>[^<]* <span class="state is-(\w+)">')
WHY = re.compile(r'<(?:p|span) class="why">(.*?)</(?:p|span)>', re.DOTALL)


def only(site: Site) -> Browser:
    """Return the only browser of a simulated run."""
    return site.browsers[0] if site.browsers else site.browser()


class Said(NamedTuple):
    """The state of a job on one interface: its word and its reason."""

    word: str
    reason: str


class Life:
    """Possible events of the jobs of a daemon."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site, self.cluster = site, site.cluster
        self.dice = random.Random(seed)

    async def step(self) -> None:
        """Cause a random event."""
        happens: list[Callable[[], Awaitable[None]]] = [
            *(self.submit, self.submit, self.work, self.work, self.work, self.report),
            *(
                self.report,
                self.report,
                self.report,
                self.stop,
                self.pause,
                self.dispatch,
                self.wait,
            ),
        ]
        await self.dice.choice(happens)()

    def _job(self) -> Job:
        kind = self.dice.choice(["service", "service", "batch", "periodic", "parameterized"])
        number = self.dice.randrange(3)
        memory = self.dice.choice([20, 20, 20, 10**8])
        one = group(
            "g",
            task(resources=Resources(cpu=20, memory_mb=memory)),
            count=self.dice.randint(0, 3) if kind == "service" else 1,
            reschedule_policy=self.dice.choice([NEVER, ReschedulePolicy(unlimited=True, delay=10)]),
            update=ROLLING if kind == "service" else None,
        )
        launching = {
            "periodic": {"periodic": Periodic(spec="@daily", enabled=self.dice.random() < 0.8)},
            "parameterized": {"parameterized_job": Parameterized()},
        }.get(kind, {})
        return job(
            f"job-{kind}-{number}",
            one,
            type="service" if kind == "service" else "batch",
            meta={"seed": str(self.dice.random())},
            **launching,
        )

    async def submit(self) -> None:
        await self.cluster.register(self._job())

    async def work(self) -> None:
        await self.cluster.work()

    async def report(self) -> None:
        """Let an allocation run, fail or end."""
        found = [
            alloc
            for row in await self.known()
            for alloc in self.cluster.allocations(row)
            if not alloc.client_terminal
        ]
        if not found:
            return
        one = self.dice.choice(found)
        status = ClientStatus.COMPLETE
        if one.desired_status == DesiredStatus.RUN:
            status = self.dice.choice(
                [ClientStatus.RUNNING, ClientStatus.RUNNING, ClientStatus.FAILED, status]
            )
        if status == ClientStatus.FAILED:
            event = TaskEvent(type="Terminated", time=self.cluster.clock.now(), exit_code=3)

            def note(tx: Transaction) -> None:
                allocations.add_events(tx, one.id, {"main": (event,)})

            await self.cluster.store.write(note)
        healthy = self.dice.choice([None, True, False]) if status == ClientStatus.RUNNING else None
        await self.cluster.report(one, status, healthy=healthy)

    async def stop(self) -> None:
        found = await self.known()
        if found and self.dice.random() < 0.5:
            await self.ask("DELETE", f"/v1/job/{quote(self.dice.choice(found), safe='')}")

    async def pause(self) -> None:
        paused = self.dice.random() < 0.5
        for number in range(3):
            name = f"job-periodic-{number}"
            await self.cluster.store.write(
                lambda tx, name=name: periodic.set_paused(tx, "default", name, paused=paused)
            )

    async def dispatch(self) -> None:
        for number in range(3):
            await self.ask("POST", f"/v1/job/job-parameterized-{number}/dispatch", {})
            await self.ask("POST", f"/v1/job/job-periodic-{number}/periodic/force", {})

    async def wait(self) -> None:
        self.cluster.wait(self.dice.choice([1, 30, 120]))

    async def ask(self, method: str, path: str, body: object = None) -> None:
        """Ask the API for something that it may refuse."""
        await only(self.site).http.request(method, path, json=body)

    async def known(self) -> list[str]:
        """Return the names of all jobs, including children."""
        answer = await only(self.site).http.get("/v1/jobs")
        return [item["ID"] for item in answer.json()]


def in_store(site: Site, job_id: str) -> Said:
    now = site.cluster.clock.now()
    found = site.cluster.store.read(lambda db: job_states.state_of(db, "default", job_id, now))
    assert found is not None
    return Said(found.word, found.reason)


async def in_statuses(site: Site, state: str = "") -> dict[str, Said]:
    query = {"states": "true", "include_children": "true", "per_page": "500", "state": state}
    answer = await only(site).http.get("/v1/jobs/statuses", params=query)
    return {
        item["ID"]: Said(item["StewardState"]["State"], item["StewardState"]["Reason"])
        for item in answer.json()
    }


async def strips(site: Site) -> dict[str, list[str]]:
    """Return the results of the last runs of each job that has runs, newest first."""
    query = {"states": "true", "strip": "true", "per_page": "500"}
    answer = await only(site).http.get("/v1/jobs/statuses", params=query)
    found = {item["ID"]: item["StewardState"]["Runs"] for item in answer.json()}
    return {name: runs["Strip"] for name, runs in found.items() if runs}


async def in_state(site: Site, job_id: str) -> Said:
    answer = await only(site).http.get(f"/v1/job/{quote(job_id, safe='')}/state")
    return Said(answer.json()["State"], answer.json()["Reason"])


async def on_list(site: Site, state: str = "") -> dict[str, Said]:
    """Return the states in the list of jobs; a search includes children."""
    page = (await only(site).get(f"/ui/jobs?search=job&state={state}")).text
    return {
        unescape(name): Said(word, unescape(why[1]) if (why := WHY.search(rest)) else "")
        for name, word, rest in ROW.findall(page)
    }


async def on_page(site: Site, job_id: str) -> Said:
    page = (await only(site).get(f"/ui/job/{quote(job_id, safe='')}")).text
    head = page.partition('<nav class="tabs"')[0].partition('id="head"')[2]
    word = HEADING.search(head)
    assert word is not None, page
    why = WHY.search(head)
    return Said(word[1], unescape(why[1]) if why else "")


def typed(site: Site, *words: str) -> str:
    line = CommandLine("steward", COMMANDS, "")
    return (
        CliRunner(env={"STEWARD_ADDR": site.address, "COLUMNS": "400"}).invoke(line, words).stdout
    )


async def in_terminal(site: Site, job_id: str) -> Said:
    """Return the state that `job status JOB` prints."""
    shown = await trio.to_thread.run_sync(typed, site, "job", "status", "--short", job_id)
    facts = dict(re.findall(r"^(\w[\w ]*?) *= (.*)$", shown, re.MULTILINE))
    return Said(facts.get("Status", shown), facts.get("Reason", ""))


async def in_table(site: Site) -> dict[str, str]:
    """Return the state words in the table of `job status`, by job."""
    shown = await trio.to_thread.run_sync(typed, site, "job", "status", "--children")
    rows = [line.split() for line in shown.splitlines()[1:]]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def in_notification(site: Site, job_id: str) -> str:
    def read(db: ReadSnapshot) -> str:
        notification = Notification(
            id=1,
            namespace="default",
            job_id=job_id,
            run_id=job_id,
            event=NotifyEvent.FAILURE,
            reason="",
            create_time=0,
            modify_time=0,
        )
        return context_of(db, notification, site="", now=site.cluster.clock.now()).state

    return site.cluster.store.read(read)


def short(said: Said) -> Said:
    """Return the part of a reason that a list shows."""
    return Said(said.word, said.reason[:120])


@pytest.mark.parametrize("seed", [0, 1, 2, 4])
async def test_every_surface_shows_the_same_state_of_a_job(open_site: Site, seed: int) -> None:
    life = Life(open_site, seed)
    seen: set[str] = set()
    for _ in range(STEPS):
        await life.step()
        statuses, listed = await in_statuses(open_site), await on_list(open_site)
        truth = {name: in_store(open_site, name) for name in await life.known()}
        seen |= {said.word for said in truth.values()}
        assert statuses == truth
        assert {name: short(said) for name, said in listed.items()} == {
            name: short(said) for name, said in truth.items()
        }
    table = await in_table(open_site)
    assert table == {name: said.word for name, said in truth.items()}
    for name, said in truth.items():
        assert await in_state(open_site, name) == said
        assert await on_page(open_site, name) == said
        assert await in_terminal(open_site, name) == said
        assert in_notification(open_site, name) == said.word
    assert len(seen) >= FEWEST
    for name, strip in (await strips(open_site)).items():
        ended = open_site.cluster.store.read(
            lambda db, name=name: tallies.results(db, "default", name, job_states.STRIP)
        )
        assert strip == [truth[item.id].word for item in ended]
    for word in State:
        wanted = {name for name, said in truth.items() if said.word == word}
        assert set(await on_list(open_site, word)) == wanted
        assert set(await in_statuses(open_site, word)) == wanted

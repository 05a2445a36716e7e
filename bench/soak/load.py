"""The load of the soak test: kinds of work, each repeated at its own pace."""

import json
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import httpx
import msgspec
import trio

from bench.soak.ledger import SPEC, ZONES, Ledger
from daemon.identity import devcloud
from storage.records.base import SECOND
from tests.service.daemon import Steward
from tests.service.streaming import open_stream
from tests.websocket_client import talk

WARMING = 4  # factor by which the load is higher during the warm-up
LINE = "x" * 1000
SAYS = f"while :; do echo {LINE}; sleep 0.2; done"
CLIENT_WAITS = 120.0  # timeout of a client in seconds
PAUSE = 8.0  # seconds between two reloads of a page while changes continue
TABS = 10  # pages of one browser, which share a session
FULL = 507
ERRORS = re.compile(r"\d{1,4} errors? occurred:")
TOO_MANY_GROUPS = 101  # the settings allow 100
TOO_LARGE = 300 * 1024  # bytes; the settings allow 256 KB
PAGES = (
    *("", "jobs", "runs", "services", "evaluations", "nodes", "variables", "log"),
    *("job/linger", "job/report", "job/report/launches", "job/linger/versions", "find?q=web"),
)

Work = Callable[["Soak"], Awaitable[None]]


class Soak:
    """Load on one daemon, and its results."""

    def __init__(
        self, steward: Steward, http: httpx.AsyncClient, ledger: Ledger, chance: random.Random
    ) -> None:
        self.steward, self.http, self.ledger, self.chance = steward, http, ledger, chance
        self.took = defaultdict[str, list[float]](list)
        self.faults: list[str] = []
        self.excused = Counter[str]()  # failures during a kill or on a full disk
        self.disturbance = ""  # the present disturbance, during which requests may fail
        self.disturbances = 0  # counts the beginnings and ends of disturbances
        self.is_up = trio.Event()
        self.is_up.set()
        self.is_ending = False
        self.finishing = trio.Lock()  # held while a client waits for a child; delays the GC
        self.turn = self.spans = 0
        self.pace = WARMING
        self.login: dict[str, str] = {}

    def next_turn(self) -> int:
        self.turn += 1
        return self.turn

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.took[name].append(1000 * (time.perf_counter() - begun))

    @contextmanager
    def disturbed(self, name: str) -> Iterator[None]:
        """Excuse requests that fail while the block runs."""
        self.disturbance = name
        self.disturbances += 1
        yield
        self.disturbance = ""
        self.disturbances += 1

    @contextmanager
    def excusing(self, name: str) -> Iterator[None]:
        """Record a failure of the block as a fault, unless a disturbance overlaps with it."""
        before, disturbance = self.disturbances, self.disturbance
        try:
            yield
        except Exception as error:
            if disturbance or before != self.disturbances:
                self.excused[f"{name}, {self.disturbance or disturbance or 'between'}"] += 1
            else:
                self.faults.append(f"{time.strftime('%X')} {name}: {error!r}"[:500])
                print(self.faults[-1], flush=True)

    async def repeat(self, every: float, work: Work) -> None:
        """Repeat an operation until the end of the test, with pauses of about `every` seconds."""
        while not self.is_ending or work in AT_THE_END:
            await trio.sleep(every * self.chance.uniform(0.7, 1.3) / self.pace)
            await self.is_up.wait()
            with self.excusing(work.__name__):
                await work(self)

    async def insist(
        self, method: str, path: str, body: object = None, /, **query: object
    ) -> httpx.Response:
        """Repeat a request until the daemon accepts it."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        while True:
            await self.is_up.wait()
            before = self.disturbances
            try:
                answer = await self.http.request(
                    method,
                    f"{self.steward.address}{path}",
                    content=content if body is not None else None,
                    params={name: str(value) for name, value in query.items()} or None,
                    headers={"X-Service-Token": self.steward.token},
                )
            except httpx.TransportError:
                if before == self.disturbances and not self.disturbance:
                    raise
                self.excused[f"repeated {method}, kill"] += 1
                await trio.sleep(0.1)
                continue
            if answer.status_code != FULL:
                return answer
            self.excused[f"repeated {method}, full disk"] += 1
            await trio.sleep(1)

    async def ask(self, method: str, path: str, body: object = None, /, **query: object) -> Any:  # noqa: ANN401  # JSON
        """Repeat a request until the daemon accepts it; return the decoded response."""
        answer = await self.insist(method, path, body, **query)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def until(self, path: str, condition: Callable[[Any], object]) -> Any:  # noqa: ANN401  # JSON
        """Return the response at a path when it matches the condition, even across a kill."""
        index = 0
        while True:
            query = {"index": index, "wait": "30s"} if index else {}
            answer = await self.insist("GET", path, **query)
            assert answer.is_success, f"{path}: {answer.status_code} {answer.text}"
            if condition(answer.json()):
                return answer.json()
            index = max(int(answer.headers["X-Service-Index"]), 1)

    async def running(self, job_id: str) -> Any:  # noqa: ANN401  # JSON
        """Return a running allocation of a job."""
        allocs = await self.steward.get(f"/v1/job/{job_id}/allocations")
        return next(alloc for alloc in allocs if alloc["ClientStatus"] == "running")


def client() -> httpx.AsyncClient:
    """Return a client with an unlimited number of connections, one for each open page."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(timeout=CLIENT_WAITS, limits=limits, trust_env=False)


# --- jobs ---


def task(name: str, *words: str, **more: object) -> dict[str, object]:
    return {
        "Name": name,
        "Driver": "raw_exec",
        "Config": {"command": words[0], "args": words[1:]},
        "Resources": {"CPU": 1, "MemoryMB": 10},
        "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 1},
        **more,
    }


def job(job_id: str, kind: str, *words: str, count: int = 1, **more: object) -> dict[str, object]:
    group = {
        "Name": "g",
        "Count": count,
        "EphemeralDisk": {"SizeMB": 10},
        "Tasks": [task("main", *words, Env={"TURN": str(more.pop("turn", ""))})],
    }
    return {"ID": job_id, "Type": kind, "TaskGroups": [group], **more}


def step(name: str, script: str, count: int = 1, **keys: str) -> dict[str, object]:
    """Return a task group of a short job that runs a script; a failed script is retried forever.

    `keys` are the `steward_` keys of its meta.
    """
    return {
        "Name": name,
        "Meta": {f"steward_{key}": text for key, text in keys.items()},
        **({} if "for_each" in keys else {"Count": count}),
        "EphemeralDisk": {"SizeMB": 10},
        "RestartPolicy": {
            "Attempts": 3,
            "Mode": "fail",
            "Delay": 2 * SECOND,
            "Interval": 60 * SECOND,
        },
        "ReschedulePolicy": {
            "Attempts": 0,
            "Unlimited": True,
            "Delay": 5 * SECOND,
            "DelayFunction": "constant",
        },
        "Tasks": [task("main", "/bin/sh", "-c", script)],
    }


def short(job_id: str, *groups: dict[str, object], **more: object) -> dict[str, object]:
    return {"ID": job_id, "Type": "batch", "TaskGroups": list(groups), **more}


# --- runs that the ledger records ---


async def dispatch(soak: Soak) -> None:
    token = f"one-{soak.next_turn()}"
    async with soak.finishing:
        begun, before = time.perf_counter(), soak.disturbances
        path, body = "/v1/job/report/dispatch", {"Payload": "eA=="}
        done = await soak.ask("POST", path, body, idempotency_token=token)
        soak.took["dispatch"].append(1000 * (time.perf_counter() - begun))
        soak.ledger.accept("dispatch", done["DispatchedJobID"])
        if soak.disturbance or before != soak.disturbances:
            return
        child = done["DispatchedJobID"].replace("/", "%2F")
        await soak.steward.until(f"/v1/job/{child}", lambda shown: shown["Status"] == "dead")
        soak.took["dispatched and ended"].append(1000 * (time.perf_counter() - begun))


async def dispatch_bulk(soak: Soak) -> None:
    token, number = f"bulk-{soak.next_turn()}", soak.chance.randint(5, 30)
    accepted = dict[int, str]()
    with soak.timed("bulk dispatch of 18"):
        while len(accepted) < number:  # on a full disk, the daemon refuses some lines
            answer = await soak.insist(
                "POST", "/v1/job/report/dispatch/bulk", b"{}\n" * number, idempotency_token=token
            )
            assert answer.is_success, answer.text
            lines = list(map(json.loads, answer.text.splitlines()))
            children = {
                line["Line"]: line["DispatchedJobID"] for line in lines if "Error" not in line
            }
            assert all(
                children[line] == child for line, child in accepted.items() if line in children
            )
            accepted |= children
            if len(accepted) < number:
                assert soak.disturbance, lines
                soak.excused[f"part of a bulk dispatch, {soak.disturbance}"] += 1
                await trio.sleep(1)
    assert len(set(accepted.values())) == number, "two lines have the same child"
    for child in accepted.values():
        soak.ledger.accept("bulk", child)


async def array(soak: Soak) -> None:
    job_id, count = f"array-{soak.next_turn()}", soak.chance.randint(5, 20)
    group = step("g", soak.ledger.script, count, parallel="4")
    with soak.timed("array"):
        await soak.ask("POST", "/v1/jobs", {"Job": short(job_id, group)})
    soak.ledger.accept("element", job_id, count=count)


async def workflow(soak: Soak) -> None:
    """Run a workflow: a step writes a list, a step runs over it, and a gate is approved."""
    job_id, count = f"flow-{soak.next_turn()}", soak.chance.randint(1, 6)
    shards = f"""echo 'shards={json.dumps([*range(count)])}' >>"$STEWARD_OUTPUT"; """
    script = soak.ledger.script
    flow = short(
        job_id,
        step("plan", shards + script),
        step("load", script, needs="plan", for_each="${output.plan.shards}", parallel="2"),
        step("publish", script, needs="load", gate="Publish?"),
    )
    begun, before = time.perf_counter(), soak.disturbances
    done = await soak.ask("POST", "/v1/jobs", {"Job": flow})
    soak.ledger.accept("step", job_id, "plan")
    soak.ledger.accept("step", job_id, "load", count)
    await soak.until(
        f"/v1/evaluation/{done['EvalID']}", lambda shown: shown["Status"] == "complete"
    )
    await soak.until(f"/v1/job/{job_id}/run", is_held)
    if before == soak.disturbances and not soak.disturbance:
        soak.took["workflow up to its gate"].append(1000 * (time.perf_counter() - begun))
    act = {"Steps": ["publish"], "IdempotencyToken": job_id}
    await soak.ask("POST", f"/v1/job/{job_id}/run/approve", act)
    soak.ledger.accept("step", job_id, "publish")


def is_held(run: Any) -> bool:  # noqa: ANN401  # JSON
    assert run["Status"] == "running", run
    return any(
        run_step["Name"] == "publish" and run_step["State"] == "held" for run_step in run["Steps"]
    )


# --- other work ---


async def update(soak: Soak) -> None:
    turn = soak.next_turn()
    changed = job(f"web-{turn % 4}", "service", "/bin/sleep", "9999", turn=turn)
    with soak.timed("update"):
        await soak.steward.register(changed)


async def scale(soak: Soak) -> None:
    request = {"Target": {"Group": "g"}, "Count": soak.chance.randint(1, 3), "Message": "soak"}
    with soak.timed("scale"):
        await soak.steward.post("/v1/job/scaled/scale", request)


async def come_and_go(soak: Soak) -> None:
    job_id = f"gone-{soak.next_turn()}"
    try:
        with soak.timed("register to running"):
            await soak.steward.run_job(job(job_id, "service", "/bin/sleep", "9999"))
    finally:
        with soak.timed("stop"):
            await soak.ask("DELETE", f"/v1/job/{job_id}", purge="true")


async def command(soak: Soak) -> None:
    allocation = await soak.running("linger")
    path = f"/v1/client/allocation/{allocation['ID']}/exec"
    query = {"task": "main", "command": json.dumps(["/bin/echo", "hello"])}
    headers = [(b"X-Service-Token", soak.steward.token.encode())]
    with soak.timed("exec"):
        async with talk(soak.steward.address, path, headers=headers, **query) as socket:
            frames = await socket.all()
    assert frames[-1:] == [{"exited": True, "result": {}}], frames


async def logs(soak: Soak) -> None:
    allocation = await soak.running("linger")
    query = {"task": "main", "type": "stdout", "plain": True, "origin": "end", "offset": 50_000}
    with soak.timed("logs"):
        answer = await soak.steward.request(
            "GET", f"/v1/client/fs/logs/{allocation['ID']}", **query
        )
    assert answer.is_success, answer.text


async def read(soak: Soak) -> None:
    with soak.timed("list"):
        await soak.steward.get("/v1/jobs", prefix="web")
    with soak.timed("filter"):
        await soak.steward.get("/v1/allocations", filter='ClientStatus == "running"')
    with soak.timed("read"):
        await soak.steward.get("/v1/job/linger")


async def log_in(soak: Soak) -> None:
    with soak.timed("login"):
        answer = await soak.steward.post("/v1/auth/cloudid/login", soak.login)
    mine = {"X-Service-Token": answer["auth"]["client_token"]}
    url = f"{soak.steward.address}/v1/auth/token"
    (await soak.http.get(f"{url}/lookup-self", headers=mine)).raise_for_status()
    if soak.chance.random() < 0.5:  # the other tokens expire
        (await soak.http.post(f"{url}/revoke-self", headers=mine)).raise_for_status()


async def remember(soak: Soak) -> None:
    path = f"soak/{soak.chance.randint(0, 9)}"
    items = {"Path": path, "Items": {"a": str(soak.chance.random())}}
    with soak.timed("variable"):
        answer = await soak.steward.request("PUT", f"/v1/var/{path}", items)
    assert answer.is_success, answer.text


async def collect(soak: Soak) -> None:
    async with soak.finishing:
        with soak.timed("garbage"):
            answer = await soak.steward.request("PUT", "/v1/system/gc")
    assert answer.is_success, answer.text


async def fail(soak: Soak) -> None:
    """Dispatch a child that fails, so that a receiver gets a notification."""
    await soak.steward.post("/v1/job/fails/dispatch", {})


async def snapshot(soak: Soak) -> None:
    size = 0
    headers = {"X-Service-Token": soak.steward.token}
    with soak.timed("snapshot"):
        async with soak.http.stream(
            "GET", f"{soak.steward.address}/v1/operator/snapshot", headers=headers
        ) as answer:
            answer.raise_for_status()
            async for chunk in answer.aiter_raw():
                size += len(chunk)
    assert size > 10_000, size


async def exceed_budgets(soak: Soak) -> None:
    """Send jobs and bodies that exceed a limit; each must be refused with the expected error."""
    groups = [step(f"g{number}", "true") for number in range(TOO_MANY_GROUPS)]
    refused: tuple[tuple[str, object], ...] = (
        ("/v1/jobs", {"Job": short("wide", *groups)}),
        ("/v1/jobs", {"Job": short("large", step("g", "x" * TOO_LARGE))}),
        ("/v1/jobs", {"Job": short("high", step("g", "true", count=10_001))}),
        ("/v1/jobs", {"Job": short("circle", step("g", "true", needs="g"))}),
        ("/v1/job/none/dispatch/bulk", {}),
    )
    for path, body in refused:
        answer = await soak.steward.request("POST", path, body)
        is_list = answer.status_code == 500 and ERRORS.match(answer.text)  # Nomad's status
        assert is_list or 400 <= answer.status_code < 500, f"{path}: {answer.text[:200]}"


async def follow(soak: Soak) -> None:
    with trio.move_on_after(soak.chance.uniform(5, 40)):
        async with open_stream(soak.steward, "/v1/event/stream") as stream:
            while await stream.line():
                pass


async def listen(soak: Soak) -> None:
    """Record all allocation events in the ledger, starting after the last recorded event."""
    async with open_stream(
        soak.steward, "/v1/event/stream", topic="Allocation", index=soak.ledger.index
    ) as stream:
        while line := await stream.line():
            soak.ledger.hear(line)


WORK: tuple[tuple[float, Work], ...] = (
    (1.5, dispatch),
    (20, dispatch_bulk),
    (20, array),
    (15, workflow),
    (3, update),
    (4, scale),
    (6, come_and_go),
    (3, command),
    (2, logs),
    (1, read),
    (2, log_in),
    (3, remember),
    (30, collect),
    (5, fail),
    (60, snapshot),
    (10, exceed_budgets),
)
ENDLESS: tuple[tuple[float, Work], ...] = (
    (0.1, listen),
    (1, follow),
    (1, follow),
    (1, follow),
)
AT_THE_END = (listen,)  # continues until all accepted runs have ended


# --- open pages ---


class Browser:
    """A signed-in session that several pages share. A kill of the daemon closes the session."""

    def __init__(self, soak: Soak, http: httpx.AsyncClient) -> None:
        self._soak, self._http, self._lock = soak, http, trio.Lock()
        self._life: trio.Event | None = None  # the daemon process of the session

    def _url(self, path: str) -> str:
        return f"{self._soak.steward.address}/ui/{path}"

    async def _sign_in(self) -> None:
        self._http.cookies.clear()
        form = {"token": self._soak.steward.token, "next": ""}
        headers = {"Origin": self._soak.steward.address}
        answer = await self._http.post(self._url("sign-in"), data=form, headers=headers)
        assert answer.status_code == 303, f"sign-in: {answer.status_code}"

    async def show(self, path: str) -> None:
        """Load a page, follow the events, and reload the page after changes, as its script does."""
        async with self._lock:
            if self._life is not (life := self._soak.is_up):
                await self._sign_in()
                self._life = life
        await self._load(path, "")
        changed = trio.Event()

        async def reload() -> None:
            tag = ""
            while True:
                await changed.wait()
                tag = await self._load(path, tag)
                await trio.sleep(PAUSE)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reload)
            async with self._http.stream("GET", self._url("events")) as stream:
                assert stream.status_code == 200, f"events: {stream.status_code}"
                async for chunk in stream.aiter_bytes():
                    if b'"Index"' in chunk:
                        changed.set()
            nursery.cancel_scope.cancel()

    async def _load(self, path: str, tag: str) -> str:
        """Load a page unless its entity tag is unchanged; return the current entity tag."""
        headers = {"If-None-Match": tag} if tag else {}
        with self._soak.timed("page"):
            answer = await self._http.get(self._url(path), headers=headers)
        assert answer.status_code in (200, 304), f"{path}: {answer.status_code}"
        return str(answer.headers.get("ETag", tag))


@asynccontextmanager
async def open_pages(soak: Soak, number: int) -> AsyncIterator[None]:
    """Keep this many pages open while the block runs."""
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for first in range(0, number, TABS):
            http = await stack.enter_async_context(client())
            browser = Browser(soak, http)
            for page in range(first, min(first + TABS, number)):
                nursery.start_soon(_keep_open, soak, browser, PAGES[page % len(PAGES)])
        yield
        nursery.cancel_scope.cancel()


async def _keep_open(soak: Soak, browser: Browser, path: str) -> None:
    """Keep a page open; reload the page when its event stream has ended."""
    while True:
        await soak.is_up.wait()
        with soak.excusing(f"page {path}"):
            await browser.show(path)
        await trio.sleep(soak.chance.uniform(0.5, 1.5))


# --- preparation ---


async def prepare(soak: Soak) -> None:
    """Create the objects that the load uses."""
    steward = soak.steward
    steward.token = (await steward.post("/v1/acl/bootstrap"))["SecretID"]
    script = soak.ledger.script
    await steward.register(short("report", step("g", script), ParameterizedJob={}))
    notified = {"steward_notify_to": "unreliable"}
    once = {"RestartPolicy": {"Attempts": 0, "Mode": "fail"}, "ReschedulePolicy": {"Attempts": 0}}
    failing = step("g", "exit 3") | once
    await steward.register(short("fails", failing, ParameterizedJob={}, Meta=notified))
    await steward.register(job("scaled", "batch", "/bin/sleep", "9999"))
    await steward.run_job(job("linger", "service", "/bin/sh", "-c", SAYS))
    for number, zone in enumerate(ZONES):
        soak.ledger.zones[f"tick-{number}"] = zone
        schedule = {"Enabled": True, "SpecType": "cron", "Spec": SPEC, "TimeZone": zone}
        every = {"steward_catch_up": "all"}
        group = step("g", script)
        await steward.register(short(f"tick-{number}", group, Periodic=schedule, Meta=every))
    soak.ledger.began = time.time()
    await meet_cloud(soak)
    role = {"token_ttl": "60s", "token_max_ttl": "60s"}
    answer = await steward.request("POST", "/v1/auth/cloudid/role/dev", role)
    assert answer.is_success, answer.text


async def meet_cloud(soak: Soak) -> None:
    """Get a new identity token of the virtual machine; each start of the daemon has a new cloud."""
    lines = soak.steward.log.read_text().splitlines()
    cloud = [line for line in lines if "the simulated cloud is at" in line][-1].rpartition(" ")[2]
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"{cloud}/metadata/identity/oauth2/token",
            params={"resource": devcloud.RESOURCE},
            headers={"Metadata": "true"},
        )
        token = str(answer.raise_for_status().json()["access_token"])
    soak.login = {
        "role": "dev",
        "jwt": token,
        "subscription_id": devcloud.SUBSCRIPTION,
        "resource_group_name": devcloud.GROUP,
        "vm_name": devcloud.MACHINE,
    }


async def stop_schedules(soak: Soak) -> None:
    soak.ledger.ended = time.time()
    for job_id in soak.ledger.zones:
        await soak.ask("DELETE", f"/v1/job/{job_id}")

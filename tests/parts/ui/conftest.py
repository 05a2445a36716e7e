"""A daemon's web interface over a store that tests fill, and browsers without scripts."""

import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from daemon.acl.keyring import Keyring
from daemon.acl.tokens import TokenStore
from daemon.api.routes import ROUTES
from daemon.api.vault_routes import ENDPOINTS
from daemon.app.context import MessageChannel
from daemon.config.settings import Settings
from daemon.identity.lazy_methods import LazyMethods
from daemon.ui.routes import PAGES
from daemon.web.connections import ConnectionListener
from daemon.web.listeners import listen
from daemon.web.server import open_web
from storage.errors import NotFound
from storage.queries import policies
from storage.records.acl import Policy, Token
from storage.records.group import TaskGroup
from storage.records.notification import ReceiverResult
from storage.records.service import CheckResult
from storage.records.usage import (
    AllocationUsage,
    AllocationUsageLine,
    DiskUsage,
    HostMemory,
    HostStats,
)
from storage.records.usage_history import SeriesKey, UsageBlock, UsageMetric
from storage.store import Store
from tests.http_clients import trusted
from tests.parts.api.requests import parts_of
from tests.parts.evals.cluster import Cluster
from tests.samples import NOW, job
from tests.unit.scheduler.world import node

NODE = "5f1c2a34-0000-4000-8000-000000000000"
READER = 'namespace "default" { policy = "read" } node { policy = "read" }'
PROOF = re.compile(r'name="proof" value="([^"]*)"')


class Runner:
    """The part of the runner that pages use."""

    node_id = "node"

    async def restart(self, alloc_id: str, task: str | None, *, all_tasks: bool = False) -> None:
        """Do nothing."""

    def __init__(self) -> None:
        self.found: list[CheckResult] = []

    def checks(self, alloc_id: str) -> list[CheckResult]:
        """Return the results of checks that the test sets."""
        return self.found

    async def usage(self, alloc_id: str) -> AllocationUsage:
        raise NotFound("it has ended")

    async def brief_usages(
        self, ids: Iterable[str], sees: Callable[[str], bool]
    ) -> list[AllocationUsageLine]:
        return []

    async def usage_history(
        self, key: SeriesKey, begin: int, end: int, step: int
    ) -> dict[str, UsageBlock] | None:
        """Return constant CPU usage, for the task `main` of an allocation or for another object."""
        count = (end - begin) // step
        return {"main" if key.kind == "alloc" else "": {UsageMetric.CPU: [500] * count}}

    def host_usage(self) -> HostStats:
        return host_stats()

    def egress(self) -> tuple[bool, str]:
        return False, "open"

    def git_isolation(self) -> tuple[bool, str]:
        return False, "git runs with the daemon's rights"

    async def run_exec_session(
        self, alloc_id: str, task: str, command: Sequence[str], line: MessageChannel, *, tty: bool
    ) -> None:
        """Print a prompt, and echo all input until the client disconnects."""
        said = f"{task} {' '.join(command)} {tty}"
        await line.send(msgspec.json.encode({"stdout": {"data": said}}))
        while (message := await line.receive()) is not None:
            await line.send(message)


def host_stats() -> HostStats:
    disk = DiskUsage(
        device="",
        mountpoint="/",
        size=2**30,
        used=2**29,
        available=2**29,
        used_percent=50,
        inodes_used_percent=1,
    )
    return HostStats(
        memory=HostMemory(total=2**30, available=2**29, used=2**29, free=2**29),
        cpu=[],
        cpu_ticks_consumed=0,
        disk_stats=[],
        alloc_dir_stats=disk,
        uptime=1,
        timestamp=NOW,
    )


class Receivers:
    """A receiver of notifications that always answers with an error."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def test(self, name: str) -> list[ReceiverResult]:
        """Record the name of the receiver, and fail."""
        self.asked.append(name)
        answer = {"name": "<night>", "kind": "webhook", "is_sent": False, "answer": "no"}
        return [ReceiverResult(milliseconds=7, **answer)]


class Browser:
    """A user's browser: it stores cookies, and sends forms like a real one."""

    def __init__(self, address: str, trusts: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.http = httpx.AsyncClient(
            base_url=address, timeout=60, trust_env=False, verify=trusts or trusted()
        )

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(path)

    async def proof(self) -> str:
        match = PROOF.search((await self.get("/ui/run")).text)
        return unescape(match[1]) if match else ""

    async def send(
        self, path: str, headers: dict[str, str] | None = None, /, **fields: str
    ) -> httpx.Response:
        """Send a form like a page of Steward; `headers` replace those of a browser."""
        given = {"proof": await self.proof(), **fields}
        said = {"Origin": self.address} if headers is None else headers
        return await self.http.post(path, data=given, headers=said)

    async def sign_in(self, secret: str, target: str = "") -> httpx.Response:
        return await self.send("/ui/sign-in", token=secret, next=target)


class Site:
    """The UI and its backend."""

    def __init__(self, cluster: Cluster, address: str, *, asks: bool, config: Settings) -> None:
        self.cluster, self.address = cluster, address
        self.runner = Runner()
        self.receivers: Any = Receivers()
        parts = parts_of(cluster.store, config, asks=asks)
        tokens = TokenStore(cluster.store, cluster.clock, Keyring(bytes(32)), asks=asks)
        self.parts = msgspec.structs.replace(
            parts,
            tasks=self.runner,
            clock=cluster.clock,
            tokens=tokens,
            notify=self.receivers,
        )
        self.browsers: list[Browser] = []

    def browser(self, trusts: ssl.SSLContext | None = None) -> Browser:
        self.browsers.append(Browser(self.address, trusts))
        return self.browsers[-1]

    async def token(self, rules: str = "", **fields: object) -> str:
        """Return the secret of a new token; without rules, the token has all permissions."""
        names: tuple[str, ...] = ("root",)
        if rules:
            names = ("theirs",)
            policy = Policy(name="theirs", rules=rules)
            await self.cluster.store.write(lambda tx: policies.put(tx, policy))
        token = Token(accessor="", policies=names, created_at=NOW, **fields)
        return (await self.parts.tokens.issue(token)).secret

    async def run(self, job_id: str = "web", *groups: TaskGroup, **fields: object) -> None:
        """Let a job run after its placement."""
        await self.cluster.register(job(job_id, *groups, **fields))
        await self.cluster.work()
        await self.cluster.run_all()


@pytest.fixture
async def master(site: Site) -> Browser:
    """Yield the browser of a user with all permissions."""
    browser = site.browser()
    await browser.sign_in(await site.token())
    return browser


@pytest.fixture
async def reader(site: Site) -> Browser:
    """Yield the browser of a user with read permissions only."""
    browser = site.browser()
    await browser.sign_in(await site.token(READER))
    return browser


async def opened(
    store: Store,
    tmp_path: Path,
    *,
    asks: bool,
    door: LazyMethods | None = None,
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Site]:
    """Run the web interface, with the login methods of `door`, and over TLS with a `context`."""
    cluster = Cluster(store)
    attributes = node().attributes | {"driver.raw_exec.unenforced.isolation": "none here"}
    await cluster.join(msgspec.structs.replace(node(), id=NODE, attributes=attributes))
    with listen("127.0.0.1", 0) as listener:
        origin = "https://localhost" if context else "http://127.0.0.1"
        address = f"{origin}:{listener.getsockname()[1]}"
        site = Site(cluster, address, asks=asks, config=Settings(data_dir=tmp_path))
        if door is not None:
            site.parts = msgspec.structs.replace(site.parts, door=door)
        places = [_place(listener, context)]
        async with open_web(site.parts, ROUTES, ENDPOINTS, places, PAGES):
            yield site
            for browser in site.browsers:
                await browser.http.aclose()


def _place(listener: socket.socket, context: ssl.SSLContext | None) -> ConnectionListener:
    return ConnectionListener(listener, context)


@pytest.fixture
async def site(store: Store, tmp_path: Path) -> AsyncIterator[Site]:
    """Run a daemon that requires tokens."""
    async for item in opened(store, tmp_path, asks=True):
        yield item


@pytest.fixture
async def open_site(store: Store, tmp_path: Path) -> AsyncIterator[Site]:
    """Run a site on which every user has all permissions."""
    async for item in opened(store, tmp_path, asks=False):
        yield item

"""A daemon that is killed at its crash points, its environment and its promises."""

import grp
import io
import os
import random
import tarfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio

from daemon.config.data_directory import alloc_dir, store_dir
from daemon.runner.logs import rotation
from storage.check import check
from storage.queries import cluster_runs
from storage.read_pool import ReadSnapshot, connect
from storage.store import FILE_NAME
from tests.crash.killable_daemon import ID_SIZE, KillableDaemon, open_fork_server
from tests.crash.ledger import Starts
from tests.fakes import fakecloud
from tests.fakes.receiver import Receiver, open_receiver
from tests.fakes.slurm.world import FakeSlurm
from tests.http_clients import trusted
from tests.service.slurm.cluster import free_ports
from tests.service.slurm.jobs import POOL
from tests.task_logs import log_of, path_of
from tests.time_limits import HAPPENS_WITHIN
from tests.wire.login import CLIENT_ID, CLIENT_SECRET, RESOURCE, URLS, cloud

CLOUD_NAMES = {
    "tenant_id": fakecloud.TENANT,
    "resource": RESOURCE,
    "client_id": CLIENT_ID,
    "client_secret": CLIENT_SECRET,
    "max_retries": 1,
    "retry_delay": 1,
    "max_retry_delay": 1,
}
_MACHINE = f"/subscriptions/{fakecloud.SUB_A}/resourceGroups/rg-one/providers/Microsoft.Compute/virtualMachines/vm-sys"
_GONE = 404


_AT_WORK = ("running", "stopping")
_GOOD = "succeeded"
# The final states of the steps in each workflow of `job_scenes.py`, unless a user cancels the run.
RESULTS = {
    "chain": dict.fromkeys("abc", _GOOD),
    "diamond": dict.fromkeys("abcd", _GOOD),
    "handled": {"a": "failed", "b": "skipped", "page": _GOOD},
}


class World:
    """One daemon on one directory through many kills, and its environment."""

    without_pool: tuple[str, ...]  # the daemon's arguments without the pool

    def __init__(
        self, steward: KillableDaemon, cloud_url: str, receiver: Receiver, files_port: int
    ) -> None:
        self.steward, self.cloud_url = steward, cloud_url
        self.receiver, self.files_port = receiver, files_port
        self.starts = Starts(steward.directory)
        self.shared = str(steward.directory / "shared")
        self.is_root = os.geteuid() == 0
        self._facts: dict[str, Any] = {}  # path -> its expected contents; None: not found
        self._tokens: set[str] = set()
        self._again: Counter[str] = Counter()
        self._stopped: dict[str, bool] = {}
        self._number = 0

    # --- operations and their promises ---

    async def change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        at: str = "",
        shows: Any = None,
        headers: Any = None,
        **query: object,
    ) -> Any:
        """Send a change. After the response, the path `at` must show the values in `shows`."""
        if at:
            self._facts.pop(at, None)  # until the response, the old and the new state are valid
        if raw is None and body is not None:
            raw = msgspec.json.encode(body)
        answer = await self.send(method, path, raw=raw, headers=headers, **query)
        if at:
            self._facts[at] = shows
        return answer.json() if answer.content else None

    async def send(
        self, method: str, path: str, *, raw: bytes | None, headers: Any = None, **query: object
    ) -> httpx.Response:
        """Send a body, and return the response, which must be a success."""
        answer = await self.steward._http.request(
            method,
            f"{self.steward.address}{path}",
            params={name: str(value) for name, value in query.items()} or None,
            content=raw,
            headers={"X-Service-Token": self.steward.token, **(headers or {})},
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    async def register(self, definition: dict[str, Any], **shows: Any) -> None:
        """Register a job, and promise its definition."""
        at = f"/v1/job/{definition['ID']}"
        await self.change(
            "POST",
            "/v1/jobs",
            {"Job": definition},
            at=at,
            shows={"ID": definition["ID"], "Stop": False, **shows},
        )

    async def stop(self, job_id: str, *, purge: bool = False) -> None:
        """Stop or purge a job."""
        at = f"/v1/job/{job_id}"
        query = {"purge": "true"} if purge else {}
        await self.change("DELETE", at, at=at, shows=None if purge else {"Stop": True}, **query)

    def promise(self, at: str, shows: Any) -> None:
        """Record an object from a response as a promise."""
        self._facts[at] = shows

    def promise_token(self, secret: str) -> None:
        """Record a token that must remain valid."""
        self._tokens.add(secret)

    def forget_tokens(self) -> None:
        self._tokens.clear()

    def forget(self, prefix: str) -> None:
        """Drop the promises below a path."""
        self._facts = {at: shows for at, shows in self._facts.items() if not at.startswith(prefix)}

    def starts_again(self, alloc_id: str) -> None:
        """Record that the task of an allocation may start again."""
        self._again[alloc_id] += 1

    def fresh(self, stem: str) -> str:
        self._number += 1
        return f"{stem}-{os.getpid()}-{self._number}-{len(self.starts.counts())}"

    async def refused(self, path: str, *, token: str) -> None:
        answer = await self.steward_as(token, "GET", path)
        assert answer.status_code == 403, answer.text

    async def steward_as(self, token: str, method: str, path: str) -> httpx.Response:
        return await self.steward._http.request(
            method, f"{self.steward.address}{path}", headers={"X-Service-Token": token}
        )

    async def mint(self) -> str:
        """Return a token of the fake cloud for one of the cloud's virtual machines."""
        async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
            answer = await client.post(
                f"{self.cloud_url}/_control/mint",
                json={"resource_id": _MACHINE, "audience": RESOURCE},
            )
        return str(answer.json()["access_token"])

    async def spoil(self, service: str, path: str) -> None:
        """Make a service of the fake cloud refuse requests to `path`.

        If `service` is empty, all services accept requests again.
        """
        at = f"{self.cloud_url}/_control/faults"
        async with httpx.AsyncClient(verify=trusted(), timeout=HAPPENS_WITHIN) as client:
            if not service:
                await client.delete(at)
                return
            body = {"error": {"code": "Authorization_RequestDenied", "message": "no"}}
            await client.post(
                at, json={"service": service, "path": path, "status": 403, "body": body}
            )

    def may_go_on(self, alloc_id: str) -> None:
        """Let a waiting task continue."""
        (alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / "more").touch()

    def spoil_log(self, alloc_id: str) -> None:
        """Replace a log by another kind of file, as a task can."""
        log = alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / "logs" / "t.stderr.0"
        log.unlink()
        os.mkfifo(log)

    async def pause_evaluations(self, *, is_paused: bool) -> None:
        """Pause or continue the evaluation of jobs, unless it is already paused or running."""
        path = "/v1/operator/scheduler/configuration"
        config = (await self.steward.get(path))["SchedulerConfig"]
        if config["PauseEvalBroker"] != is_paused:
            await self.change("POST", path, {**config, "PauseEvalBroker": is_paused})

    async def until_checked(self, alloc_id: str, number: int) -> None:
        """Wait until this many checks of an allocation have succeeded."""
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                shown = await self.steward.get(f"/v1/client/allocation/{alloc_id}/checks")
                if sum(item["Status"] == "success" for item in shown.values()) >= number:
                    return
                await self.moment()

    async def until_dead(self, prefix: str) -> None:
        """Wait until every job with this prefix is dead."""
        await self.steward.until(
            "/v1/jobs", lambda shown: all(item["Status"] == "dead" for item in shown), prefix=prefix
        )

    async def until_trimmed(self, alloc_id: str, most: int) -> None:
        """Wait until a task's log uses at most this disk space, and no process holds it open."""
        log = log_of(self.steward.data_dir, alloc_id, "t", "stdout")
        with trio.fail_after(HAPPENS_WITHIN):
            while _room(path_of(log)) > most:
                await self.moment()
        await self.until_gone(rotation._mark(log))

    async def until_there(self, alloc_id: str, name: str) -> None:
        """Wait until a task has created a file in its allocation's shared directory."""
        path = alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / name
        with trio.fail_after(HAPPENS_WITHIN):
            while not path.exists():
                await self.moment()

    async def until_gone(self, *paths: Path) -> None:
        """Wait until none of these files exists."""
        with trio.fail_after(HAPPENS_WITHIN):
            while any(path.exists() for path in paths):
                await self.moment()

    async def until_pool(self) -> None:
        """Wait until the cluster accepts tasks."""
        await self.steward.until(
            f"/v1/node/pool/{POOL}/nodes",
            lambda shown: [item["Status"] for item in shown] == ["ready"],
        )

    async def until_forgotten(self, alloc_id: str) -> None:
        """Wait until the store has no cluster data of an allocation."""
        with (
            trio.fail_after(HAPPENS_WITHIN),
            closing(
                connect(store_dir(self.steward.data_dir) / FILE_NAME, read_only=True)
            ) as connection,
        ):
            while cluster_runs.of_allocation(ReadSnapshot(connection), alloc_id):
                await self.moment()

    async def until_started(self, alloc_id: str) -> int:
        """Wait until a task has recorded its process, and return the pid."""
        with trio.fail_after(HAPPENS_WITHIN):
            while alloc_id not in self.starts.pids():
                await self.moment()
        return self.starts.pids()[alloc_id]

    async def until_audited(self, status: int) -> None:
        """Wait until the newest audit entry has this status."""
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                shown = await self.steward.get("/v1/operator/audit", status=status)
                if any(item["Status"] == status for item in shown):
                    return
                await self.moment()

    async def moment(self) -> None:
        """Return after a short time, because the absence of an event cannot be awaited."""
        await self.steward.get("/v1/jobs", index=10**9, wait="50ms")

    async def settled(self) -> None:
        """Wait until all visible pending work is done."""
        await self._until_evaluated()
        await self._at_rest()
        await self.moment()

    # --- after a crash ---

    async def examine(self) -> None:
        """Raise `AssertionError` unless every promise is kept and no other task runs."""
        await self.pause_evaluations(is_paused=False)
        await self._until_evaluated()
        for at, shows in self._facts.items():
            answer = await self.steward.request("GET", at)
            if shows is None:
                assert answer.status_code == _GONE, f"{at} still exists: {answer.text}"
            else:
                assert answer.is_success, f"{at} is lost: {answer.status_code} {answer.text}"
                assert _holds(answer.json(), shows), f"{at} does not contain {shows}: {answer.text}"
        for token in self._tokens:
            answer = await self.steward_as(token, "GET", "/v1/auth/token/lookup-self")
            assert answer.is_success, answer.text
        wanted = await self._at_rest()
        twice = {one: n for one, n in self.starts.counts().items() if n > 1 + self._again[one]}
        assert not twice, f"started twice: {twice}"
        orphans = await self._orphans(wanted)
        with trio.move_on_after(HAPPENS_WITHIN):
            while orphans:
                await self.moment()
                orphans = await self._orphans(wanted := await self._at_rest())
        assert not orphans, f"expected allocations: {wanted}; faults: {orphans}"
        await self._examine_runs()
        assert check(store_dir(self.steward.data_dir)) == []

    async def _examine_runs(self) -> None:
        """Raise `AssertionError` unless runs without a running task have ended as they must."""
        for run in await self.steward.get("/v1/runs"):
            wanted = RESULTS.get(run["JobID"])
            if wanted is None:
                continue
            path = f"/v1/job/{run['JobID']}/run"
            shown = await self.steward.until(
                path, lambda shown: shown["Status"] not in _AT_WORK, number=run["Number"]
            )
            found = {step["Name"]: step["State"] for step in shown["Steps"]}
            canceled = shown["Status"] == "canceled"
            assert canceled or found == wanted, f"{run['JobID']}: {shown}"

    async def _until_evaluated(self) -> None:
        await self.steward.until(
            "/v1/evaluations", lambda shown: all(item["Status"] != "pending" for item in shown)
        )

    async def _at_rest(self) -> set[str]:
        """Wait until no allocation is about to change; return the IDs of the running ones."""
        shown = await self.steward.until(
            "/v1/allocations", lambda shown: all(map(_has_settled, shown)), namespace="*"
        )
        return {alloc["ID"] for alloc in shown if alloc["ClientStatus"] == "running"}

    async def _orphans(self, wanted: set[str]) -> dict[str, set[str]]:
        """Return the allocations whose processes or files are wrong, by kind of fault."""
        directory = alloc_dir(self.steward.data_dir)
        shown = await self.steward.get("/v1/allocations", namespace="*")
        lying = {item for item in _listed(directory) if len(item) == ID_SIZE}
        alive, begun = self.starts.alive(), self.starts.pids().keys()
        unwanted = (lying | begun) - wanted
        found = {
            "directories": lying - {item["ID"] for item in shown},
            "tasks": alive - wanted,
            "missing": (wanted & begun) - alive,
            "processes": self.steward.allocations_at_work() & unwanted,
        }
        return {kind: which for kind, which in found.items() if which}

    async def clear(self) -> None:
        """End all freezes, purge every job and make every node eligible, as before the first scene."""
        self.forget("/v1/job/")
        for freeze in await self.steward.get("/v1/freezes", active="true"):
            await self.steward.request("DELETE", f"/v1/freeze/{freeze['ID']}")
        for node in await self.steward.get("/v1/nodes"):
            if node["Drain"] or node["SchedulingEligibility"] != "eligible":
                self.forget(f"/v1/node/{node['ID']}")
                opened = {"DrainSpec": None, "MarkEligible": True}
                await self.steward.post(f"/v1/node/{node['ID']}/drain", opened)
        with trio.fail_after(HAPPENS_WITHIN):
            while jobs := await self.steward.get("/v1/jobs", namespace="*"):
                for job in jobs:
                    await self.steward.request("DELETE", f"/v1/job/{job['ID']}", purge=True)
                await self.moment()  # a trigger can start a child between the list and its purge


def _room(path: Path) -> int:
    """Return the disk usage of a file in bytes."""
    return os.stat(path).st_blocks * 512


def _listed(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.exists() else []


def _has_settled(item: dict[str, Any]) -> bool:
    if item["DesiredStatus"] != "run":
        return item["ClientStatus"] in ("complete", "failed", "lost")
    return item["ClientStatus"] != "pending"


def _holds(found: Any, shows: Any) -> bool:
    """Return whether the response contains all expected values."""
    if isinstance(shows, dict):
        return isinstance(found, dict) and all(
            name in found and _holds(found[name], value) for name, value in shows.items()
        )
    return bool(found == shows)


@asynccontextmanager
async def open_world(
    directory: Path, slurm: FakeSlurm | None = None, **variables: str
) -> AsyncIterator[World]:
    """Create a world with a daemon that is not started; remove all leftovers at the end."""
    _share(directory / "shared")
    with cloud() as cloud_url:
        # Not an ephemeral port: another process could take one while the daemon is down.
        own, cloud_port, pool_port = map(str, free_ports(random.Random(os.urandom(8)), 3))
        config = directory / "steward.toml"
        urls = "\n".join(f'cloud_{name}_url = "{cloud_url}"' for name in URLS)
        tell = f'["/bin/sh", "-c", "cat >> {directory}/told"]'
        config.write_text(
            f'{urls}\ndev_cloud_port = {cloud_port}\naudit_file = "{directory}/audit.log"\nsnapshot_hours = 1\nsnapshot_keep = 1\n'
            f'socket = "{directory}/steward.sock"\nartifact_paths = ["{directory}/shared"]\n'
            f"retention_allocs = 5\nretention_evals = 20\nretention_events = 50\n"
            f'operator_group = "{grp.getgrgid(os.getegid()).gr_name}"\n'
            f"notify_commands = {{ tell = {tell} }}\n"
        )
        settings = config
        if slurm is not None:
            settings = directory / "pooled.toml"
            settings.write_text(f"{config.read_text()}{_pool(directory, pool_port)}")
            variables = {**variables, "PATH": slurm.path}
        async with (
            open_fork_server(directory, variables) as server,
            open_receiver() as receiver,
            trio.open_nursery() as nursery,
        ):
            steward = KillableDaemon(directory, ("--config", str(settings)), server, variables)
            steward._port = own
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(
                partial(trio.serve_listeners, partial(_hand_out, directory / "shared"), listeners)
            )
            try:
                world = World(steward, cloud_url, receiver, port)
                world.without_pool = ("--dev", "--acl", "--config", str(config))
                yield world
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await steward.close()


def _pool(directory: Path, port: str) -> str:
    """Return settings with a pool; hosts reach the daemon at a fixed port."""
    hosts = directory / "hosts"
    hosts.mkdir(mode=0o755)
    return (
        f'wrapper_port = {port}\n[pools.{POOL}]\nengine = "slurm"\npartition = "main"\n'
        f'directory = "{hosts}"\n'
    )


def _share(shared: Path) -> None:
    """Create the directory of artifacts."""
    (shared / "tree" / "deep").mkdir(parents=True)
    (shared / "tree" / "deep" / "file").write_text("x")
    (shared / "tree" / "link").symlink_to("deep/file")
    (shared / "plain.txt").write_text("plain")
    with tarfile.open(shared / "tree.tar.gz", "w:gz") as archive:
        archive.add(shared / "tree", "tree")


async def _hand_out(shared: Path, stream: trio.SocketStream) -> None:
    """Answer one request with a file."""
    async with stream:
        try:
            asked = io.BytesIO(await stream.receive_some()).readline().decode().split()
            data = (shared / asked[1].removeprefix("/").partition("?")[0]).read_bytes()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode() + data)
        except (trio.BrokenResourceError, OSError, IndexError):
            return

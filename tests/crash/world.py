"""A daemon that is killed at its points, those around it, and what it has promised."""

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

from daemon.datadir import alloc_dir, store_dir
from daemon.runner import rotation
from daemon.runner.logs import TaskLog
from storage.check import check
from storage.queries import cluster_runs
from storage.readers import Snapshot, connect
from storage.records.task import LogConfig
from storage.store import FILE_NAME
from tests.crash.ledger import Starts
from tests.crash.mortal import ID_SIZE, Mortal, open_launcher
from tests.fakes import fakecloud
from tests.fakes.receiver import Receiver, open_receiver
from tests.fakes.slurm.world import FakeSlurm
from tests.patience import HAPPENS_WITHIN
from tests.service.slurm.cluster import free_ports
from tests.service.slurm.jobs import POOL
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


class World:
    """One daemon on one directory through many deaths, and who is around it."""

    without_pool: tuple[str, ...]  # its flags when its pool has left the settings

    def __init__(
        self, steward: Mortal, cloud_url: str, receiver: Receiver, files_port: int
    ) -> None:
        self.steward, self.cloud_url = steward, cloud_url
        self.receiver, self.files_port = receiver, files_port
        self.starts = Starts(steward.directory)
        self.shared = str(steward.directory / "shared")
        self.is_root = os.geteuid() == 0
        self._facts: dict[str, Any] = {}  # a path, and what is to be found there; None: nothing
        self._tokens: set[str] = set()
        self._again: Counter[str] = Counter()
        self._stopped: dict[str, bool] = {}
        self._number = 0

    # ---- what is done, and what is promised with it ---------------------------------------------

    async def change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        at: str = "",
        shows: Any = None,
        headers: Any = None,
        **query: object,
    ) -> Any:
        """Change something; from the answer on it is promised that `at` shows this."""
        if at:
            self._facts.pop(at, None)  # until it is answered either may be so
        answer = await self.steward._http.request(
            method,
            f"{self.steward.address}{path}",
            params={name: str(value) for name, value in query.items()} or None,
            content=None if body is None else msgspec.json.encode(body),
            headers={"X-Service-Token": self.steward.token, **(headers or {})},
        )
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        if at:
            self._facts[at] = shows
        return answer.json() if answer.content else None

    async def register(self, definition: dict[str, Any], **shows: Any) -> None:
        """Register a job, which is then there as given."""
        at = f"/v1/job/{definition['ID']}"
        await self.change(
            "POST",
            "/v1/jobs",
            {"Job": definition},
            at=at,
            shows={"ID": definition["ID"], "Stop": False, **shows},
        )

    async def stop(self, job_id: str, *, purge: bool = False) -> None:
        """Stop a job, or remove it."""
        at = f"/v1/job/{job_id}"
        query = {"purge": "true"} if purge else {}
        await self.change("DELETE", at, at=at, shows=None if purge else {"Stop": True}, **query)

    def promise(self, at: str, shows: Any) -> None:
        """Note what an answer says that there is."""
        self._facts[at] = shows

    def promise_token(self, secret: str) -> None:
        """Note a token that must be known."""
        self._tokens.add(secret)

    def forget_tokens(self) -> None:
        self._tokens.clear()

    def forget(self, prefix: str) -> None:
        """Expect nothing any more of what is below a path."""
        self._facts = {at: shows for at, shows in self._facts.items() if not at.startswith(prefix)}

    def starts_again(self, alloc_id: str) -> None:
        """Note that the task of an allocation may start once more."""
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
        """Return a token of the cloud for one of its machines."""
        async with httpx.AsyncClient(timeout=HAPPENS_WITHIN) as client:
            answer = await client.post(
                f"{self.cloud_url}/_control/mint",
                json={"resource_id": _MACHINE, "audience": RESOURCE},
            )
        return str(answer.json()["access_token"])

    async def spoil(self, service: str, path: str) -> None:
        """Have a service of the cloud refuse what ends so; without names, nothing any more."""
        at = f"{self.cloud_url}/_control/faults"
        async with httpx.AsyncClient(timeout=HAPPENS_WITHIN) as client:
            if not service:
                await client.delete(at)
                return
            body = {"error": {"code": "Authorization_RequestDenied", "message": "no"}}
            await client.post(
                at, json={"service": service, "path": path, "status": 403, "body": body}
            )

    def may_go_on(self, alloc_id: str) -> None:
        """Let a task go on that waits for this."""
        (alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / "more").touch()

    def spoil_log(self, alloc_id: str) -> None:
        """Put something else in the place of a log, as a task can."""
        log = alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / "logs" / "t.stderr.0"
        log.unlink()
        os.mkfifo(log)

    async def until_checked(self, alloc_id: str, number: int) -> None:
        """Return when so many checks of an allocation have succeeded."""
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                shown = await self.steward.get(f"/v1/client/allocation/{alloc_id}/checks")
                if sum(one["Status"] == "success" for one in shown.values()) >= number:
                    return
                await self.moment()

    async def until_dead(self, prefix: str) -> None:
        """Return when every job whose name begins so is over."""
        await self.steward.until(
            "/v1/jobs", lambda shown: all(one["Status"] == "dead" for one in shown), prefix=prefix
        )

    async def until_trimmed(self, alloc_id: str, most: int) -> None:
        """Return when the log of a task takes no more than this, and is held still by nobody."""
        log = TaskLog(f"{alloc_dir(self.steward.data_dir)}/{alloc_id}", "t", "stdout", LogConfig())
        with trio.fail_after(HAPPENS_WITHIN):
            while _room(log.path) > most:
                await self.moment()
        await self.until_gone(rotation._mark(log))

    async def until_there(self, alloc_id: str, name: str) -> None:
        """Return when a task has made a file in what its allocation shares."""
        path = alloc_dir(self.steward.data_dir) / alloc_id / "alloc" / name
        with trio.fail_after(HAPPENS_WITHIN):
            while not path.exists():
                await self.moment()

    async def until_gone(self, *paths: Path) -> None:
        """Return when none of these files is there."""
        with trio.fail_after(HAPPENS_WITHIN):
            while any(one.exists() for one in paths):
                await self.moment()

    async def until_pool(self) -> None:
        """Return when the cluster takes tasks."""
        await self.steward.until(
            f"/v1/node/pool/{POOL}/nodes",
            lambda shown: [one["Status"] for one in shown] == ["ready"],
        )

    async def until_forgotten(self, alloc_id: str) -> None:
        """Return when the store has nothing of what an allocation had in the cluster."""
        with (
            trio.fail_after(HAPPENS_WITHIN),
            closing(
                connect(store_dir(self.steward.data_dir) / FILE_NAME, read_only=True)
            ) as connection,
        ):
            while cluster_runs.of_allocation(Snapshot(connection), alloc_id):
                await self.moment()

    async def until_started(self, alloc_id: str) -> int:
        """Return the process of a task, when it has written that down."""
        with trio.fail_after(HAPPENS_WITHIN):
            while alloc_id not in self.starts.pids():
                await self.moment()
        return self.starts.pids()[alloc_id]

    async def until_audited(self, status: int) -> None:
        """Return when the newest entry of the audit is of this status."""
        with trio.fail_after(HAPPENS_WITHIN):
            while True:
                shown = await self.steward.get("/v1/operator/audit", status=status)
                if any(one["Status"] == status for one in shown):
                    return
                await self.moment()

    async def moment(self) -> None:
        """Return a little later: the daemon itself waits for what does not come."""
        await self.steward.get("/v1/jobs", index=10**9, wait="50ms")

    async def settled(self) -> None:
        """Return when what was begun has come to rest, as far as it can be seen."""
        await self._until_evaluated()
        await self._at_rest()
        await self.moment()

    # ---- after a crash --------------------------------------------------------------------------

    async def examine(self) -> None:
        """Raise `AssertionError` unless everything promised is so, and nothing else runs."""
        await self._until_evaluated()
        for at, shows in self._facts.items():
            answer = await self.steward.request("GET", at)
            if shows is None:
                assert answer.status_code == _GONE, f"{at} is there: {answer.text}"
            else:
                assert answer.is_success, f"{at} is gone: {answer.status_code} {answer.text}"
                assert _holds(answer.json(), shows), f"{at} shows not {shows}: {answer.text}"
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
        assert not orphans, f"wanted: {wanted}, and otherwise: {orphans}"
        assert check(store_dir(self.steward.data_dir)) == []

    async def _until_evaluated(self) -> None:
        await self.steward.until(
            "/v1/evaluations", lambda shown: all(one["Status"] != "pending" for one in shown)
        )

    async def _at_rest(self) -> set[str]:
        """Return the allocations that run, when each has come to where it is to stay."""
        shown = await self.steward.until(
            "/v1/allocations", lambda shown: all(map(_has_settled, shown)), namespace="*"
        )
        return {one["ID"] for one in shown if one["ClientStatus"] == "running"}

    async def _orphans(self, wanted: set[str]) -> dict[str, set[str]]:
        """Return the allocations of which there is more than there is to be, or less."""
        directory = alloc_dir(self.steward.data_dir)
        shown = await self.steward.get("/v1/allocations", namespace="*")
        lying = {one for one in _listed(directory) if len(one) == ID_SIZE}
        alive, begun = self.starts.alive(), self.starts.pids().keys()
        unwanted = (lying | begun) - wanted
        found = {
            "directories": lying - {one["ID"] for one in shown},
            "tasks": alive - wanted,
            "missing": (wanted & begun) - alive,
            "processes": self.steward.allocations_at_work() & unwanted,
        }
        return {kind: which for kind, which in found.items() if which}

    async def clear(self) -> None:
        """Remove every job and open every node, so that the next scene begins as the first did."""
        self.forget("/v1/job/")
        for one in await self.steward.get("/v1/nodes"):
            if one["Drain"] or one["SchedulingEligibility"] != "eligible":
                self.forget(f"/v1/node/{one['ID']}")
                opened = {"DrainSpec": None, "MarkEligible": True}
                await self.steward.post(f"/v1/node/{one['ID']}/drain", opened)
        for one in await self.steward.get("/v1/jobs", namespace="*"):
            await self.steward.request("DELETE", f"/v1/job/{one['ID']}", purge=True)
        await self.steward.until("/v1/jobs", lambda shown: not shown)


def _room(path: str) -> int:
    """Return how many bytes a file takes on its disk."""
    return os.stat(path).st_blocks * 512


def _listed(directory: Path) -> list[str]:
    return os.listdir(directory) if directory.exists() else []


def _has_settled(one: dict[str, Any]) -> bool:
    if one["DesiredStatus"] != "run":
        return one["ClientStatus"] in ("complete", "failed", "lost")
    return one["ClientStatus"] != "pending"


def _holds(found: Any, shows: Any) -> bool:
    """Tell whether all that is to be shown is found."""
    if isinstance(shows, dict):
        return isinstance(found, dict) and all(
            name in found and _holds(found[name], value) for name, value in shows.items()
        )
    return bool(found == shows)


@asynccontextmanager
async def open_world(
    directory: Path, slurm: FakeSlurm | None = None, **variables: str
) -> AsyncIterator[World]:
    """Make a world, with its daemon not yet begun; whatever it leaves behind ends with it."""
    _share(directory / "shared")
    with cloud() as cloud_url:
        # Not of those that connections get: somebody else's could have it while there is no daemon.
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
            open_launcher(directory, variables) as orders,
            open_receiver() as receiver,
            trio.open_nursery() as nursery,
        ):
            steward = Mortal(directory, ("--config", str(settings)), orders)
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
    """Return settings with a pool; hosts reach the daemon at a port that stays."""
    hosts = directory / "hosts"
    hosts.mkdir(mode=0o755)
    return (
        f'wrapper_port = {port}\n[pools.{POOL}]\nengine = "slurm"\npartition = "main"\n'
        f'directory = "{hosts}"\n'
    )


def _share(shared: Path) -> None:
    """Make what artifacts are fetched from."""
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

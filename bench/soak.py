"""One hour of mixed load with churn: nothing may grow or slow down.

    python -m bench.soak [--minutes 60] [--warm 5] [--span 10] [--seed 1] [--directory /dev/shm]

The daemon has tokens, a small fake cloud and a short retention. The load is four times as fast
during the warm-up, so that the warm-up fills the retention. Clients register, update, scale, stop
and dispatch jobs. They run commands in tasks and read logs and events. They log in, change
variables and collect garbage.

Each minute records the daemon's resources, call latencies and the host's limits. The benchmark
compares the last minutes with the first. Latencies are also shown as shares of the host's limit in
the same minute, because other processes can use the host. Job versions are never deleted, so the
store's size excludes them. The exit status is 1 if anything grew, slowed down or failed.
"""

import argparse
import json
import math
import os
import random
import re
import sqlite3
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import httpx
import msgspec
import trio

from bench.limits import fdatasync_per_s, fork_exec_per_s
from daemon.config.data_directory import store_dir
from daemon.identity import devcloud
from storage.store import FILE_NAME
from tests.service.daemon import Steward, open_steward
from tests.service.streaming import open_stream
from tests.websocket_client import talk

SETTINGS = """
dev_cloud_port = 0
retention_days = 0
retention_allocs = 20
retention_evals = 20
retention_deployments = 10
retention_events = 2000
retention_notifications = 10
audit_retention_entries = 2000
gc_interval_seconds = 10
gc_max_allocs = 50
log_retention_mb = 5
"""
WARMING = 4  # factor of the load during the warm-up
SLOWER = 1.2  # tolerated factor of the latency at the end
# Permitted growth from start to end: relative, and absolute.
ROOM = {
    "pss_mib": (0.03, 2.0),
    "anonymous_mib": (0.03, 2.0),
    "descriptors": (0.0, 8.0),
    "threads": (0.0, 4.0),
    "passing_mib": (0.05, 0.5),
    "files_mib": (0.05, 5.0),
}
FOR_EVER = ("job_versions", "sqlite_autoindex_job_versions_1", "job_version_states")
LINE = "x" * 1000
SAYS = f"while :; do echo {LINE}; sleep 0.2; done"

Work = Callable[["Soak"], Awaitable[None]]


class Minute(msgspec.Struct, frozen=True):
    """Measurements of one minute; latencies are medians in ms."""

    number: int
    tables: dict[str, float]
    fork_exec_per_s: float
    fdatasync_per_s: float
    held: dict[str, float]
    processor: float
    took: dict[str, float]
    calls: int
    faults: int


class Soak:
    """Load on one daemon, and its results."""

    def __init__(self, steward: Steward, chance: random.Random) -> None:
        self.steward, self.chance = steward, chance
        self.took = defaultdict[str, list[float]](list)
        self.faults: list[str] = []
        self.finishing = trio.Lock()  # a child with a waiting client is not garbage
        self.turn = 0
        self.pace = WARMING
        self.login: dict[str, str] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.took[name].append(1000 * (time.perf_counter() - begun))

    async def repeat(self, every: float, work: Work) -> None:
        """Repeat an operation, with a pause of about this many seconds."""
        while True:
            await trio.sleep(every * self.chance.uniform(0.7, 1.3) / self.pace)
            try:
                await work(self)
            except Exception as error:
                self.faults.append(f"{work.__name__}: {error!r}"[:500])


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


# --- load ---


async def dispatch(soak: Soak) -> None:
    async with soak.finishing:
        begun = time.perf_counter()
        with soak.timed("dispatch"):
            done = await soak.steward.post("/v1/job/report/dispatch", {"Payload": "eA=="})
        child = done["DispatchedJobID"].replace("/", "%2F")
        await soak.steward.until(f"/v1/job/{child}", lambda shown: shown["Status"] == "dead")
        soak.took["dispatched and ended"].append(1000 * (time.perf_counter() - begun))


async def update(soak: Soak) -> None:
    soak.turn += 1
    changed = job(f"web-{soak.turn % 4}", "service", "/bin/sleep", "9999", turn=soak.turn)
    with soak.timed("update"):
        await soak.steward.register(changed)


async def scale(soak: Soak) -> None:
    wanted = {"Target": {"Group": "g"}, "Count": soak.chance.randint(1, 3), "Message": "soak"}
    with soak.timed("scale"):
        await soak.steward.post("/v1/job/scaled/scale", wanted)


async def come_and_go(soak: Soak) -> None:
    with soak.timed("register to running"):
        await soak.steward.run_job(job("gone", "service", "/bin/sleep", "9999"))
    with soak.timed("stop"):
        await soak.steward.delete("/v1/job/gone", purge=True)


async def command(soak: Soak) -> None:
    (allocation,) = await soak.steward.allocations("linger", "running")
    path = f"/v1/client/allocation/{allocation['ID']}/exec"
    asked = {"task": "main", "command": json.dumps(["/bin/echo", "hello"])}
    headers = [(b"X-Service-Token", soak.steward.token.encode())]
    with soak.timed("exec"):
        async with talk(soak.steward.address, path, headers=headers, **asked) as socket:
            frames = await socket.all()
    assert frames[-1:] == [{"exited": True, "result": {}}], frames


async def logs(soak: Soak) -> None:
    (allocation,) = await soak.steward.allocations("linger", "running")
    asked = {"task": "main", "type": "stdout", "plain": True, "origin": "end", "offset": 50_000}
    with soak.timed("logs"):
        answer = await soak.steward.request(
            "GET", f"/v1/client/fs/logs/{allocation['ID']}", **asked
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
    async with httpx.AsyncClient(base_url=soak.steward.address, headers=mine) as client:
        (await client.get("/v1/auth/token/lookup-self")).raise_for_status()
        if soak.chance.random() < 0.5:  # the other tasks end without a request
            (await client.post("/v1/auth/token/revoke-self")).raise_for_status()


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


async def follow(soak: Soak) -> None:
    with trio.move_on_after(soak.chance.uniform(5, 40)):
        async with open_stream(soak.steward, "/v1/event/stream") as stream:
            while await stream.line():
                pass


WORK: tuple[tuple[float, Work], ...] = (
    (0.6, dispatch),
    (3, update),
    (4, scale),
    (6, come_and_go),
    (3, command),
    (2, logs),
    (1, read),
    (2, log_in),
    (3, remember),
    (30, collect),
    (1, follow),
    (1, follow),
    (1, follow),
)


# --- daemon ---


async def prepare(soak: Soak) -> None:
    """Create the objects that the load uses."""
    steward = soak.steward
    steward.token = (await steward.post("/v1/acl/bootstrap"))["SecretID"]
    await steward.register(job("report", "batch", "/bin/true", ParameterizedJob={}))
    await steward.register(job("scaled", "batch", "/bin/sleep", "9999"))
    await steward.run_job(job("linger", "service", "/bin/sh", "-c", SAYS))
    lines = steward.log.read_text().splitlines()
    cloud = next(line for line in lines if "small cloud" in line).rpartition(" ")[2]
    token = await machine_token(cloud)
    soak.login = {
        "role": "dev",
        "jwt": token,
        "subscription_id": devcloud.SUBSCRIPTION,
        "resource_group_name": devcloud.GROUP,
        "vm_name": devcloud.MACHINE,
    }
    role = {"token_ttl": "60s", "token_max_ttl": "60s"}
    answer = await steward.request("POST", "/v1/auth/cloudid/role/dev", role)
    assert answer.is_success, answer.text


async def machine_token(cloud: str) -> str:
    """Return the token that the metadata service issues to the virtual machine."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(
            f"{cloud}/metadata/identity/oauth2/token",
            params={"resource": devcloud.RESOURCE},
            headers={"Metadata": "true"},
        )
        return str(answer.raise_for_status().json()["access_token"])


def held(steward: Steward) -> dict[str, float]:
    """Return the daemon's present resources."""
    process = Path(f"/proc/{steward.pid}")
    rollup = (process / "smaps_rollup").read_text()
    kib = {
        name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", rollup, re.MULTILINE)
    }
    # Ignore files that disappear in the meantime.
    sizes = [
        (name, size_of(Path(directory, name)))
        for directory, _, names in os.walk(steward.data_dir)
        for name in names
    ]
    return {
        "pss_mib": kib["Pss"] / 1024,
        "anonymous_mib": kib["Anonymous"] / 1024,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "store_mib": sum(size for name, size in sizes if ".db" in name) / 2**20,
        "files_mib": sum(size for name, size in sizes if ".db" not in name) / 2**20,
    }


def tables(steward: Steward) -> dict[str, float]:
    """Return the size of each table and index of the store, in MiB."""
    uri = f"file:{store_dir(steward.data_dir) / FILE_NAME}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        found = connection.execute("SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE")
        return {name: size / 2**20 for name, size in found}


def size_of(path: Path) -> int:
    """Return the disk usage of a file; 0 if it no longer exists."""
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def spent(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def look(soak: Soak, number: int, before: float) -> Minute:
    """Return the measurements of one minute."""
    took, soak.took = soak.took, defaultdict(list)
    found = await trio.to_thread.run_sync(held, soak.steward)
    sizes = await trio.to_thread.run_sync(tables, soak.steward)
    found["versions_mib"] = sum(sizes.get(name, 0) for name in FOR_EVER)
    found["passing_mib"] = found["store_mib"] - found["versions_mib"]
    return Minute(
        number=number,
        tables=sizes,
        fork_exec_per_s=await trio.to_thread.run_sync(fork_exec_per_s, 0.3),
        fdatasync_per_s=await trio.to_thread.run_sync(fdatasync_per_s, soak.steward.directory, 0.3),
        held=found,
        processor=(spent(soak.steward.pid) - before) / 60,
        took={name: statistics.median(all_) for name, all_ in sorted(took.items())},
        calls=sum(map(len, took.values())),
        faults=len(soak.faults),
    )


async def run(
    warm: int, minutes: int, seed: int, directory: str | None, seen: list[Minute]
) -> list[str]:
    """Run for this time, in the directory or the temporary directory; return the failures."""
    with tempfile.TemporaryDirectory(prefix="steward-soak-", dir=directory) as name:
        directory = Path(name)
        config = directory / "steward.toml"
        config.write_text(SETTINGS)
        flags = ("--dev", "--acl", "--dev-cloud", "--config", str(config))
        async with open_steward(directory, *flags) as steward, trio.open_nursery() as nursery:
            soak = Soak(steward, random.Random(seed))
            await prepare(soak)
            for every, work in WORK:
                nursery.start_soon(soak.repeat, every, work)
            for number in range(warm + minutes):
                soak.pace = WARMING if number < warm else 1
                before = spent(steward.pid)
                await trio.sleep(60)
                seen.append(await look(soak, number, before))
                print(line(seen[-1]), flush=True)
            nursery.cancel_scope.cancel()
        text = (directory / "daemon.log").read_text().splitlines()
        soak.faults += [line for line in text if "Traceback" in line or " ERROR " in line][:20]
        return soak.faults


# --- verdict ---


def line(minute: Minute) -> str:
    shown = "  ".join(f"{name} {value:.1f}" for name, value in minute.held.items())
    return (
        f"{minute.number:3}  fork+exec {minute.fork_exec_per_s:.0f}  fdatasync {minute.fdatasync_per_s:.0f}  "
        f"cpu {minute.processor:.2f}  calls {minute.calls}  faults {minute.faults}  {shown}"
    )


def middle(minutes: list[Minute], value: Callable[[Minute], float | None]) -> float:
    """Return the median of a value over some minutes."""
    return statistics.median(one for minute in minutes if (one := value(minute)) is not None)


def as_share(name: str, minute: Minute) -> float | None:
    """Return a call's latency as a number of processes that the host could have started."""
    took = minute.took.get(name)
    return took and took / 1000 * minute.fork_exec_per_s


def verdict(first: list[Minute], last: list[Minute]) -> list[str]:
    """Print a comparison of the last minutes with the first; return the regressions."""
    wrong = []
    print(f"\n{'held':32}{'first':>10}{'last':>10}")
    for name in first[0].held:
        before, after = (
            middle(some, lambda item, name=name: item.held[name]) for some in (first, last)
        )
        share, more = ROOM.get(name, (math.inf, 0))
        grew = after > before * (1 + share) + more
        wrong += [f"{name} grew from {before:.1f} to {after:.1f}"] * grew
        print(f"{name:32}{before:10.1f}{after:10.1f}{'  grew' if grew else ''}")
    print(f"\n{'table or index, MiB':32}{'first':>10}{'last':>10}")
    for name, size in sorted(last[-1].tables.items(), key=lambda item: -item[1])[:12]:
        before = middle(first, lambda minute, name=name: minute.tables.get(name, 0))
        print(f"{name:32}{before:10.2f}{size:10.2f}")
    print(
        f"\n{'call':24}{'first ms':>10}{'last ms':>10}{'ratio':>8}{'in fork+execs':>15}{'':>8}{'ratio':>8}"
    )
    for name in sorted(first[0].took):
        times = [
            middle(some, lambda item, name=name: item.took.get(name)) for some in (first, last)
        ]
        shares = [middle(some, partial(as_share, name)) for some in (first, last)]
        ratio = times[1] / times[0]
        wrong += [f"{name} takes {ratio:.2f} times as long"] * (ratio > SLOWER)
        print(
            f"{name:24}{times[0]:10.1f}{times[1]:10.1f}{ratio:8.2f}"
            f"{shares[0]:15.1f}{shares[1]:8.1f}{shares[1] / shares[0]:8.2f}"
        )
    for name in ("fork_exec_per_s", "fdatasync_per_s", "processor"):
        values = [
            middle(some, lambda item, name=name: getattr(item, name)) for some in (first, last)
        ]
        print(f"{name:24}{values[0]:10.2f}{values[1]:10.2f}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--span", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="where the data is, for instance in memory")
    options = parser.parse_args()
    minutes: list[Minute] = []
    faults = trio.run(run, options.warm, options.minutes, options.seed, options.directory, minutes)
    counted = minutes[options.warm :]
    wrong = verdict(counted[: options.span], counted[-options.span :])
    print(f"\n{sum(minute.calls for minute in minutes)} calls timed, {len(faults)} faults")
    for fault in [*faults[:20], *wrong]:
        print(fault)
    return 1 if faults or wrong else 0


if __name__ == "__main__":
    sys.exit(main())

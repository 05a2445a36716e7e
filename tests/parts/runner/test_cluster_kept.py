"""Kept files of tasks on a cluster: hosts send them, and the daemon trusts no host."""

import hashlib
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
from daemon.launcher import file_collector
from daemon.launcher.file_collector import LENGTH
from daemon.launcher.messages import CollectFiles, FilePart
from daemon.runner.drivers.slurm import kept_patterns, wrapper_api
from daemon.runner.drivers.slurm.attempt import SlurmAttempt
from daemon.runner.drivers.slurm.kept_patterns import MOST_LISTED
from daemon.runner.drivers.slurm.kept_uploads import (
    FileRefused,
    KeptUploads,
    SendAgain,
    TurnedAway,
)
from daemon.runner.drivers.slurm.wrapper_api import WrapperApi
from storage.queries import cluster_runs, kept_files, payload_files
from storage.records.base import SECOND
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.job import Job
from storage.records.task import RestartPolicy
from storage.store import Store
from storage.writer import Transaction
from tests import samples
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.test_wrappers import Claimant
from tests.parts.runner.world import script
from tests.samples import NOW

LATE = "daemon.runner.drivers.slurm.attempt.LATE"
NAMESPACE = "default"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as world:
        yield world


@pytest.fixture
async def world(store: Store, slurm: FakeSlurm, tmp_path: Path) -> AsyncIterator[PoolWorld]:
    async with open_pool(store, slurm, settings(tmp_path)) as opened:
        yield opened


def keeping(text: str, patterns: str, **task: Any) -> Job:
    """Return a job whose task runs a script and keeps the files that match the patterns."""
    given = script(text, meta={"steward_keep": patterns}, **task)
    return samples.job("job", samples.group("web", given), type="batch")


def kept(world: PoolWorld, alloc_id: str) -> dict[str, bytes]:
    """Return the contents of the kept files by path."""
    payloads = PayloadFiles(
        world.store, str(world.config.payloads_dir), PayloadLimits.of(world.config)
    )
    found = {}
    for one in world.store.read(lambda db: list(kept_files.page(db, alloc_id))):
        content = partial(payloads.content, namespace=NAMESPACE, digest=one.digest)
        place = world.store.read(content)
        assert place is not None
        found[one.path] = Path(place).read_bytes()
        assert hashlib.sha256(found[one.path]).hexdigest() == one.digest
    return found


def reasons(world: PoolWorld, alloc_id: str) -> list[str]:
    return [text for kind, text in world.told(alloc_id) if kind == "File Not Kept"]


# --- from a host to the store ---


async def test_files_of_a_host_are_retained(world: PoolWorld) -> None:
    text = (
        "mkdir -p out/a/b .h; echo 1 >out/x.csv; echo 2 >out/a/b/y.csv; echo 3 >.h/z.csv; : >out/empty;"
        'echo 4 >"out/a b "; echo 5 >"$NOMAD_ALLOC_DIR/data/s"; head -c 3000000 /dev/zero >out/zero'
    )
    one = await world.place(keeping(text, "out/**/*, **/z.csv, alloc/data/*"))
    assert (await world.until_done(one)).client_status == "complete"
    assert kept(world, one) == {
        "out/x.csv": b"1\n",
        "out/a/b/y.csv": b"2\n",
        "out/empty": b"",
        "out/a b ": b"4\n",
        "out/zero": bytes(3_000_000),
        "alloc/data/s": b"5\n",
    }
    assert dict(world.told(one))["Files Kept"] == "Steward keeps 6 files with 3000008 bytes"
    assert reasons(world, one) == ["no file matches **/z.csv"]


async def test_links_pipes_and_secrets_are_not_retained(world: PoolWorld) -> None:
    text = (
        "mkdir out; echo 1 >out/a; ln -s a out/link; mkfifo out/pipe; ln -s /etc etc;"
        "ln -s out way; echo 2 >secrets/key; echo 3 >\"$(printf 'out/\\n')\"; echo 4 >out/n"
    )
    one = await world.place(keeping(text, "out/*, etc/hostname, way/a, **/key"))
    await world.until_done(one)
    assert kept(world, one).keys() == {"out/a", "out/n"}
    assert reasons(world, one) == [
        "out/link: it is a link, and links are not followed",
        "out/pipe: it is not a regular file",
        "no file matches etc/hostname",
        "no file matches way/a",
        "no file matches **/key",
    ]


async def test_file_replaced_after_the_list_is_not_retained(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = f"{world.config.pools['hpc'].directory}/steward-"

    async def exchange(self: Any, *given: Any, **named: Any) -> str:
        wanted = await begin(self, *given, **named)
        directory = Path(f"{home}{one}-main/main/out")
        for name in ("fifo", "gone", "grown", "link", "short"):
            (directory / name).unlink()
        os.mkfifo(directory / "fifo")
        (directory / "link").symlink_to("/etc/hostname")
        (directory / "grown").write_bytes(bytes(4_000_000))
        (directory / "short").write_bytes(b"1")
        return wanted

    begin = KeptUploads.begin
    monkeypatch.setattr(KeptUploads, "begin", exchange)
    names = "fifo gone grown kept link short"
    one = await world.place(
        keeping(f"mkdir out; for x in {names}; do echo $x$x >out/$x; done", "out/*")
    )
    await world.until_done(one)
    assert kept(world, one) == {"out/kept": b"keptkept\n"}
    assert reasons(world, one) == [
        "out/fifo: only 0 of 9 bytes arrived",
        "out/gone: only 0 of 9 bytes arrived",
        "out/grown: it grew to more than 11 bytes",
        "out/link: only 0 of 9 bytes arrived",
        "out/short: only 1 of 11 bytes arrived",
    ]


async def test_only_the_files_of_the_last_attempt_are_retained(
    world: PoolWorld, tmp_path: Path
) -> None:
    again = RestartPolicy(attempts=1, interval=3600 * SECOND, delay=0, mode="fail")
    text = f"mkdir out; test -e {tmp_path}/x && echo 2 >out/b || echo 1 >out/a; touch {tmp_path}/x; exit 3"
    one = await world.place(keeping(text, "out/*", restart_policy=again))
    assert (await world.until_done(one)).client_status == "failed"
    assert kept(world, one) == {"out/b": b"2\n"}
    assert world.types(one).count("Files Kept") == 1


async def test_stopped_task_retains_its_files(world: PoolWorld, tmp_path: Path) -> None:
    one = await world.place(keeping("mkdir out; echo 1 >out/a; echo begun; sleep 60", "out/*"))
    await world.until_printed(one, "begun")
    await world.stop(one)
    await world.until_done(one)
    assert kept(world, one) == {"out/a": b"1\n"}


async def test_a_stop_waits_for_a_host_that_sends_files(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    asked, sends, go = 0, trio.Event(), trio.Event()

    def is_alive(self: SlurmAttempt) -> bool:
        nonlocal asked
        asked += 1
        if asked > 2:  # the stop has waited more than once
            go.set()
        return True

    async def keep_then(self: Any, *given: Any, **named: Any) -> None:
        sends.set()
        await go.wait()
        await keep(self, *given, **named)

    keep = WrapperApi.keep
    monkeypatch.setattr(WrapperApi, "keep", keep_then)
    monkeypatch.setattr(SlurmAttempt, "_is_alive", is_alive)
    one = await world.place(keeping("mkdir out; echo 1 >out/a", "out/*"))
    await sends.wait()  # a slow host would otherwise send nothing within the grace period
    await world.stop(one)
    await world.until_done(one)
    assert kept(world, one) == {"out/a": b"1\n"}


async def test_last_poll_of_a_host_may_arrive_after_its_list_of_files(
    world: PoolWorld, slurm: FakeSlurm
) -> None:
    """A late poll is no reason to cancel the job, which sends files.

    A task that sends a list itself cannot delay its stop, because its wrapper polls again.
    """
    for node in ("node1", "node2"):
        slurm.drain(node, "for a test")
    one = await world.place(keeping("exit 0", "out/*"))
    await world.until(one, lambda _: any("waits" in text for text in world.said(one)))
    host = Claimant(world, one)
    assert await host.ask_for_it() == 200
    (run,) = world.engine.wrapper_api.of_allocation(one)
    run.end_waiting_requests()  # polls return immediately
    run.sends_files()
    await run.orders(0)
    assert run._is_sending
    await run.orders(0)
    assert not run._is_sending
    run.sends_files()
    assert run._is_sending
    assert await host.end() == 200


async def test_host_failure_before_the_upload_is_reported(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LATE, 0.1)
    one = await world.place(
        keeping("mkdir out; echo 1 >out/a; kill -s KILL $PPID; sleep 60", "out/*")
    )
    assert (await world.until_done(one)).client_status == "failed"
    assert kept(world, one) == {}
    assert reasons(world, one) == ["the task's host has sent no files"]


async def test_files_are_sent_again_after_a_restart_of_the_daemon(
    store: Store, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived = trio.Event()

    async def fail(*given: Any, **named: Any) -> None:
        arrived.set()
        raise OSError(5, "for a test")

    async with open_pool(store, slurm, settings(tmp_path)) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WrapperApi, "result", fail)
            one = await world.place(keeping("mkdir out; echo 1 >out/a", "out/*"))
            await arrived.wait()
        config = world.config
    async with open_pool(store, slurm, config) as world:
        assert (await world.until_done(one)).client_status == "complete"
        assert kept(world, one) == {"out/a": b"1\n"}
        assert world.types(one).count("Files Kept") == 1
        assert world.types(one).count("Started") == 1


async def test_daemon_killed_during_an_upload_gets_the_files_again(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    second = trio.Event()

    async def block(
        self: Any, secret: str, number: int, offset: int, *given: Any, **named: Any
    ) -> None:
        if offset:
            second.set()
            raise OSError(5, "for a test")
        await keep(self, secret, number, offset, *given, **named)

    keep = WrapperApi.keep
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WrapperApi, "keep", block)
            one = await world.place(keeping("mkdir out; seq 400000 >out/a", "out/*"))
            await second.wait()
        config = world.config
    async with open_pool(store, slurm, config) as world:
        assert (await world.until_done(one)).client_status == "complete"
        assert kept(world, one)["out/a"] == "".join(f"{n}\n" for n in range(1, 400_001)).encode()


# --- hostile hosts ---


class Sender(Claimant):
    """A wrapper that has claimed an attempt, and sends arbitrary data."""

    async def list(self, listing: bytes, query: str = "root=0&whole=1") -> tuple[int, str]:
        answer = await self.world.ask(
            "POST", f"/v1/wrapper/kept?{query}", self.token, content=listing
        )
        return answer.status_code, answer.text

    async def piece(self, query: str, data: bytes = b"") -> int:
        path = f"/v1/wrapper/kept/file?{query}"
        answer = await self.world.ask("POST", path, self.token, content=data)
        return answer.status_code


@pytest.fixture
async def sender(world: PoolWorld) -> Sender:
    for node in ("node1", "node2"):
        world.slurm.drain(node, "for a test")
    alloc_id = await world.place(keeping("exit 0", "out/*, alloc/x"))
    await world.until(alloc_id, lambda _: any("waits" in text for text in world.said(alloc_id)))
    found = Sender(world, alloc_id)
    assert await found.ask_for_it() == 200
    await world.until_running(alloc_id)
    return found


async def finished(sender: Sender, query: str = "code=0&why=&kept=sent") -> list[str]:
    """Finish the attempt; return the reasons why files were not stored."""
    assert await sender.end(query) == 200
    assert (await sender.world.until_done(sender.alloc_id)).client_status == "complete"
    return reasons(sender.world, sender.alloc_id)


async def test_file_list_of_a_host_is_validated(sender: Sender) -> None:
    paths = (
        b"etc/passwd",
        b"../x",
        b"main/../../x",
        b"main/out/../x",
        b"/etc/passwd",
        b"main/secrets/x",
    )
    records = [b"f 1 1 ./%b" % path for path in paths]
    records += [
        b"",
        b"f",
        b"f 1 x ./main/out/a",
        b"f 1 -1 ./main/out/a",
        b"f 1 %d ./main/out/a" % 10**16,
    ]
    records += [b"f 1 1 ./main/out/\xff", b"f 1 1 ./main/out/a\nb", b"d 1 1 ./main/out/d"]
    assert await sender.list(b"\0".join([*records, b"f 1 1 ./main/out/cut"])) == (200, "")
    told = await finished(sender)
    assert told == [
        "out/a\nb: its name has unprintable characters",
        "out/d: it is not a regular file",
        "out/\ufffd: its name is not UTF-8",
        "no file matches alloc/x",
    ]


async def test_file_chunks_of_a_host_are_validated(sender: Sender) -> None:
    listing = b"f 1 3 ./main/out/a\0f 1 3 ./main/out/b\0f 1 3 ./main/out/c\0f 2 3 ./main/out/d\0"
    assert await sender.piece("file=0", b"x") == 409  # no list yet
    status, wanted = await sender.list(listing)
    assert (status, wanted.splitlines()) == (
        200,
        [f"{n} ./main/out/{c}/" for n, c in enumerate("abcd")],
    )
    assert await sender.piece("file=9", b"x") == 422
    assert await sender.piece("file=0&offset=1", b"x") == 409
    assert await sender.piece("file=0", b"on") == 200
    assert await sender.piece("file=0", b"on") == 200  # repeated
    assert await sender.piece("file=0&offset=2&end=1", b"e") == 200
    assert await sender.piece("file=0&offset=3&end=1") == 200  # repeated
    assert await sender.piece("file=1", b"long") == 422
    assert await sender.piece("file=2", b"on") == 200
    assert await sender.piece("file=3", b"two") == 200
    assert await sender.piece("file=3&offset=3&end=1") == 200
    assert await finished(sender) == [
        "no file matches alloc/x",
        "out/b: it grew to more than 3 bytes",
        "out/c: only 2 of 3 bytes arrived",
    ]
    assert kept(sender.world, sender.alloc_id) == {"out/a": b"one", "out/d": b"two"}
    assert await sender.piece("file=2&offset=2&end=1", b"x") == 410


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (
            "code=0&why=",
            "the task's host runs the wrapper of an earlier version, which keeps no files",
        ),
        ("code=0&why=&kept=failed", "the task's host has not sent the files"),
        ("code=0&why=&kept=cluster", "the cluster ended the task's job before the files were sent"),
    ],
)
async def test_host_that_sends_no_files_is_reported(
    sender: Sender, query: str, reason: str
) -> None:
    assert await finished(sender, query) == [reason]


async def test_result_that_lacks_sent_files_is_refused(sender: Sender) -> None:
    assert await sender.end("code=0&why=&kept=sent") == 412
    assert await sender.list(b"") == (200, "")
    assert await finished(sender) == ["no file matches out/*", "no file matches alloc/x"]


# --- limits ---


@pytest.fixture
def uploads(store: Store, tmp_path: Path) -> KeptUploads:
    return opened_uploads(store, tmp_path)


def opened_uploads(store: Store, tmp_path: Path) -> KeptUploads:
    payloads = PayloadFiles(store, f"{tmp_path}/payloads", PayloadLimits(file=1000, namespace=2500))
    return KeptUploads(store, payloads, f"{tmp_path}/staging", lambda: NOW)


async def begun(uploads: KeptUploads, name: str, listing: bytes, **given: Any) -> list[str]:
    """Send a list; return the chosen files."""
    fields: Any = {"patterns": ["*"], "is_root": False, "is_whole": True, **given}
    wanted = await uploads.begin(name, listing, namespace=NAMESPACE, task="main", **fields)
    return wanted.splitlines()


async def told(uploads: KeptUploads, name: str) -> list[str]:
    found = await uploads.report(name)
    assert found is not None
    return [*found[1]]


async def test_sizes_and_numbers_are_limited(uploads: KeptUploads) -> None:
    sizes = {b"a": 1001, b"b": 1000, b"c": 1000, b"d": 501, b"e": 500}
    listing = b"".join(b"f 1 %d ./main/%b\0" % (size, name) for name, size in sizes.items())
    assert await begun(uploads, "one", listing) == ["0 ./main/b/", "1 ./main/c/", "2 ./main/e/"]
    assert (await told(uploads, "one"))[:2] == [
        "a: it has 1001 bytes, more than 1000",
        "d: it has 501 bytes, more than the 500 that are left in its namespace",
    ]
    many = b"".join(b"f 1 1 ./main/%d\0" % number for number in range(101))
    assert len(await begun(uploads, "one", many)) == 100
    assert (await told(uploads, "one"))[0] == "more than 100 files match"
    twice = b"f 2 1 ./main/a\0"
    assert await begun(uploads, "one", twice, is_root=True) == []
    assert "it has another hard link" in (await told(uploads, "one"))[0]
    assert await begun(uploads, "one", twice) == ["0 ./main/a/"]
    await begun(uploads, "one", twice, is_whole=False)
    assert (await told(uploads, "one"))[0] == "its host could not list all files"
    cut = bytes(MOST_LISTED)
    await begun(uploads, "one", cut)
    assert "its host could not list all files" in await told(uploads, "one")


async def test_concurrent_hosts_share_the_remaining_space_of_the_namespace(
    uploads: KeptUploads, tmp_path: Path
) -> None:
    large = b"f 1 900 ./main/a\0f 1 900 ./main/b\0"
    assert len(await begun(uploads, "one", large)) == 2
    with pytest.raises(TurnedAway, match="other tasks of this namespace are sending files"):
        await begun(uploads, "two", large)
    uploads.forget("one")
    assert len(await begun(uploads, "two", large)) == 2
    await uploads.take("two", 0, 0, bytes(900), is_end=True)
    with pytest.raises(TurnedAway):
        await begun(uploads, "three", b"f 1 900 ./main/c\0")
    assert await begun(uploads, "three", b"f 1 600 ./main/c\0") == ["0 ./main/c/"]
    await told(uploads, "two")  # from now on, its second file is not expected
    assert await begun(uploads, "three", b"f 1 900 ./main/c\0") == ["0 ./main/c/"]
    with pytest.raises(FileRefused):
        await uploads.take("three", 0, 0, bytes(901), is_end=True)
    for name in ("two", "three"):
        uploads.forget(name)
        with pytest.raises(SendAgain):
            await uploads.take(name, 0, 0, b"x", is_end=False)
    assert os.listdir(tmp_path / "staging") == []


async def test_files_that_arrived_before_a_restart_count_once(store: Store, tmp_path: Path) -> None:
    before = opened_uploads(store, tmp_path)
    listing = b"f 1 900 ./main/a\0f 1 900 ./main/b\0f 1 700 ./main/c\0"
    await begun(before, "one", listing)
    await before.take("one", 0, 0, b"a" * 900, is_end=True)
    await before.take("one", 1, 0, b"b" * 900, is_end=True)
    after = opened_uploads(store, tmp_path)
    assert await begun(after, "two", listing) == ["0 ./main/c/"]  # 700 of 2500 bytes are left
    after.forget("two")
    assert await begun(after, "one", listing) == ["0 ./main/a/", "1 ./main/b/", "2 ./main/c/"]
    for number, content in enumerate((b"a" * 900, b"b" * 900, b"c" * 700)):
        await after.take("one", number, 0, content, is_end=True)
    report = await after.report("one")
    assert report is not None
    assert (report[0].keys(), report[1]) == ({"a", "b", "c"}, ())


def holders(store: Store) -> list[str]:
    """Return the tasks and attempts that may store their files again."""
    rows = store.read(lambda db: db.all("SELECT holder FROM payload_files ORDER BY holder"))
    return [row["holder"] for row in rows]


async def test_ended_attempt_releases_its_files(world: PoolWorld) -> None:
    one = await world.place(keeping("mkdir out; echo 1 >out/a; echo 2 >out/b", "out/*"))
    await world.until_done(one)
    assert kept(world, one).keys() == {"out/a", "out/b"}
    assert holders(world.store) == ["", ""]


def withdraw_one(tx: Transaction) -> None:
    (run,) = cluster_runs.of_allocation(tx, "a1")
    cluster_runs.withdraw(tx, run)


def withdraw_pool(tx: Transaction) -> None:
    cluster_runs.withdraw_all(tx, "hpc")


@pytest.mark.parametrize("withdraw", [withdraw_one, withdraw_pool])
async def test_withdrawn_attempt_releases_its_files(
    store: Store, withdraw: Callable[[Transaction], None]
) -> None:
    def begin(tx: Transaction) -> None:
        for alloc_id, pool in (("a1", "hpc"), ("a2", "other")):
            run = ClusterRun(
                allocation_id=alloc_id, task="t", number=0, pool=pool, status=RunStatus.RUNNING
            )
            cluster_runs.put(tx, run)
            digest = hashlib.sha256(alloc_id.encode()).hexdigest()
            payload_files.put(
                tx, NAMESPACE, digest, 1, is_complete=True, now=NOW, holder=run.comment
            )

    await store.write(begin)
    assert holders(store) == ["a1/t/0", "a2/t/0"]
    await store.write(withdraw)
    assert holders(store) == ["", "a2/t/0"]


# --- patterns ---

# Names with every rule of patterns, and with characters that shells and `find` treat differently.
TREE = (
    *(
        "a",
        "b.csv",
        ".h",
        "out/a",
        "out/b.csv",
        "out/.h",
        "out/[x]",
        "out/é",
        "out/a\\b",
        "out/d/a",
    ),
    *(
        "out/d/e/b.csv",
        ".hid/a",
        "secrets/key",
        "private/key",
        "local/x.json",
        "out/d/-x",
        "out/ x ",
    ),
)
PATTERNS = (
    *("*", "**/*", "out/*", "out/**/*", "**/a", "**/*.csv", ".*", ".h*/*", "**/.h", "out/?"),
    *(
        "out/[ab]*",
        "out/[!a]*",
        "out/[x]",
        "out/[[]x]",
        "out/a\\b",
        "out/*\\*",
        "out/d/*/*",
        "*/*/a",
    ),
    *("*/d/**/b.csv", "local/x.json", "out/d/-*", "out/ x", "no/*", "out/**/d/**/*", "*/key"),
    *("out/a/*", "out/é", "**/e/*"),
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_the_same_as_for_local_tasks(tmp_path: Path, pattern: str) -> None:
    for name in TREE:
        (tmp_path / "main" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "main" / name).write_text("x")
    (tmp_path / "alloc").mkdir()
    assert on_host(tmp_path, pattern) == locally(tmp_path, pattern)


def locally(directory: Path, pattern: str) -> set[bytes]:
    """Return the files that the launcher collects."""
    full = "/".join(kept_patterns.full("main", pattern))
    request = CollectFiles(
        allocation="a", task="main", patterns=[full], most_bytes=9, most_total=999, most_files=99
    )
    stream, place = BytesIO(), os.open(directory / "main", os.O_RDONLY)
    try:
        file_collector.collect({"main": place}, request, stream)
    finally:
        os.close(place)
    data, found = stream.getvalue(), set()
    while length := int.from_bytes(data[:LENGTH]):
        part = msgspec.msgpack.decode(data[LENGTH : LENGTH + length], type=FilePart)
        found |= {part.path} if part.path else set()
        data = data[LENGTH + length :]
    return found


def on_host(directory: Path, pattern: str) -> set[bytes]:
    """Return the files that a wrapper finds and the daemon chooses."""
    text = resources.files(wrapper_api.__package__ or "").joinpath("wrapper.sh").read_text()
    look = text[text.index("look() {") : text.index("# find_kept")]
    commands = kept_patterns.searches("main", [pattern])
    listing = subprocess.run(
        ["/bin/sh", "-uc", f"{look}\n{commands}"], cwd=directory, capture_output=True, check=True
    ).stdout
    entries = kept_patterns.entries(listing)
    return {entry.path for entry in entries if kept_patterns.matches(entry.path, "main", pattern)}


class SlowPayloads:
    """A store of files that accepts a file only after the test allows it."""

    most_bytes = 100

    def __init__(self) -> None:
        self.begun, self.allowed = trio.Event(), trio.Event()
        self.stored: dict[str, bytes] = {}

    def room(self, db: object, namespace: str, holder: str) -> int:
        return 100

    async def take_in(self, namespace: str, digest: str, source: str, **_: object) -> None:
        self.begun.set()
        await self.allowed.wait()
        self._take(digest, Path(source))

    def _take(self, digest: str, source: Path) -> None:
        self.stored[digest] = source.read_bytes()
        source.unlink()


class AnyStore:
    async def read_any(self, work: Any) -> Any:
        return work(None)


async def test_second_list_does_not_change_a_file_during_its_upload(tmp_path: Path) -> None:
    payloads = SlowPayloads()
    uploads: Any = KeptUploads(
        cast(Any, AnyStore()), cast(Any, payloads), str(tmp_path / "sent"), lambda: 1
    )

    async def begin() -> None:
        fields = {"namespace": "default", "task": "main", "patterns": ["a"]}
        await uploads.begin("one", b"f 1 3 ./main/a\0", **fields, is_root=False, is_whole=True)

    await begin()
    await uploads.take("one", 0, 0, b"AAA", is_end=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(uploads.take, "one", 0, 3, b"", is_end=True))
        await payloads.begun.wait()
        await begin()
        await uploads.take("one", 0, 0, b"BBB", is_end=False)
        payloads.allowed.set()
    assert payloads.stored == {hashlib.sha256(b"AAA").hexdigest(): b"AAA"}
    uploads.forget("one")
    assert list((tmp_path / "sent").iterdir()) == []

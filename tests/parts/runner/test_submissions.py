"""Calls of the programs of a cluster, and the conclusions from their output.

Here, a function plays the programs, so the results are deterministic.
tests/parts/runner/test_cluster.py runs them as processes.
"""

import math
import os
import pwd
import tarfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from daemon.clock import SystemClock
from daemon.config.settings import Settings
from daemon.jobs.payload_files import PayloadFiles, PayloadLimits
from daemon.launcher.client import Launcher
from daemon.runner.core.driver import Attempt, StartFailed
from daemon.runner.drivers.permitted_users import ANY_USER, TaskUsers, of, without_rules
from daemon.runner.drivers.slurm.attempt import SlurmAttempt
from daemon.runner.drivers.slurm.cluster import SlurmCluster
from daemon.runner.drivers.slurm.commands import SlurmCommandFailed, SlurmCommands
from daemon.runner.drivers.slurm.driver import SlurmDriver
from daemon.runner.drivers.slurm.job_states import SlurmJobState
from daemon.runner.drivers.slurm.kept_uploads import KeptUploads
from daemon.runner.drivers.slurm.wrapper_api import WrapperApi, WrapperRejected
from storage.queries import cluster_runs
from storage.records.cluster_run import ClusterRun, RunStatus
from storage.records.pool import SLURM, Pool
from storage.store import Store
from tests import launchers
from tests.fakes.slurm.world import fake_slurm
from tests.task_logs import log_in

ALLOC = "a1"
NAME = f"alloc-{ALLOC}"
Answer = Callable[[str, list[str]], Awaitable[str]]


class Programs(SlurmCommands, frozen=True, kw_only=True):
    """The programs: their calls, and the function that answers."""

    answer: Answer
    calls: list[list[str]]

    users: list[str]

    async def run(
        self,
        program: str,
        *words: str,
        user: str = "",
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
    ) -> str:
        await trio.lowlevel.checkpoint()
        self.calls.append([program, *words])
        self.users.append(user)
        return await self.answer(program, list(words))


def programs(answer: Answer, **fields: Any) -> Programs:
    given = {"path": "", "calls": [], "users": [], "launcher": cast(Launcher, None), **fields}
    return Programs(answer=answer, **given)


async def seventeen(program: str, words: list[str]) -> str:
    """Accept a job as number 17, and know no other jobs."""
    return "17\n" if program == "sbatch" else ""


class Stage:
    """A cluster with its driver, and the issued secrets."""

    def __init__(self, store: Store, directory: Path, **pool: Any) -> None:
        self.store, self.directory = store, directory
        self.secrets: list[str] = []
        self.tools = programs(seventeen)
        limits = PayloadLimits(file=1000, namespace=2500)
        payloads = PayloadFiles(store, str(directory / "payloads"), limits)
        kept = KeptUploads(store, payloads, str(directory / "staging"), SystemClock().now)
        self.wrapper_api = WrapperApi(store, SystemClock(), self._fresh, kept)
        self._numbers: Iterator[int] = count()
        given = Pool(engine=SLURM, directory="/hosts", **pool)
        self.cluster = SlurmCluster(
            "hpc", given, self.tools, store, SystemClock(), url="http://u", ca=""
        )

    def answers(self, answer: Answer) -> None:
        """Replace the answers of the programs."""
        self.tools = programs(answer, calls=self.tools.calls, users=self.tools.users)
        self.cluster.tools = self.tools

    def _fresh(self) -> str:
        self.secrets.append(f"secret-of-no-use-{next(self._numbers)}")
        return self.secrets[-1]

    def claim_of(self, number: int = 0) -> str:
        """Return the last issued claim, as that of the attempt `number`."""
        return f"{ALLOC}.{number}.{self.secrets[-1]}"

    def attempt(self, number: int = 0, **fields: Any) -> Attempt:
        for name in ("alloc/logs", "main/local", "main/secrets"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        named = {"alloc_id": ALLOC, "task": "main", "number": number}
        logs = {kind: log_in(self.directory, "main", kind) for kind in ("stdout", "stderr")}
        given = {
            "directory": str(self.directory),
            "config": {"command": "x"},
            "env": {},
            "logs": logs,
            "beside": str(self.directory.parent / "output"),
        }
        return Attempt(**{**named, **given, **fields})

    async def start(
        self, name: str = SLURM, users: TaskUsers = ANY_USER, **fields: Any
    ) -> SlurmAttempt:
        """Start an attempt by one of the driver's names."""
        driver = SlurmDriver(self.cluster, self.wrapper_api, name, users=users)
        started = await driver.start(self.attempt(**fields))
        assert isinstance(started, SlurmAttempt)
        return started

    def row(self, number: int = 0) -> ClusterRun:
        found = self.store.read(lambda db: cluster_runs.find(db, ALLOC, "main", number))
        assert found is not None
        return found

    def asked(self, program: str) -> list[list[str]]:
        """Return the words with which a program was called."""
        return [words for called, *words in self.tools.calls if called == program]

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():  # noqa: ASYNC110  # any part can change the state
            await trio.sleep(0.001)


@pytest.fixture
def stage(store: Store, tmp_path: Path) -> Stage:
    return Stage(store, tmp_path / "alloc")


def silent(text: str) -> None:
    """Do nothing."""


# ---- users -----------------------------------------------------------------------------------------


async def test_exec_driver_runs_nothing_as_root_in_a_cluster(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for user in ("root", "0"):
        with pytest.raises(StartFailed, match="cannot run exec tasks"):
            await stage.start("exec", user=user)
    assert (await stage.start("exec")).attempt.user == "nobody"
    assert (await stage.start("raw_exec", number=1, user="root")).attempt.user == "root"


@pytest.mark.parametrize("name", [SLURM, "exec", "raw_exec"])
async def test_tasks_of_a_pool_have_the_same_allowed_users(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    users = of(Settings(task_users=["@games"]))
    for user in ("daemon", "root", "0"):
        with pytest.raises(StartFailed, match=f"cannot run tasks of {name}"):
            await stage.start(name, users, user=user)
    assert stage.tools.calls == []
    assert (await stage.start(name, users)).attempt.user == "nobody"
    assert (await stage.start(name, users, number=1, user="games")).attempt.user == "games"


async def test_job_submitted_before_users_were_listed_is_recovered(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    run = await stage.start(users=of(Settings()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        await trio.testing.wait_all_tasks_blocked()
        job = SlurmJobState(job_id="17", state="RUNNING", reason="", host="", name=NAME, user=0)
        theirs = SlurmJobState(job_id="17", state="RUNNING", reason="", host="", name=NAME, user=1)
        for one, known in ((theirs, []), (job, [job])):
            run.update_jobs([one], trio.current_time())
            assert run._seen == known
        nursery.cancel_scope.cancel()


async def test_unknown_user_is_named_before_a_submission(
    stage: Stage,
) -> None:
    with pytest.raises(StartFailed, match="unknown user nosuchuser"):
        await stage.start(user="nosuchuser")
    assert stage.tools.calls == []


async def test_user_of_the_daemon_is_accepted(stage: Stage) -> None:
    run = await stage.start(user=str(os.geteuid()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        nursery.cancel_scope.cancel()
    assert stage.tools.users == [""]


async def test_job_is_submitted_and_cancelled_by_the_user_of_its_task(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    uid = pwd.getpwnam("games").pw_uid

    async def answer(program: str, words: list[str]) -> str:
        listed = f"17|PENDING|None||{NAME}|{uid}\n"
        return {"sbatch": "17\n", "squeue": listed}.get(program, "")

    stage.answers(answer)
    run = await stage.start(user="games")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.cluster.run)
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().status == RunStatus.WAITING)
        await run.stop("SIGINT", 0)
        await stage.until(lambda: bool(stage.asked("scancel")))
        nursery.cancel_scope.cancel()
    by = {(call[0], user) for call, user in zip(stage.tools.calls, stage.tools.users, strict=True)}
    assert by == {("sbatch", str(uid)), ("squeue", ""), ("scancel", str(uid))}


async def test_a_separated_daemon_submits_no_job_as_root(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = pwd.getpwnam("games").pw_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    users = of(Settings(raw_exec=True, raw_exec_root=True, task_users=["*"]), own=0)
    stage.cluster.users = without_rules(own=0)
    with pytest.raises(StartFailed, match='user "root" must not submit jobs: name another user'):
        await stage.start("raw_exec", users, user="root")
    assert (await stage.start("raw_exec", users, number=1, user="daemon")).attempt.user == "daemon"


# ---- identification of the job ---------------------------------------------------------------------


async def test_a_job_is_cancelled_by_its_number_and_its_name(stage: Stage) -> None:
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.cluster.run)
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().status == RunStatus.WAITING)
        await run.stop("SIGINT", 0)
        await stage.until(lambda: bool(stage.asked("scancel")))
        nursery.cancel_scope.cancel()
    assert stage.asked("scancel")[0] == [f"--name={NAME}", "17"]


async def test_job_with_a_reused_number_and_another_name_is_not_canceled(tmp_path: Path) -> None:
    with fake_slurm(tmp_path / "slurm") as slurm:
        for name in ("ours", "other"):
            words = ["--hold", "--parsable", f"--job-name={name}"]
            await trio.run_process(
                [slurm.bin / "sbatch", *words], stdin=b"#!/bin/sh\n", capture_stdout=True
            )
        ours, other = (slurm.jobs(name)[0]["id"] for name in ("ours", "other"))
        alloc_dir = tmp_path / "tasks/alloc"
        async with launchers.open_for_programs(alloc_dir, slurm.path) as launcher:
            tools = SlurmCommands(path=slurm.path, launcher=launcher)
            await tools.run("scancel", "--name=ours", other)
            await tools.run("scancel", "--name=ours", ours)
        assert slurm.jobs("other")[0]["state"] == "PENDING"
        assert slurm.jobs("ours")[0]["state"] == "CANCELLED"


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"18|RUNNING|None|n1|{NAME}|{os.geteuid()}",
        f"17|RUNNING|None|n1|other|{os.geteuid()}",
        f"17|COMPLETED|None|n1|{NAME}|{os.geteuid()}",
    ],
)
async def test_session_enters_only_its_own_job(stage: Stage, line: str) -> None:
    async def answer(program: str, words: list[str]) -> str:
        return f"{line}\n"

    stage.answers(answer)
    await stage.start()
    running = msgspec.structs.replace(stage.row(), status=RunStatus.RUNNING, job_id="17")
    await stage.store.write(lambda tx: cluster_runs.put(tx, running))
    driver = SlurmDriver(stage.cluster, stage.wrapper_api)
    stage.tools = programs(answer, path=str(stage.directory))
    stage.cluster.tools = stage.tools
    with pytest.raises(StartFailed, match="has no job 17"):
        await driver.open_session(stage.attempt(), ["true"], tty=False)


@pytest.mark.parametrize("job", ["--me", "1_", "1_2_3", "_2", "12345678901", "-1", "1 2"])
async def test_claim_contains_the_job_number(stage: Stage, job: str) -> None:
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        with pytest.raises(WrapperRejected, match="at most 10 digits"):
            await stage.wrapper_api.claim(stage.claim_of(), nonce="n", job_id=job, host="h")
        with pytest.raises(WrapperRejected, match="is job 17, not 18"):
            await stage.wrapper_api.claim(stage.claim_of(), nonce="n", job_id="18", host="h")
        assert stage.row().status == RunStatus.WAITING
        nursery.cancel_scope.cancel()


async def test_only_lines_with_the_requested_name_and_user_are_accepted(stage: Stage) -> None:
    own, stranger = os.geteuid(), os.geteuid() + 1
    lines = [
        f"18|RUNNING|None|n1|{NAME}|{stranger}",
        f"19|RUNNING|None|n1|alloc-other|{own}",
        f"--me|RUNNING|None|n1|{NAME}|{own}",
        f"17|PENDING|Priority||{NAME}|{own}",
    ]

    async def answer(program: str, words: list[str]) -> str:
        if program == "squeue":
            return "\n".join(lines) + "\n"
        return await seventeen(program, words)

    stage.answers(answer)
    run = await stage.start()
    said: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.cluster.run)
        nursery.start_soon(run.wait_for_start, said.append)
        await stage.until(lambda: any("waits" in text for text in said))
        nursery.cancel_scope.cancel()
    assert stage.asked("scancel") == []
    assert all("%k" not in " ".join(words) for words in stage.asked("squeue"))


async def test_job_without_its_comment_is_recognized(stage: Stage) -> None:
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        waits = SlurmJobState(
            job_id="17", state="PENDING", reason="", host="", name=NAME, user=os.geteuid()
        )
        run.update_jobs([waits], trio.current_time())
        await trio.testing.wait_all_tasks_blocked()
        assert len(stage.asked("sbatch")) == 1
        nursery.cancel_scope.cancel()


async def test_many_names_are_requested_in_several_queries(stage: Stage) -> None:
    await stage.cluster.listed(*(f"alloc-{number}" for number in range(2001)))
    asked = [words[-1].removeprefix("--name=") for words in stage.asked("squeue")]
    assert [len(some.split(",")) for some in asked] == [2000, 1]


def pending(job_id: str, comment: str) -> Answer:
    """Return the answers of a cluster with one job, which waits and has this comment."""

    async def answer(program: str, arguments: list[str]) -> str:
        if program == "sbatch":
            raise SlurmCommandFailed("sbatch did not answer within 30 s", unsure=True)
        if program != "squeue":
            return ""
        if "--format=%k" in arguments:
            return f"{comment if f'--jobs={job_id}' in arguments else ''}\n"
        return f"{job_id}|PENDING|Priority||{NAME}|{os.geteuid()}\n"

    return answer


async def test_job_of_a_submission_without_a_response_is_recorded(stage: Stage) -> None:
    stage.answers(pending("21", f"{ALLOC}/main/0"))
    run = await stage.start()
    stage.answers(pending("21", run.row.comment))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().status == RunStatus.WAITING)
        assert stage.row().job_id == "21"
        assert len(stage.asked("sbatch")) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_own", [True, False])
async def test_withdrawn_attempt_without_a_job_number_is_identified_by_its_comment(
    stage: Stage, is_own: bool
) -> None:
    await stage.start()
    void = msgspec.structs.replace(stage.row(), status=RunStatus.VOID)
    await stage.store.write(lambda tx: cluster_runs.put(tx, void))
    stage.answers(pending("21", void.comment if is_own else "another"))

    def is_deleted() -> bool:
        return stage.store.read(lambda db: cluster_runs.find(db, ALLOC, "main", 0)) is None

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.cluster.run)
        await stage.until(lambda: bool(stage.asked("scancel")) or is_deleted())
        nursery.cancel_scope.cancel()
    assert stage.asked("scancel") == ([[f"--name={NAME}", "21"]] if is_own else [])
    assert is_deleted() != is_own


async def test_pool_without_client_programs_has_a_reason(stage: Stage, tmp_path: Path) -> None:
    driver = SlurmDriver(stage.cluster, stage.wrapper_api)
    names = ("sbatch", "squeue", "scancel", "srun", "scontrol")
    for name in names[2:]:
        (tmp_path / name).touch(0o755)
    stage.cluster.tools = programs(seventeen, path=str(tmp_path))
    found = driver.fingerprint()
    assert found.trouble.startswith(f"sbatch, squeue cannot be found in {tmp_path}: install the ")
    assert found.attributes == {}
    for name in names[:2]:
        (tmp_path / name).touch(0o755)
    assert driver.fingerprint().attributes == {"driver.slurm": "true"}


async def test_unknown_attempt_is_not_adopted(stage: Stage) -> None:
    driver = SlurmDriver(stage.cluster, stage.wrapper_api)
    assert await driver.adopt(stage.attempt(), b"") is None
    run = await stage.start()
    adopted = await driver.adopt(stage.attempt(), b"")
    assert isinstance(adopted, SlurmAttempt)
    assert adopted.key == run.key


async def test_stop_ends_the_pause_before_another_submission(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.runner.drivers.slurm.attempt.LATE", 0.0)
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        for number in (1, 2):  # there is no pause before the second submission
            await stage.until(lambda number=number: len(stage.asked("sbatch")) == number)
            await stage.until(lambda: stage.row().status == RunStatus.WAITING)
            await trio.testing.wait_all_tasks_blocked()
            run.update_jobs([], trio.current_time())
            await stage.until(lambda: stage.row().status == RunStatus.SUBMITTING)
        await trio.testing.wait_all_tasks_blocked()
        assert len(stage.asked("sbatch")) == 2
        await run.stop("SIGINT", 0)
    end = await run.wait()
    assert (end.code, end.signal) == (137, 9)
    assert end.message == "the task was stopped before it started"
    assert len(stage.asked("sbatch")) == 2


async def test_repeated_claim_keeps_the_time_of_the_first(stage: Stage) -> None:
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        claim = stage.claim_of()
        (await stage.wrapper_api.claim(claim, nonce="n", job_id="17", host="h")).close()
        first = stage.row()
        assert await run.intakes["stdout"].take(0, b"x") == 1
        (await stage.wrapper_api.claim(claim, nonce="n", job_id="17", host="h")).close()
    second = stage.row()
    assert (second.claimed_at, second.stdout_base) == (first.claimed_at, first.stdout_base)
    assert second.token_hash != first.token_hash


# ---- race conditions -----------------------------------------------------------------------------


async def test_no_decision_is_made_during_a_claim(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.runner.drivers.slurm.attempt.LATE", 0.0)
    packs, may_go_on = trio.Event(), threading.Event()

    def pack(*given: object) -> None:
        trio.from_thread.run_sync(packs.set)
        may_go_on.wait()

    monkeypatch.setattr("daemon.runner.drivers.slurm.bundle.pack", pack)
    run = await stage.start()

    async def claim(secret: str) -> None:
        (await stage.wrapper_api.claim(secret, nonce="n", job_id="17", host="h")).close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        nursery.start_soon(claim, stage.claim_of())
        await packs.wait()
        for _ in range(3):
            run.update_jobs([], trio.current_time())
            await trio.testing.wait_all_tasks_blocked()
        assert (stage.row().status, len(stage.asked("sbatch"))) == (RunStatus.WAITING, 1)
        may_go_on.set()
    assert (stage.row().status, stage.row().job_id) == (RunStatus.RUNNING, "17")


async def test_claimed_attempt_is_not_submitted_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.runner.drivers.slurm.attempt.LATE", 0.0)
    run = await stage.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        row = msgspec.structs.replace(stage.row(), status=RunStatus.RUNNING, claimed_at=1)
        await stage.store.write(lambda tx: cluster_runs.put(tx, row))  # unknown to `run`
        run.update_jobs([], trio.current_time())
    assert stage.row() == row
    assert run.row == row
    assert len(stage.asked("sbatch")) == 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.cluster.run)
        await stage.until(lambda: bool(stage.asked("squeue")))  # cancellations come before `squeue`
        nursery.cancel_scope.cancel()
    assert stage.asked("scancel") == []


# ---- its logs --------------------------------------------------------------------------------------


async def test_logs_paused_by_an_earlier_daemon_are_resumed(stage: Stage) -> None:
    run = await stage.start()
    await run.resume()
    assert await run.intakes["stdout"].take(0, b"x") == 1


async def test_cancelled_pause_leaves_no_log_paused(stage: Stage) -> None:
    run = await stage.start()
    await run.intakes["stderr"].pause()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.pause)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert await run.intakes["stdout"].take(0, b"x") == 1


# ---- artifacts -----------------------------------------------------------------------------------


async def test_bundle_is_an_unnamed_file(stage: Stage) -> None:
    run = await stage.start()
    (stage.directory / "main/secrets/x").write_text("a secret")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        claim = stage.claim_of()
        before = sorted(stage.directory.rglob("*"))
        with await stage.wrapper_api.claim(claim, nonce="n", job_id="17", host="h") as file:
            assert sorted(stage.directory.rglob("*")) == before
            with tarfile.open(fileobj=file) as archive:
                assert "main/secrets/x" in archive.getnames()
        stage.wrapper_api.pieces(
            await stage.wrapper_api.claim(claim, nonce="n", job_id="17", host="h")
        )
        with pytest.raises(WrapperRejected, match="another wrapper"):
            await stage.wrapper_api.claim(claim, nonce="other", job_id="17", host="h")
        assert sorted(stage.directory.rglob("*")) == before


async def test_claims_of_an_attempt_are_processed_one_by_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing: list[int] = []

    def pack(*given: object) -> None:
        packing.append(1)
        trio.from_thread.run(trio.testing.wait_all_tasks_blocked)
        assert packing == [1]
        packing.remove(1)

    monkeypatch.setattr("daemon.runner.drivers.slurm.bundle.pack", pack)
    run = await stage.start()

    async def claim(secret: str) -> None:
        (await stage.wrapper_api.claim(secret, nonce="n", job_id="17", host="h")).close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.wait_for_start, silent)
        await stage.until(lambda: stage.row().job_id == "17")
        secret = stage.claim_of()
        nursery.start_soon(claim, secret)
        nursery.start_soon(claim, secret)
    assert stage.row().status == RunStatus.RUNNING


# ---- the programs ----------------------------------------------------------------------------------


@asynccontextmanager
async def program(directory: Path, text: str) -> AsyncIterator[SlurmCommands]:
    """Yield the commands of a cluster with one program, `squeue`."""
    path = directory / "squeue"
    path.write_text(text)
    path.chmod(0o755)
    alloc_dir = directory / "tasks/alloc"
    async with launchers.open_for_programs(alloc_dir, str(directory)) as launcher:
        yield SlurmCommands(path=str(directory), launcher=launcher, most=1000, seconds=math.inf)


async def test_program_output_is_limited(tmp_path: Path) -> None:
    async with program(tmp_path, "#!/bin/sh\nexec /bin/cat\n") as tools:
        assert await tools.run("squeue", stdin=b"x" * 1000) == "x" * 1000
    for where in ("", " >&2"):
        text = f"#!/bin/sh\nwhile :; do echo x{where}; done\n"
        async with program(tmp_path, text) as endless:
            with pytest.raises(SlurmCommandFailed, match="printed more than 1000 bytes") as failed:
                await endless.run("squeue")
        assert failed.value.unsure


async def test_program_that_cannot_be_started_has_its_own_error(tmp_path: Path) -> None:
    async with program(tmp_path, "#!/nowhere\n") as tools:
        with pytest.raises(SlurmCommandFailed, match="squeue cannot be started") as failed:
            await tools.run("squeue")
    assert failed.value.unsure
    async with program(tmp_path, "#!/bin/sh\necho no such thing; exit 3\n") as tools:
        with pytest.raises(SlurmCommandFailed, match="no such thing"):
            await tools.run("squeue")


async def test_slow_program_is_killed(tmp_path: Path) -> None:
    async with program(tmp_path, "#!/bin/sh\necho $$ >&2; exec sleep 600\n") as tools:
        short = msgspec.structs.replace(tools, seconds=0.2)
        with pytest.raises(SlurmCommandFailed, match=r"did not answer within 0\.2 s") as failed:
            await short.run("squeue")
    assert failed.value.unsure


async def test_malformed_arguments_are_refused(tmp_path: Path) -> None:
    async with program(tmp_path, "#!/bin/sh\n") as tools:
        with pytest.raises(SlurmCommandFailed, match="arguments that are not permitted") as failed:
            await tools.run("squeue", "--federation")
        assert not failed.value.unsure
        with pytest.raises(
            SlurmCommandFailed, match="squeue cannot be called with these arguments"
        ):
            await tools.run("squeue", "--name=a\nb")

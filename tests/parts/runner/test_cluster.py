"""Tasks as jobs of a cluster: their events, and the states of their allocations."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.clock import SystemClock
from daemon.runner.drivers.slurm import submission
from daemon.runner.drivers.slurm.attempt import SlurmAttempt
from storage.records.base import SECOND
from storage.records.cluster_run import RunStatus
from storage.records.task import LogConfig, Template
from storage.store import Store
from tests.fakes.slurm.world import FakeSlurm, fake_slurm
from tests.parts.runner.pool import PoolWorld, open_pool, settings
from tests.parts.runner.world import Pipe, batch, script, state_of


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_slurm(tmp_path / "slurm") as world:
        yield world


@pytest.fixture
async def world(store: Store, slurm: FakeSlurm, tmp_path: Path) -> AsyncIterator[PoolWorld]:
    async with open_pool(store, slurm, settings(tmp_path)) as opened:
        yield opened


async def test_task_runs_on_a_host_and_reports_its_exit(world: PoolWorld) -> None:
    done = await world.place(batch(script("echo out; echo err >&2; exit 3")))
    alloc = await world.until_done(done)
    assert alloc.client_status == "failed"
    assert world.output(done) == "out\n"
    assert world.output(done, kind="stderr") == "err\n"
    assert world.types(done)[-3:] == ["Started", "Terminated", "Not Restarting"]
    assert world.told(done)[-2][1] == "Exit Code: 3"
    (job,) = world.slurm.jobs(f"alloc-{done}")
    assert job["comment"] == f"{done}/main/0"
    assert any("was submitted to partition main" in text for text in world.said(done))
    assert any(text.endswith(("runs on node1", "runs on node2")) for text in world.said(done))


async def test_task_gets_its_inputs(world: PoolWorld) -> None:
    text = 'cat "$NOMAD_TASK_DIR/x"; echo "$A|$NOMAD_ALLOC_ID|${STEWARD_CLAIM-none}"; pwd; umask'
    template = Template(embedded_tmpl="rendered\n", dest_path="local/x", change_mode="noop")
    task = script(text, env={"A": 'it\'s "1"\n2'}, templates=[template])
    done = await world.place(batch(task))
    await world.until_done(done)
    home = world.config.pools["hpc"].directory + f"/steward-{done}-main"
    assert world.output(done) == f'rendered\nit\'s "1"\n2|{done}|none\n{home}/main\n0022\n'
    while await trio.Path(home).exists():  # noqa: ASYNC110  # no event reports this
        await trio.sleep(0.005)


async def test_no_variable_of_a_task_is_changed(world: PoolWorld) -> None:
    one = await world.place(batch(script('echo "$c $p"', env={"c": "mine", "p": "too"})))
    await world.until_done(one)
    assert world.output(one) == "mine too\n"


async def test_fatal_signal_is_reported(world: PoolWorld) -> None:
    done = await world.place(batch(script("kill -s KILL $$")))
    await world.until_done(done)
    assert world.told(done)[-2][1] == "Exit Code: 137, Signal: 9"


async def test_missing_command_is_named(world: PoolWorld) -> None:
    done = await world.place(batch(script("", config={"command": "not-there"})))
    await world.until_done(done)
    assert "the task's command was not found on its host" in world.told(done)[-2][1]


async def test_archive_that_cannot_be_unpacked_is_reported(
    world: PoolWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = tmp_path / "bin" / "tar"
    tar.parent.mkdir()
    tar.write_text('#!/bin/sh\n/bin/tar "$@"\nexit 2\n')
    tar.chmod(0o755)
    monkeypatch.setattr(submission, "PATH", f"{tar.parent}:{submission.PATH}")
    one = await world.place(batch(script("echo never")))
    await world.until_done(one)
    assert "could not be unpacked on its host" in world.told(one)[-2][1]
    assert not (world.directory(one) / "alloc/logs/main.stdout.0").exists()


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("", "the cluster ended it"),
        ("echo time >../.steward/why; ", "it reached its time limit"),
    ],
)
async def test_first_reason_of_an_end_is_reported(world: PoolWorld, before: str, why: str) -> None:
    # The task signals its parent, the wrapper, as the cluster does at the time limit.
    done = await world.place(batch(script(f"{before}kill -s TERM $PPID; exit 3")))
    await world.until_done(done)
    assert why in world.told(done)[-2][1]


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("kill -s TERM $$", "Exit Code: 143, Signal: 15, Exit Message: "),
        ("kill -s KILL $$", "Exit Code: 137, Signal: 9, Exit Message: "),
        ("kill -s PIPE $$", "Exit Code: 141, Signal: 13, Exit Message: "),  # as by a closed pipe
        ("exit 3", "Exit Code: 3"),
    ],
)
async def test_cluster_signal_is_reported_with_its_reason_if_the_wrapper_survives(
    world: PoolWorld, tmp_path: Path, end: str, said: str
) -> None:
    pipe = Pipe(tmp_path / "pipe")
    done = await world.place(batch(script(f"echo begun; read -r line <{pipe.path}; {end}")))
    await world.until_printed(done, "begun")
    (job,) = world.slurm.jobs(f"alloc-{done}")
    world.slurm.time_out(job["id"], is_signalled=False)  # the task signals itself
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    await world.until_done(done)
    (found,) = [text for kind, text in world.told(done) if kind == "Terminated"]
    assert found.startswith(said)
    assert found.endswith('(the cluster reports TIMEOUT)"') == ("Signal" in said)
    pipe.close()


async def test_task_that_exits_on_the_cluster_signal_is_reported_with_the_reason(
    world: PoolWorld, tmp_path: Path
) -> None:
    # The task signals its parent, the wrapper, and then exits with 0.
    pipe = Pipe(tmp_path / "pipe")
    goodbye = f"echo begun; read -r line <{pipe.path}; kill -s TERM $PPID; exit 0"
    done = await world.place(batch(script(goodbye)))
    await world.until_printed(done, "begun")
    (job,) = world.slurm.jobs(f"alloc-{done}")
    world.slurm.time_out(job["id"], is_signalled=False)
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    await world.until_done(done)
    (found,) = [text for kind, text in world.told(done) if kind == "Terminated"]
    assert found.endswith('(the cluster reports TIMEOUT)"')
    pipe.close()


async def test_harmless_signals_do_not_hide_the_reason_of_the_cluster(
    world: PoolWorld,
) -> None:
    text = "trap 'kill -s TERM $$' HUP; echo begun; while :; do sleep 0.05; done"
    done = await world.place(batch(script(text)))
    await world.until_printed(done, "begun")
    (job,) = world.slurm.jobs(f"alloc-{done}")
    world.slurm.time_out(job["id"], is_signalled=False)
    await world.runner.signal(done, "main", "SIGHUP")
    await world.until_done(done)
    (found,) = [text for kind, text in world.told(done) if kind == "Terminated"]
    assert found.endswith('(the cluster reports TIMEOUT)"')


@pytest.mark.parametrize("is_away", [True, False])
async def test_end_by_a_signal_without_a_cluster_reason_is_reported_as_a_signal(
    world: PoolWorld, tmp_path: Path, *, is_away: bool
) -> None:
    pipe = Pipe(tmp_path / "pipe")
    done = await world.place(
        batch(script(f"echo begun; read -r line <{pipe.path}; kill -s TERM $$"))
    )
    await world.until_printed(done, "begun")
    (job,) = world.slurm.jobs(f"alloc-{done}")
    if is_away:
        world.slurm.controller_away()
    else:
        world.slurm.forget(job["id"])
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    await world.until_done(done)
    assert ("Terminated", "Exit Code: 143, Signal: 15") in world.told(done)
    pipe.close()


async def test_stop_waits_for_the_grace_period(world: PoolWorld, tmp_path: Path) -> None:
    text = "trap 'echo told; exit 7' INT; echo begun; while :; do sleep 0.05; done"
    one = await world.place(batch(script(text, kill_timeout=60 * SECOND)))
    await world.until_printed(one, "begun")
    await world.stop(one)
    await world.until_done(one)
    assert world.output(one) == "begun\ntold\n"
    assert ("Terminated", "Exit Code: 7") in world.told(one)


async def test_task_that_ignores_a_stop_is_killed_with_its_processes(
    world: PoolWorld,
) -> None:
    text = "trap '' INT; echo begun; while :; do sleep 0.05; done"
    one = await world.place(batch(script(text)))
    await world.until_printed(one, "begun")
    await world.stop(one)
    await world.until_done(one)
    assert ("Terminated", "Exit Code: 137, Signal: 9") in world.told(one)


async def test_signals_reach_the_task(world: PoolWorld) -> None:
    text = "trap 'echo usr; exit 0' USR1; echo begun; while :; do sleep 0.05; done"
    one = await world.place(batch(script(text)))
    await world.until_printed(one, "begun")
    await world.runner.signal(one, "main", "SIGUSR1")
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    assert world.output(one) == "begun\nusr\n"


async def test_waiting_job_is_pending_names_its_reason_and_can_be_stopped(world: PoolWorld) -> None:
    for node in ("node1", "node2"):
        world.slurm.drain(node, "for a test")
    one = await world.place(batch(script("echo never")))
    await world.until(one, lambda found: any("waits" in text for text in world.said(one)))
    found = world.find(one)
    assert (found.client_status, state_of(found).state) == ("pending", "pending")
    assert world.rows(one)[0].status == RunStatus.WAITING
    await world.stop(one)
    await world.until_done(one)
    assert "Started" not in world.types(one)
    assert [row.status for row in world.rows(one)] in ([RunStatus.VOID], [])


async def test_next_daemon_recovers_running_attempts(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    pipe = Pipe(tmp_path / "pipe")
    text = f"echo one; read -r line <{pipe.path}; echo two; exit 4"
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        one = await world.place(batch(script(text)))
        await world.until_printed(one, "one")
        config = world.config
    async with open_pool(store, slurm, config) as world:
        with pipe.path.open("w") as opened:
            opened.write("go on\n")
        await world.until_done(one)
        assert world.output(one) == "one\ntwo\n"
        assert world.types(one).count("Started") == 1
        assert world.told(one)[-2][1] == "Exit Code: 4"
    assert len(slurm.jobs()) == 1
    pipe.close()


async def test_next_daemon_reads_the_exit_of_tasks_that_ended_in_between(
    store: Store, slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "GRACE", 0)  # limits only the start
    pipe, end = Pipe(tmp_path / "pipe"), Pipe(tmp_path / "end")
    text = f"echo one; read -r line <{pipe.path}; echo two; echo ended >{end.path}; exit 4"
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        one = await world.place(batch(script(text)))
        await world.until_printed(one, "one")
        config = world.config
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    assert await end.line() == "ended"
    async with open_pool(store, slurm, config) as world:
        await world.until_done(one)
        assert world.output(one) == "one\ntwo\n"
        assert world.told(one)[-2][1] == "Exit Code: 4"
    assert len(slurm.jobs()) == 1
    pipe.close()
    end.close()


async def test_next_daemon_recovers_pending_attempts(
    store: Store, slurm: FakeSlurm, tmp_path: Path
) -> None:
    for node in ("node1", "node2"):
        slurm.drain(node, "for a test")
    async with open_pool(store, slurm, settings(tmp_path)) as world:
        one = await world.place(batch(script("echo ran")))
        await world.until(one, lambda _: any("waits" in text for text in world.said(one)))
        config = world.config
    slurm.resume("node1")
    async with open_pool(store, slurm, config) as world:
        alloc = await world.until_done(one)
        assert alloc.client_status == "complete"
        assert world.output(one) == "ran\n"
        assert world.types(one).count("Task Setup") == 1
    assert len(slurm.jobs()) == 1


async def test_lost_submission_is_repeated(
    world: PoolWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.runner.drivers.slurm.attempt.LATE", 0.1)
    world.slurm.crash_after_submission("forgotten")
    one = await world.place(batch(script("echo ran")))
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    assert world.output(one) == "ran\n"


async def test_accepted_job_without_a_response_is_not_submitted_again(world: PoolWorld) -> None:
    world.slurm.crash_after_submission("unsure")
    one = await world.place(batch(script("echo ran")))
    await world.until_done(one)
    assert world.output(one) == "ran\n"
    assert len(world.slurm.jobs(f"alloc-{one}")) == 1


async def test_job_that_the_cluster_launches_twice_runs_once(
    world: PoolWorld, tmp_path: Path
) -> None:
    pipe = Pipe(tmp_path / "pipe")
    text = f"echo begun; read -r line <{pipe.path}; echo done"
    one = await world.place(batch(script(text)))
    await world.until_printed(one, "begun")
    (job,) = world.slurm.jobs(f"alloc-{one}")
    world.slurm.launch_again(job["id"])
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    assert world.output(one) == "begun\ndone\n"
    pipe.close()


async def test_response_older_than_the_claim_changes_nothing(
    world: PoolWorld, tmp_path: Path
) -> None:
    """The writes of submission and claim may share a commit.

    Their callers resume in any order.
    """
    pipe = Pipe(tmp_path / "pipe")
    one = await world.place(batch(script(f"echo begun; read -r line <{pipe.path}")))
    await world.until_printed(one, "begun")
    (run,) = world.engine.wrapper_api.of_allocation(one)
    run._apply(msgspec.structs.replace(run.row, status=RunStatus.WAITING))
    assert run.row.status == RunStatus.RUNNING
    with pipe.path.open("w") as opened:
        opened.write("continue\n")
    assert (await world.until_done(one)).client_status == "complete"
    pipe.close()


async def test_job_unknown_to_the_cluster_continues(world: PoolWorld, tmp_path: Path) -> None:
    pipe = Pipe(tmp_path / "pipe")
    one = await world.place(batch(script(f"echo begun; read -r line <{pipe.path}; exit 5")))
    await world.until_printed(one, "begun")
    (job,) = world.slurm.jobs(f"alloc-{one}")
    world.slurm.forget(job["id"])
    with pipe.path.open("w") as opened:
        opened.write("go on\n")
    await world.until_done(one)
    assert ("Terminated", "Exit Code: 5") in world.told(one)
    pipe.close()


async def test_wrapper_commands_arrive_after_the_clock_was_set_back(
    world: PoolWorld,
) -> None:
    text = "trap 'echo usr; exit 0' USR1; echo begun; while :; do sleep 0.05; done"
    one = await world.place(batch(script(text)))
    await world.until_printed(one, "begun")
    (known,) = world.engine.wrapper_api.of_allocation(one)
    run = SlurmAttempt(  # as the next daemon loads it
        known.cluster,
        known.attempt,
        known.row,
        claims=lambda row: (row.comment, row.claim_hash),
        release=lambda run: None,
    )
    later = SystemClock().now()  # numbers of commands begin with the time
    await run.signal("SIGUSR2")
    await run.signal("SIGHUP")
    assert await run.orders(later) == f"{later + 1} signal USR2\n{later + 2} signal HUP\n"
    await run.signal("SIGUSR1")
    assert await run.orders(later + 2) == f"{later + 3} signal USR1\n"
    await known.signal("SIGUSR1")
    await world.until_done(one)


async def test_a_task_without_logs_keeps_none(world: PoolWorld) -> None:
    task = script("echo nobody reads this", log_config=LogConfig(disabled=True))
    one = await world.place(batch(task))
    alloc = await world.until_done(one)
    assert alloc.client_status == "complete"
    assert not (world.directory(one) / "alloc/logs/main.stdout.0").exists()


async def test_secret_is_in_no_argument_and_no_script(world: PoolWorld) -> None:
    one = await world.place(batch(script("exit 0")))
    await world.until_done(one)
    row = world.rows(one)[0]
    (job,) = world.slurm.jobs(f"alloc-{one}")
    calls = str(world.slurm.known()["calls"])
    secret = f"{one}.0."
    assert row.claim_hash
    assert secret not in calls
    assert secret not in job["script"]

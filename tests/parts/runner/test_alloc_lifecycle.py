"""The times of events in an allocation: restarts, delays, health (recorded: restart-policy)."""

import errno
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.launcher.client import Impatience, longest_wait
from daemon.runner.core import file_descriptors
from daemon.runner.core.driver import Attempt, StartFailed, TaskHandle
from daemon.runner.drivers.mock import MockDriver
from daemon.runner.setup import task_setup
from daemon.scheduler.reschedule import NOT_RETRIED
from storage import loop_share
from storage.errors import Refused
from storage.records.allocation import DesiredState, DesiredTransition
from storage.records.base import SECOND
from storage.records.group import EphemeralDisk, Migrate, Update
from storage.records.task import Artifact, Lifecycle, RestartPolicy
from tests import samples
from tests.parts.runner.alloc_stage import Stage, batch, mock, on_stage, service

FOREVER = {"run_for": "10000h"}
TWICE = RestartPolicy(attempts=2, interval=60 * SECOND, delay=4 * SECOND, mode="fail")
UPDATE = Update(
    health_check="task_states", min_healthy_time=10 * SECOND, healthy_deadline=30 * SECOND
)


def at(stage: Stage, kind: str, task: str = "main") -> list[int]:
    """Return the seconds at which a task had events of this kind."""
    return [second for second, type_, _ in stage.told(task) if type_ == kind]


async def test_failed_task_restarts_after_its_delay(tmp_path: Path, autojump_clock: object) -> None:
    task = mock(config={"run_for": "1s", "exit_code": 5}, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        await stage.runner.ended.wait()
    assert stage.told()[2:6] == [
        (0, "Started", "Task started by client"),
        (1, "Terminated", "Exit Code: 5"),
        (1, "Restarting", "Task restarting in 4s"),
        (5, "Started", "Task started by client"),
    ]
    assert at(stage, "Started") == [0, 5, 10]
    reason = 'Exceeded allowed attempts 2 in interval 1m0s and mode is "fail"'
    assert stage.told()[-1] == (11, "Not Restarting", reason)
    state = stage.book.states["main"]
    assert (state.restarts, state.failed, stage.status) == (2, True, "failed")


@pytest.mark.parametrize(("codes", "starts"), [("5, 75", 3), ("1-10", 3), ("6-255", 1)])
async def test_a_job_names_the_exit_codes_that_are_retried(
    tmp_path: Path, autojump_clock: object, codes: str, starts: int
) -> None:
    task = mock(config={"run_for": "1s", "exit_code": 5}, restart_policy=TWICE)
    meta = {"steward_retry_exit_codes": codes}
    job = samples.job("job", samples.group("web", task, meta=meta), type="batch")
    async with on_stage(job, tmp_path) as stage:
        await stage.runner.ended.wait()
    assert len(at(stage, "Started")) == starts
    assert (stage.book.ended_for == NOT_RETRIED) is (starts == 1)


async def test_delay_mode_waits_for_the_next_interval(
    tmp_path: Path, autojump_clock: object
) -> None:
    policy = RestartPolicy(attempts=1, interval=20 * SECOND, delay=SECOND, mode="delay")
    task = mock(config={"run_for": "1s", "exit_code": 5}, restart_policy=policy)
    async with on_stage(batch(task), tmp_path) as stage:
        await trio.sleep(30)
        stage.want(desired_status="stop")
    assert at(stage, "Started")[:3] == [0, 2, 20]
    restarts = [text for _, kind, text in stage.told() if kind == "Restarting"]
    assert restarts[1].startswith("Exceeded allowed attempts, applying a delay - ")


async def test_service_restarts_after_a_successful_exit(
    tmp_path: Path, autojump_clock: object
) -> None:
    task = mock(config={"run_for": "1s"}, restart_policy=TWICE)
    async with on_stage(service(task), tmp_path) as stage:
        await stage.runner.ended.wait()
    assert at(stage, "Started") == [0, 5, 10]
    assert stage.status == "failed"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_start_without_free_descriptors_is_retried_without_using_an_attempt(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    start, failures = MockDriver.start, iter(range(30))

    async def short(driver: MockDriver, attempt: Attempt) -> TaskHandle:
        if next(failures, None) is None:
            return await start(driver, attempt)
        error = OSError(number, os.strerror(number))
        raise StartFailed(f"cannot start the task: {error}", recoverable=True) from error

    monkeypatch.setattr(MockDriver, "start", short)
    task = mock(config={"run_for": "1s"}, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        await stage.runner.ended.wait()
    assert at(stage, "Driver Failure") == [0]
    assert at(stage, "Started") == [30]
    assert (stage.book.states["main"].restarts, stage.status) == (0, "complete")


async def test_attempt_waits_for_free_descriptors(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([True] * 30)
    monkeypatch.setattr(file_descriptors, "is_short", lambda: next(answers, False))
    task = mock(config={"run_for": "1s"}, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        await stage.runner.ended.wait()
    assert (at(stage, "Driver Failure"), at(stage, "Started")) == ([0], [30])
    assert (stage.book.states["main"].restarts, stage.status) == (0, "complete")


async def test_task_that_waits_for_descriptors_can_be_stopped(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_descriptors, "is_short", lambda: True)
    async with on_stage(service(mock()), tmp_path) as stage:
        await trio.sleep(60)
        stage.want(desired_status="stop")
        await stage.runner.ended.wait()
    assert at(stage, "Started") == []
    assert stage.status == "complete"


LIMITED = """
import os, resource
from daemon.runner.core.file_descriptors import is_short
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(is_short())
taken = []
try:
    while True:
        taken.append(os.open("/", os.O_PATH))
except OSError:
    pass
print(is_short())
for one in taken:
    os.close(one)
print(is_short(), len(os.listdir("/proc/self/fd")) == before)
"""


async def test_descriptor_shortage_is_detected_without_a_leak() -> None:
    done = await trio.run_process([sys.executable, "-c", LIMITED], capture_stdout=True)
    assert done.stdout.split() == [b"False", b"True", b"False", b"True"]


@pytest.mark.parametrize(("recoverable", "starts"), [(True, 3), (False, 1)])
async def test_only_a_temporary_start_error_is_retried(
    tmp_path: Path, autojump_clock: object, recoverable: bool, starts: int
) -> None:
    config = {"start_error": "no luck", "start_error_recoverable": recoverable}
    task = mock(config=config, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        await stage.runner.ended.wait()
    assert stage.types().count("Driver Failure") == starts
    assert stage.status == "failed"


async def test_task_can_be_killed_before_its_next_attempt(
    tmp_path: Path, autojump_clock: object
) -> None:
    task = mock(config={"exit_code": 1}, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        await trio.sleep(2)
        stage.want(desired_status="stop")
        await stage.runner.ended.wait()
        assert trio.current_time() - stage._began < 3
    assert stage.types()[-2:] == ["Restarting", "Killing"]
    assert stage.status == "complete"


async def test_task_can_be_killed_during_its_start(tmp_path: Path, autojump_clock: object) -> None:
    task = mock(config={"start_block_for": "5s", **FOREVER})
    async with on_stage(batch(task), tmp_path) as stage:
        await trio.sleep(1)
        stage.want(desired_status="stop")
    assert stage.told()[2:] == [
        (1, "Killing", "Sent interrupt. Waiting 1s before force killing"),
        (5, "Started", "Task started by client"),
        (5, "Terminated", "Exit Code: 130, Signal: 2"),
        (5, "Killed", "Task successfully killed"),
    ]


async def test_task_that_does_not_stop_is_killed_after_its_kill_timeout(
    tmp_path: Path, autojump_clock: object
) -> None:
    task = mock(config={"kill_after": "1h", **FOREVER}, kill_timeout=7 * SECOND)
    async with on_stage(batch(task), tmp_path) as stage:
        await trio.sleep(1)
        stage.want(desired_status="stop")
    assert (8, "Terminated", "Exit Code: 137, Signal: 9") in stage.told()


async def test_task_restarts_only_after_its_exit_is_stored(
    tmp_path: Path, autojump_clock: object
) -> None:
    task = mock(config={"exit_code": 1}, restart_policy=TWICE)
    async with on_stage(batch(task), tmp_path) as stage:
        stage.book.is_full = True
        await trio.sleep(20)
        assert stage.book.states == {}
        stage.book.is_full = False
        stage.runner._report.publish()
    assert at(stage, "Started") == [20, 20, 24]  # the first start, at 0, was reported at 20
    assert stage.book.states["main"].restarts == 2


async def test_group_shutdown_delay_precedes_the_stop_of_its_tasks(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER), shutdown_delay=30 * SECOND)
    async with on_stage(job, tmp_path) as stage:
        await trio.sleep(1)
        stage.want(desired_status="stop")
    assert at(stage, "Killing") == [31]


async def test_group_shutdown_delay_can_be_shortened(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER), shutdown_delay=30 * SECOND)
    async with on_stage(job, tmp_path) as stage:
        await trio.sleep(1)
        stage.want(desired_status="stop")
        await trio.sleep(1)
        stage.want(desired=DesiredState(transition=DesiredTransition(no_shutdown_delay=True)))
    assert at(stage, "Killing") == [2]


async def test_sidecars_are_killed_after_the_main_tasks(
    tmp_path: Path, autojump_clock: object
) -> None:
    slow = mock("main", config={"kill_after": "3s", **FOREVER}, kill_timeout=60 * SECOND)
    side = mock("side", config=FOREVER, lifecycle=Lifecycle(hook="prestart", sidecar=True))
    async with on_stage(service(slow, side), tmp_path) as stage:
        await trio.sleep(1)
        stage.want(desired_status="stop")
    assert at(stage, "Terminated") == [4]
    assert at(stage, "Killing", "side") == [4]


# ---- health ---------------------------------------------------------------------------------------


async def staged(tmp_path: Path, job: Any, seconds: int, **fields: Any) -> Stage:
    """Run an allocation for some seconds, then stop it."""
    async with on_stage(job, tmp_path, **fields) as stage:
        await trio.sleep(seconds)
        stage.want(desired_status="stop")
    return stage


async def test_allocation_is_healthy_after_the_minimum_healthy_time(
    tmp_path: Path,
    autojump_clock: object,
) -> None:
    job = service(mock("a", config=FOREVER), mock("b", config=FOREVER), update=UPDATE)
    assert (await staged(tmp_path, job, 60, deployment_id="d")).health == [(10, True)]


async def test_restart_resets_the_minimum_healthy_time(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER), update=UPDATE)
    async with on_stage(job, tmp_path, deployment_id="d") as stage:
        await trio.sleep(6)
        await stage.runner.tasks.restart("main")
        await trio.sleep(30)
        stage.want(desired_status="stop")
    assert stage.health == [(16, True)]


class Watched(MockDriver):
    """A driver that records, at each start of a task, how long calls may wait for the launcher."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[float] = []

    async def start(self, attempt: Attempt) -> TaskHandle:
        self.limits.append(longest_wait())
        return await super().start(attempt)


async def test_restart_on_request_waits_for_the_launcher_without_limit(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = mock("first", config={"run_for": "1s"}, lifecycle=Lifecycle(hook="prestart"))
    async with on_stage(service(first, mock(config=FOREVER)), tmp_path) as stage:
        stage.runner._host.drivers["mock_driver"] = watched = Watched()
        await trio.sleep(5)
        with Impatience():
            await stage.runner.tasks.restart(None, all_tasks=True)
        await trio.sleep(10)
        stage.want(desired_status="stop")
    assert [stage.types(name).count("Started") for name in ("first", "main")] == [2, 2]
    assert watched.limits
    assert set(watched.limits) == {float("inf")}


async def test_request_to_an_allocation_without_running_tasks_is_refused(
    tmp_path: Path, autojump_clock: object
) -> None:
    policy = RestartPolicy(attempts=5, interval=600 * SECOND, delay=100 * SECOND, mode="fail")
    main = mock(config={"run_for": "1s", "exit_code": 1}, restart_policy=policy)
    async with on_stage(service(main), tmp_path) as stage:
        await trio.sleep(5)
        assert stage.types()[-1] == "Restarting"
        tasks = stage.runner.tasks
        for request in (
            partial(tasks.signal, None, "SIGHUP"),
            partial(tasks.restart, None),
            partial(tasks.restart, None, all_tasks=True),
        ):
            with pytest.raises(Refused, match="Task not running"):
                await request()
        stage.want(desired_status="stop")


async def test_stopping_allocation_restarts_no_ended_task(
    tmp_path: Path, autojump_clock: object
) -> None:
    first = mock("first", config={"run_for": "1s"}, lifecycle=Lifecycle(hook="prestart"))
    after = mock("after", config={"run_for": "60s"}, lifecycle=Lifecycle(hook="poststop"))
    async with on_stage(service(first, mock(config=FOREVER), after), tmp_path) as stage:
        await trio.sleep(5)
        stage.want(desired_status="stop")
        await trio.sleep(10)
        await stage.runner.tasks.restart(None, all_tasks=True)
    assert [stage.types(name).count("Started") for name in ("first", "main", "after")] == [1, 1, 2]


async def test_allocation_is_unhealthy_after_its_deadline_and_the_task_has_a_reason(
    tmp_path: Path,
    autojump_clock: object,
) -> None:
    task = mock(
        config={"run_for": "5s", "exit_code": 1},
        restart_policy=RestartPolicy(attempts=90, interval=3600 * SECOND, delay=SECOND),
    )
    stage = await staged(tmp_path, service(task, update=UPDATE), 60, deployment_id="d")
    assert stage.health == [(30, False)]
    (complaint,) = [text for _, kind, text in stage.told() if kind == "Alloc Unhealthy"]
    assert complaint in {
        "Task not running by healthy_deadline of 30s",
        "Task not running for min_healthy_time of 10s by healthy_deadline of 30s",
    }


async def test_allocation_is_unhealthy_after_the_permanent_failure_of_a_task(
    tmp_path: Path, autojump_clock: object
) -> None:
    task = mock(config={"run_for": "5s", "exit_code": 1})
    stage = await staged(tmp_path, service(task, update=UPDATE), 60, deployment_id="d")
    assert stage.health == [(5, False)]
    assert "Alloc Unhealthy" not in stage.types()


async def test_service_without_a_deployment_has_a_health(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER), migrate=Migrate(min_healthy_time=3 * SECOND))
    assert (await staged(tmp_path, job, 60)).health == [(3, True)]


async def test_allocation_stopped_before_it_was_healthy_has_no_health(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER))
    assert (await staged(tmp_path, job, 2)).health == []


async def test_a_batch_job_has_no_health(tmp_path: Path, autojump_clock: object) -> None:
    assert (await staged(tmp_path, batch(mock(config=FOREVER)), 600)).health == []


async def test_new_deployment_resets_the_health(tmp_path: Path, autojump_clock: object) -> None:
    job = service(mock(config=FOREVER), update=UPDATE)
    async with on_stage(job, tmp_path, deployment_id="d1") as stage:
        await trio.sleep(20)
        stage.book.healthy.clear()
        stage.want(deployment_id="d2")
        await trio.sleep(20)
        stage.want(desired_status="stop")
    assert stage.health == [(30, True)]


# ---- disk -------------------------------------------------------------------------------------------


DISK = EphemeralDisk(size_mb=1)
TOO_MUCH = (
    "Disk Resources Exceeded",
    "The allocation uses 3 MB of disk, but its group requested 1 MB",
)


async def test_allocation_over_its_disk_limit_has_one_event(
    tmp_path: Path, autojump_clock: object
) -> None:
    job = service(mock(config=FOREVER), ephemeral_disk=DISK)
    async with on_stage(job, tmp_path) as stage:
        await trio.sleep(1)
        assert stage.runner.disk == 1 << 20
        for _ in range(2):
            await stage.runner.report_over_limit((2 << 20) + 1)
        await trio.sleep(1)
        assert [item[1:] for item in stage.told()].count(TOO_MUCH) == 1
        assert stage.status == "running"
        stage.want(desired_status="stop")


async def test_allocation_over_its_disk_limit_fails_without_a_restart_if_configured(
    tmp_path: Path, autojump_clock: object
) -> None:
    tasks = mock(config=FOREVER, restart_policy=TWICE), mock("side", config=FOREVER)
    job = service(*tasks, ephemeral_disk=DISK)
    async with on_stage(job, tmp_path, disk_is_limit=True) as stage:
        await trio.sleep(1)
        await stage.runner.report_over_limit((2 << 20) + 1)
        await stage.runner.ended.wait()
        assert [item[1:] for item in stage.told()].count(TOO_MUCH) == 1
        assert stage.types()[-1] == "Not Restarting"
        assert stage.status == "failed"


async def test_artifacts_module_is_imported_in_a_thread_and_can_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def missing(name: str) -> None:
        threads.append(threading.get_ident())
        raise OSError("the disk is gone")

    monkeypatch.setattr(loop_share, "import_module", missing)
    monkeypatch.delitem(sys.modules, task_setup._FETCH, raising=False)
    job = batch(mock(artifacts=[Artifact(getter_source="http://example.test/a")]))
    async with on_stage(job, tmp_path) as stage:
        pass
    assert stage.status == "failed"
    text = "the module that downloads artifacts cannot be loaded: the disk is gone"
    assert text in [told for _, _, told in stage.told()]
    assert threads
    assert threading.get_ident() not in threads

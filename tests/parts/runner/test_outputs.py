"""The outputs file belongs to a task: its content is untrusted and harms no other task."""

import gc
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import trio

from daemon.flow import outputs
from daemon.launcher.client import Launcher
from daemon.launcher.messages import CreateAllocDir, FinishAttempt, StartTask
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup import step_data
from storage.read_pool import ReadSnapshot
from storage.records.base import SECOND
from storage.records.task import RestartPolicy
from storage.store import Store
from tests.parts.runner.steps import FAULTY, OUTPUT, placed, placed_second, step, stored
from tests.parts.runner.world import open_world, script


@pytest.mark.parametrize(("text", "reason"), FAULTY)
async def test_invalid_outputs_fail_a_successful_task(
    store: Store, data_dir: Path, text: str, reason: str
) -> None:
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(script(text), steward_outputs="rows"))
        assert (await world.until_done(one)).client_status == "failed"
        assert reason in dict(world.told(one))["Output Failure"]
        assert stored(world) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a task of another user needs root")
async def test_output_link_is_followed_with_the_permissions_of_the_task(
    store: Store, data_dir: Path
) -> None:
    secret = data_dir / "secret"
    secret.write_text("rows=1\n")
    secret.chmod(0o600)
    task = script(f"rm {OUTPUT}; ln -s {secret} {OUTPUT}", user="nobody")
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(task, steward_outputs="rows"))
        assert (await world.until_done(one)).client_status == "failed"
        assert stored(world) == []


async def test_tasks_of_a_group_write_one_set_of_outputs(store: Store, data_dir: Path) -> None:
    first, second = (
        script(f"echo a=1 > {OUTPUT}", "first"),
        script(f"echo b=2 > {OUTPUT}", "second"),
    )
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(first, second, steward_outputs="a, b"))
        assert (await world.until_done(one)).client_status == "complete"
        assert [found.outputs for found in stored(world)] == [{"a": "1", "b": "2"}]


async def test_two_tasks_cannot_write_the_same_output(store: Store, data_dir: Path) -> None:
    tasks = [script(f"echo a=1 > {OUTPUT}", name) for name in ("first", "second")]
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(*tasks, steward_outputs="a"))
        assert (await world.until_done(one)).client_status == "failed"
        told = [world.told(one, name) for name in ("first", "second")]
        assert any(
            "has already written the output a" in text for found in told for _, text in found
        )


async def test_outputs_of_a_newer_allocation_replace_the_earlier_ones(
    store: Store, data_dir: Path
) -> None:
    job = step(script(f"test -e {data_dir}/go || echo a=1 > {OUTPUT}"), steward_parallel="1")
    async with open_world(store, data_dir) as world:
        one = await placed(world, job)
        await world.until_done(one)
        assert [found.outputs for found in stored(world)] == [{"a": "1"}]
        (data_dir / "go").touch()
        await world.until_done(await placed(world, job))
        assert stored(world) == []


async def test_attempt_without_outputs_replaces_those_of_the_attempt_before(
    store: Store, data_dir: Path
) -> None:
    text = f"test -e {data_dir}/go && exit; touch {data_dir}/go; echo a=1 > {OUTPUT}; exit 1"
    once = RestartPolicy(attempts=1, interval=60 * SECOND, delay=0)
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(script(text, restart_policy=once), steward_parallel="1"))
        assert (await world.until_done(one)).client_status == "complete"
        assert stored(world) == []


# --- results of earlier steps ---


@pytest.mark.parametrize(
    ("limit", "most", "meta", "reason"),
    [
        (step_data, 10, {}, "needs.json has "),
        (outputs, 1, {}, "the steps that it needs have more than 1 output values"),
        (
            step_data,
            10_000,
            {"steward_for_each": "${output.a[0].x}"},
            "the list of the step is invalid: 'value' is not JSON",
        ),
    ],
)
async def test_task_without_its_input_results_does_not_start(
    store: Store,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: ModuleType,
    most: int,
    meta: dict[str, str],
    reason: str,
) -> None:
    name = "MOST_PAYLOAD" if limit is step_data else "MAX_VALUES"
    monkeypatch.setattr(limit, name, most)
    task = script("echo begun", restart_policy=RestartPolicy(attempts=3, mode="fail"))
    async with open_world(store, data_dir) as world:
        one = await placed_second(world, task, count=2, **meta)
        assert (await world.until_done(one)).client_status == "failed"
        told = world.told(one)
        assert [kind for kind, _ in told].count("Setup Failure") == 1
        assert (
            f"cannot provide the results of earlier steps: {reason}" in dict(told)["Setup Failure"]
        )
        assert "Started" not in dict(told)


async def test_step_needs_three_requests_to_the_launcher(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()
    usual = Launcher._request

    async def noted(launcher: Launcher, request: Any, *rest: Any) -> Any:
        asked.append(request)
        return await usual(launcher, request, *rest)

    async with open_world(store, data_dir) as world:
        monkeypatch.setattr(Launcher, "_request", noted)
        text = f'grep -q value "$NOMAD_TASK_DIR/needs.json" && echo rows=7 > {OUTPUT}'
        one = await placed_second(world, script(text), steward_outputs="rows")
        assert (await world.until_done(one)).client_status == "complete"
        about_it = [request for request in asked if getattr(request, "allocation", "") == one]
        assert [type(request) for request in about_it] == [CreateAllocDir, StartTask, FinishAttempt]
        assert {"rows": "7"} in [found.outputs for found in stored(world)]


async def test_outputs_longer_than_an_answer_are_read(store: Store, data_dir: Path) -> None:
    text = f"printf 'rows=%020000d' 7 > {OUTPUT}"
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(script(text), steward_outputs="rows"))
        assert (await world.until_done(one)).client_status == "complete"
        assert [found.outputs for found in stored(world)] == [{"rows": f"{7:020000}"}]


async def test_results_are_in_a_file_and_not_in_memory(store: Store, data_dir: Path) -> None:
    text = (
        'grep -q value "$NOMAD_TASK_DIR/needs.json" && echo there; read line < ' + f"{data_dir}/go"
    )
    once = RestartPolicy(attempts=1, interval=3600 * SECOND, delay=0, mode="fail")
    os.mkfifo(data_dir / "go")
    async with open_world(store, data_dir) as world:
        one = await placed_second(world, script(text, restart_policy=once))
        await world.until_printed(one, "there\n")
        loaded = [found for found in gc.get_objects() if isinstance(found, step_data.StepData)]
        assert {found.needs for found in loaded} == {b""}
        for number in (1, 2):
            await world.until_printed(one, "there\n" * number)
            await trio.Path(data_dir / "go").write_bytes(b"")  # `read` gets no line: exit code 1
        assert (await world.until_done(one)).client_status == "failed"


async def test_start_without_room_for_its_files_names_them_and_is_tried_again(
    store: Store, data_dir: Path
) -> None:
    policy = RestartPolicy(attempts=2, interval=3600 * SECOND, delay=0, mode="fail")
    blocked = script(f"rm {OUTPUT}; mkdir {OUTPUT}; exit 1", restart_policy=policy)
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(blocked, steward_outputs="rows"))
        assert (await world.until_done(one)).client_status == "failed"
        told = world.told(one)
        texts = [text for kind, text in told if "of earlier steps cannot be written" in text]
        assert len(texts) == 2
        assert [kind for kind, _ in told].count("Restarting") == 2


async def test_long_outputs_are_parsed_in_a_thread(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def parsed(text: str) -> dict[str, str]:
        threads.append(threading.current_thread())
        return {"x": text[:1]}

    monkeypatch.setattr(step_data, "_parsed", parsed)
    async with open_world(store, data_dir) as world:
        one = await placed(world, step(script(f"seq 2000 > {OUTPUT}"), steward_outputs="x"))
        assert (await world.until_done(one)).client_status == "complete"
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize(("count", "in_thread"), [(2, False), (2000, True)])
async def test_only_long_results_of_earlier_steps_are_loaded_in_a_thread(
    store: Store, data_dir: Path, monkeypatch: pytest.MonkeyPatch, count: int, in_thread: bool
) -> None:
    threads: list[threading.Thread] = []
    load = step_data.load

    def noted(db: ReadSnapshot, instance: TaskInstance) -> step_data.StepData:
        found = load(db, instance)
        threads.append(threading.current_thread())
        return found

    monkeypatch.setattr(step_data, "load", noted)
    async with open_world(store, data_dir) as world:
        one = await placed_second(world, script("exit 0"), count=count)
        assert (await world.until_done(one)).client_status == "complete"
    assert [thread is not threading.main_thread() for thread in threads] == [in_thread]

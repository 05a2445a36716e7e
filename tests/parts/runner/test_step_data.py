"""Outputs of ended tasks: the end of the last element of a step, and the limit of bytes."""

from typing import Any

import pytest
import trio

from daemon.flow import outputs
from daemon.runner.core.driver import ExitResult
from daemon.runner.core.status_report import AllocReport, ReportQueue
from daemon.runner.core.task_instance import TaskInstance
from daemon.runner.setup import step_data
from storage.queries import jobs, runs
from storage.records.allocation import TaskState
from storage.records.flow import FlowRun, RunStep
from storage.records.job import Job
from storage.store import Store
from storage.writer import Transaction
from tests import samples
from tests.parts.evals.cluster import Ticking, ids
from tests.unit.runner.placements import placed

RUN = FlowRun(namespace="default", job_id="flow", number=1, version=0)


class Written:
    """The outputs file of a task."""

    def __init__(self, task: str, text: str) -> None:
        self.task, self._text = task, text

    def own(self, path: str) -> str:
        return path

    async def read(self, path: str, most: int) -> bytes:
        return self._text.encode()[:most]


class Step:
    """A step of a run, with the reports of its elements."""

    def __init__(self, store: Store, *tasks: str, **meta: str) -> None:
        self.store, self.reports = store, ReportQueue(store, Ticking(), ids())
        group = samples.group("web", *map(samples.task, tasks), meta=meta)
        self.job: Job = samples.job("flow", group, type="batch")

    async def begin(self) -> None:
        def work(tx: Transaction) -> None:
            jobs.append_version(tx, self.job)
            runs.put(tx, RUN, None)
            runs.put_steps(tx, RUN, [RunStep(name="web", opened=1)], {}, {})

        await self.store.write(work)

    def element(self, alloc_id: str, index: int = 0) -> "Element":
        return Element(self, alloc_id, index)


class Element:
    """An allocation of a step."""

    def __init__(self, step: Step, alloc_id: str, index: int) -> None:
        self._step = step
        (group,) = step.job.task_groups or ()
        allocation = placed(step.job, "n", alloc_id, index)
        self._instance = TaskInstance(allocation=allocation, job=step.job, group=group)
        self.report = AllocReport(step.reports, allocation)
        self.report.states = {task.name: TaskState() for task in group.tasks or ()}

    async def ends(self, task: str, text: str, *, is_success: bool = True) -> str:
        files: Any = Written(task, text)
        end = ExitResult(code=int(not is_success))
        return await step_data.collect(self._step.store, files, self._instance, self.report, end)


@pytest.mark.parametrize("is_known", [True, False])
async def test_task_that_waits_for_a_restart_has_not_ended(store: Store, *, is_known: bool) -> None:
    step = Step(store, "one", "two", steward_outputs="rows")
    await step.begin()
    element = step.element("a")
    await element.ends("one", "", is_success=False)
    assert await element.ends("two", "") == ""
    lacks = "the step has not written its output rows"
    assert await element.ends("one", "rows=1\n" if is_known else "") == ("" if is_known else lacks)


async def test_outputs_in_pending_reports_are_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_STEP", 100)
    step = Step(store, "main")
    await step.begin()
    text = f"rows={'x' * 60}\n"
    first, second = step.element("a", 0), step.element("b", 1)
    assert await first.ends("main", text) == ""
    assert await second.ends("main", text) == "the outputs of the step exceed 100 bytes"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(step.reports.run)
        first.report.publish()
        await first.report.stored()
        nursery.cancel_scope.cancel()
    # The outputs of the first element are stored now, so they no longer count as unstored.
    assert second.report.unstored_elsewhere() == (0, 0)


async def test_stored_outputs_of_an_element_are_not_counted_for_its_next_allocation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "MAX_STEP", 100)
    monkeypatch.setattr(outputs, "MAX_RUN", 100)
    step = Step(store, "main")
    await step.begin()
    found = {"main": {"rows": "x" * 60}}
    await store.write(lambda tx: runs.put_outputs(tx, RUN, "web", 0, "a", found))
    text = f"rows={'x' * 60}\n"
    assert (
        await step.element("b", 1).ends("main", text) == "the outputs of the step exceed 100 bytes"
    )
    assert await step.element("c", 0).ends("main", text) == ""

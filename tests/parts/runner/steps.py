"""Elements of steps, whose runs are stored for the runner."""

from typing import Any

from storage.queries import jobs, runs
from storage.records.flow import FlowRun, RunStep, StepOutputs
from storage.records.job import Job
from storage.records.task import Task
from tests import samples
from tests.parts.runner.world import World, script

OUTPUT = '"$STEWARD_OUTPUT"'
# Scripts that leave a faulty outputs file, and the reported reason.
FAULTY = [
    (f"rm {OUTPUT}; ln -s /etc/passwd {OUTPUT}", "the task's outputs"),
    (f"rm {OUTPUT}; mkfifo {OUTPUT}", "the task's outputs cannot be read"),
    (f"rm {OUTPUT}; mkdir {OUTPUT}", "the task's outputs cannot be read"),
    (f"head -c 70000 /dev/zero | tr '\\0' x > {OUTPUT}", "more than 65536 bytes"),
    (f"printf '\\377\\n' > {OUTPUT}", "the task's outputs are not UTF-8"),
    (f"echo x > {OUTPUT}", "line 1 of the environment is not of the form NAME=value"),
    (f"echo a-b=1 > {OUTPUT}", "must have only letters, digits and _"),
    (
        f"seq -f 'a%g=1' 129 > {OUTPUT}",
        "the task's outputs are invalid: line 129 exceeds the maximum of 128 variables",
    ),
]


def step(*tasks: Any, **meta: str) -> Job:
    return samples.job("flow", samples.group("web", *tasks, meta=meta), type="batch")


async def placed(world: World, job: Job, alloc_id: str = "", **fields: Any) -> str:
    """Store a run of a workflow, and place an element of its only step."""

    def begin(tx: Any) -> None:
        stored = jobs.current(tx, "default", "flow")
        if stored is None:
            stored = jobs.append_version(tx, job)
            run = FlowRun(namespace="default", job_id="flow", number=1, version=stored.version)
            runs.put(tx, run, None)
            runs.put_steps(tx, run, [RunStep(name="web", opened=1)], {}, {})

    await world.store.write(begin)
    return await world.place(job, alloc_id=alloc_id, **fields)


def stored(world: World) -> list[StepOutputs]:
    def work(db: Any) -> list[StepOutputs]:
        run = runs.newest(db, "default", "flow")
        assert run is not None
        return list(runs.outputs(db, run))

    return world.store.read(work)


async def placed_second(world: World, task: Task, *, count: int = 1, **meta: str) -> str:
    """Place an element of a step that needs step `a`, which has written the output `x`."""
    first = samples.group("a", script("true"), count=count)
    second = samples.group("web", task, meta={"steward_needs": "a", **meta})
    job = samples.job("flow", first, second, type="batch")

    def begin(tx: Any) -> None:
        stored = jobs.append_version(tx, job)
        run = FlowRun(namespace="default", job_id="flow", number=1, version=stored.version)
        runs.put(tx, run, None)
        steps = [RunStep(name="a", opened=1, total=count), RunStep(name="web", opened=1)]
        runs.put_steps(tx, run, steps, {}, {})
        runs.put_outputs(tx, run, "a", 0, "some", {"main": {"x": "value"}})

    await world.store.write(begin)
    return await world.place(job)

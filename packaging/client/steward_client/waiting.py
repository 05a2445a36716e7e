"""Wait until jobs have ended, and collect their exit codes and output."""

from collections.abc import Mapping
from typing import Generic, Self, TypeVar

from steward_client.errors import ApiError, NotFound
from steward_client.logs import read_log
from steward_client.records import (
    Allocation,
    AllocationResult,
    JobDetail,
    JobResult,
    TaskResult,
    TaskState,
    WorkflowRun,
)
from steward_client.transport import Call, Connection, Query, segment

T = TypeVar("T")
WAIT = 60.0  # maximum duration of a blocking query in seconds


class Watch(Generic[T]):
    """The object at a path: now, and after each change. Raises `ApiError` and `Unreachable`."""

    def __init__(self, connection: Connection, path: str, kind: type[T], query: Query) -> None:
        self._connection = connection
        self._path, self._kind, self._query = path, kind, query
        self._index = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            before = self._index
            answer = await self._connection.send(self._call())
            self._index = max(answer.index, 1)
            # When its wait is over, a blocking query returns without a change.
            if answer.index != before:
                return answer.decode(self._kind)

    def _call(self) -> Call:
        if not self._index:
            return Call(method="GET", path=self._path, query=self._query, repeatable=True)
        waiting: Query = {"index": self._index, "wait": f"{WAIT:.0f}s"}
        return Call(
            method="GET",
            path=self._path,
            query={**self._query, **waiting},
            repeatable=True,
            wait=WAIT,
        )


async def wait_for_job(connection: Connection, job_id: str, query: Query) -> JobDetail:
    """Wait until a job is dead; return the job.

    Raises `NotFound` if the job does not exist, or is purged in the meantime.
    """
    async for job in Watch(connection, f"/v1/job/{segment(job_id)}", JobDetail, query):
        if job.status == "dead":
            return job
    raise AssertionError("a watch does not end")


async def result_of(
    connection: Connection, job: JobDetail, query: Query, *, output: int
) -> JobResult:
    """Return the result of a dead job, with the last `output` bytes of each stream of its tasks."""
    call = Call(
        method="GET",
        path=f"/v1/job/{segment(job.id)}/allocations",
        query=query,
        repeatable=True,
    )
    newest: dict[str, Allocation] = {}
    allocations = (await connection.send(call)).decode(list[Allocation])
    for allocation in sorted(allocations, key=lambda alloc: alloc.create_index):
        newest[allocation.name] = allocation
    return JobResult(
        job_id=job.id,
        status_description=job.status_description,
        allocations=[
            AllocationResult(
                allocation=allocation, tasks=await _tasks(connection, allocation, output)
            )
            for allocation in sorted(newest.values(), key=lambda alloc: alloc.create_index)
        ],
        run=await _run(connection, job, query),
    )


async def _run(connection: Connection, job: JobDetail, query: Query) -> WorkflowRun | None:
    """Return the run of a workflow; None for other jobs, and for Nomad, which has no workflows."""
    if job.type != "batch":
        return None
    path = f"/v1/job/{segment(job.id)}/run"
    call = Call(method="GET", path=path, query=query, repeatable=True)
    try:
        run = (await connection.send(call)).decode(WorkflowRun)
    except NotFound:
        return None
    return run if run.version == job.version else None


async def _tasks(
    connection: Connection, allocation: Allocation, output: int
) -> Mapping[str, TaskResult]:
    return {
        name: await _task(connection, allocation.id, name, state, output)
        for name, state in allocation.task_states.items()
    }


async def _task(
    connection: Connection, alloc_id: str, name: str, state: TaskState, output: int
) -> TaskResult:
    texts = {"stdout": b"", "stderr": b""}
    if output and state.started_at:
        for kind in texts:
            texts[kind] = await _output(connection, alloc_id, name, kind, output)
    return TaskResult(
        exit_code=state.exit_code,
        signal=state.signal,
        failed=state.failed,
        stdout=texts["stdout"],
        stderr=texts["stderr"],
    )


async def _output(connection: Connection, alloc_id: str, task: str, kind: str, most: int) -> bytes:
    """Return the last bytes of a log; empty if the log is no longer stored."""
    try:
        return await read_log(connection, alloc_id, task=task, kind=kind, origin="end", offset=most)
    except ApiError as error:
        if error.status in (404, 500):  # Nomad answers 500 for a missing log
            return b""
        raise

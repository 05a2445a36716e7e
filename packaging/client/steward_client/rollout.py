"""A registration in progress, and its events until the outcome is certain."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from steward_client.errors import NotFound
from steward_client.events import Event, read_writes
from steward_client.records import Allocation, Deployment, Evaluation, JobDetail, Registered
from steward_client.transport import Answer, Call, Connection, Query, segment

_TOPICS = ("Job", "Evaluation", "Allocation", "Deployment")
_EVALUATED = frozenset({"complete", "failed", "canceled", "blocked"})
_ACTIVE = frozenset({"running", "paused", "pending", "initializing", "blocked", "unblocking"})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A registered job: pass it to `Client.follow` and `Client.wait`."""

    job_id: str
    namespace: str
    registered: Registered

    @property
    def eval_id(self) -> str:
        """Return the evaluation ID; empty for jobs that only launch children."""
        return self.registered.eval_id


async def follow_run(connection: Connection, run: Run) -> AsyncGenerator[Event, None]:
    """Yield the events of a registration until its outcome is certain.

    The outcome of a batch job is certain when the job is dead. The outcome of a service is certain
    when its deployment has ended. Without a deployment, the outcome is certain when the evaluation
    has ended and no allocation is pending.
    """
    if not run.eval_id:
        return
    rollout = _Rollout(connection, run)
    writes = read_writes(
        connection,
        dict.fromkeys(_TOPICS, run.job_id),
        index=run.registered.job_modify_index,
        namespace=run.namespace or None,
    )
    last: int | None = None
    async with aclosing(writes):
        async for events in writes:
            for event in events:
                yield event
            last = await rollout.last_index() if last is None else last
            if last is not None and events[-1].index >= last:
                return


class _Rollout:
    def __init__(self, connection: Connection, run: Run) -> None:
        self._connection, self._run = connection, run
        self._path = f"/v1/job/{segment(run.job_id)}"
        self._query: Query = {"namespace": run.namespace}

    async def last_index(self) -> int | None:
        """Return the index of the change that made the outcome certain, or None until then.

        For a purged job, return 0, because no further events follow.
        """
        try:
            job = (await self._get(self._path)).decode(JobDetail)
        except NotFound:
            return 0
        body = await self._get(f"{self._path}/deployment")
        deployment = body.decode(Deployment | None)  # type: ignore[arg-type]  # mypy: no type form
        evaluation = (await self._get(f"/v1/evaluation/{segment(self._run.eval_id)}")).decode(
            Evaluation
        )
        allocations = (await self._get(f"{self._path}/allocations")).decode(list[Allocation])
        if not _is_over(job, deployment, evaluation, allocations):
            return None
        changed = [alloc.modify_index for alloc in allocations] + [evaluation.modify_index]
        return max(changed + ([deployment.modify_index] if deployment else []))

    async def _get(self, path: str) -> Answer:
        call = Call(method="GET", path=path, query=self._query, repeatable=True)
        return await self._connection.send(call)


def _is_over(
    job: JobDetail,
    deployment: Deployment | None,
    evaluation: Evaluation,
    allocations: list[Allocation],
) -> bool:
    if job.status == "dead":
        return True
    if job.stop or job.type in ("batch", "sysbatch"):
        return False
    if deployment is not None and deployment.job_version == job.version:
        return deployment.status not in _ACTIVE
    if evaluation.status not in _EVALUATED:
        return False
    desired = [alloc for alloc in allocations if alloc.desired_status == "run"]
    return all(alloc.client_status != "pending" for alloc in desired)

"""Operations on runs by the API: the capabilities that a user needs."""

import pytest

from daemon.api import flows
from daemon.api.routes import ROUTES, STEER_RUN
from storage.errors import Denied
from storage.store import Store
from tests.parts.api.requests import caller, request
from tests.parts.evals.cluster import Cluster
from tests.samples import group, job, task

RULES = 'namespace "default" { capabilities = ["steer-run"%s] }'


async def test_skip_of_a_gated_step_needs_approval(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    gated = group("a", task(), meta={"steward_gate": "Begin?"})
    await cluster.register(job("etl", gated, group("b", task()), type="batch"))
    await cluster.work()

    async def skip(name: str, more: str = "") -> int:
        who = caller(RULES % more)
        given = request(store, STEER_RUN, who, body={"Steps": [name]}, job_id="etl")
        return (await flows.skip(given)).status

    with pytest.raises(Denied, match="step a has a gate: this operation needs approve-run"):
        await skip("a")
    assert await skip("a", ', "approve-run"') == 200
    assert await skip("b") == 409


async def test_step_alone_needs_steer_run_and_an_ended_run(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.join()
    await cluster.register(
        job("etl", group("a", task(), meta={"steward_gate": "Begin?"}), type="batch")
    )
    await cluster.work()
    (route,) = [one for one in ROUTES if one.path == "/v1/job/{job_id}/run/step"]
    assert route.needs is STEER_RUN

    async def alone() -> tuple[int, object]:
        given = request(store, STEER_RUN, caller(RULES % ""), body={"Steps": ["a"]}, job_id="etl")
        reply = await flows.run_step(given)
        return reply.status, reply.body

    assert await alone() == (
        409,
        b"run 1 is running: a step can run alone only after the run has ended",
    )

"""Operations on runs by the API: the capabilities that a person needs."""

import pytest

from daemon.api import flows
from daemon.api.routes import STEER_RUN
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

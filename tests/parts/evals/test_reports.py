"""Reports of allocations, and the evaluations that they create."""

from storage.queries import evaluations
from storage.records.evaluation import Trigger
from storage.records.group import ReschedulePolicy
from tests.parts.evals.cluster import Cluster
from tests.parts.evals.test_workflows import report
from tests.samples import group, job


async def test_repeated_report_of_an_end_creates_one_evaluation(cluster: Cluster) -> None:
    policy = ReschedulePolicy(unlimited=True)
    await cluster.register(job("web", group(reschedule_policy=policy)))
    await cluster.work()
    await cluster.run_all()
    (one,) = cluster.allocations()
    await report(cluster, one, code=1)
    await report(cluster, one, code=1)
    created = cluster.store.read(lambda db: evaluations.unfinished(db, "default", "web"))
    assert [evaluation.triggered_by for evaluation in created].count(Trigger.ALLOC_FAILURE) == 1

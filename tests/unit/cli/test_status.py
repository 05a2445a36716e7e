import pytest

from daemon.cli.commands.status import blocked_reasons
from storage.records.evaluation import EvalStatus, Evaluation, PlacementMetric
from tests.samples import evaluation, job

NO_NODE = {"web": PlacementMetric(node_pool="gpu")}
NO_NODE_SENTENCE = (
    'group "web": 1 allocation not placed, because no eligible node is in '
    'pool "gpu" and in a datacenter of the job'
)


@pytest.mark.parametrize(
    ("newest_first", "sentences"),
    [
        ([], []),
        ([evaluation(job(), status=EvalStatus.COMPLETE)], []),
        (
            [
                evaluation(job(), "e3", status=EvalStatus.COMPLETE),
                evaluation(job(), "e2", status=EvalStatus.BLOCKED, failed_tg_allocs=NO_NODE),
            ],
            [NO_NODE_SENTENCE],
        ),
        (
            [evaluation(job(), status=EvalStatus.COMPLETE, failed_tg_allocs=NO_NODE)],
            [NO_NODE_SENTENCE],
        ),
        (
            [
                evaluation(
                    job(),
                    status_description="created for delayed rescheduling",
                    wait_until="2026-11-21T01:40:30Z",
                )
            ],
            [
                "evaluation e1 is pending until 2026-11-21T01:40:30Z: created for delayed rescheduling"
            ],
        ),
        ([evaluation(job())], ["evaluation e1 is pending"]),
    ],
)
def test_reason_of_a_pending_job_is_reported_from_its_evaluations(
    newest_first: list[Evaluation], sentences: list[str]
) -> None:
    assert blocked_reasons(newest_first) == sentences

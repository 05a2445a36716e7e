import pytest

from daemon.cli.answers import Counts
from daemon.cli.status import status_words, why_waiting
from storage.records.evaluation import EvalStatus, Evaluation, PlacementMetric
from storage.records.job import GroupSummary
from tests.samples import evaluation, job
from tests.unit.cli.samples import job_line

NO_NODE = {"web": PlacementMetric(node_pool="gpu")}
NO_NODE_SENTENCE = (
    'group "web": 1 allocation not placed, because no node that is open for new work is in '
    'pool "gpu" and in a datacenter of the job'
)


@pytest.mark.parametrize(
    ("stop", "group", "words"),
    [
        (True, GroupSummary(complete=1), "dead (stopped)"),
        (False, GroupSummary(complete=1), "dead (succeeded)"),
        (False, GroupSummary(failed=1), "dead (failed)"),
        (False, GroupSummary(lost=1), "dead (failed)"),
        (False, GroupSummary(failed=1, complete=2), "dead (1 failed, 2 succeeded)"),
        (False, GroupSummary(), "dead"),
    ],
)
def test_a_dead_job_says_how_it_ended(stop: bool, group: GroupSummary, words: str) -> None:
    line = job_line(status="dead", stop=stop, job_summary=Counts(summary={"web": group}))
    assert status_words(line) == words


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_live_job_has_the_status_of_the_wire(status: str) -> None:
    assert status_words(job_line(status=status)) == status


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
def test_why_a_job_waits_is_told_from_its_evaluations(
    newest_first: list[Evaluation], sentences: list[str]
) -> None:
    assert why_waiting(newest_first) == sentences

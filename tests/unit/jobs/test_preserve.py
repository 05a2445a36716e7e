"""Counts and resources of the present version that an update keeps."""

import pytest

from daemon.jobs.preserve import preserve
from storage.records.task import Resources
from tests.samples import group, job, task

SMALL, LARGE = Resources(cpu=10, memory_mb=10), Resources(cpu=90, memory_mb=90)
BEFORE = job("web", group("web", task("main", resources=SMALL), count=3))
WANTED = job(
    "web",
    group("web", task("main", resources=LARGE), task("new", resources=LARGE), count=7),
    group("other", task("main", resources=LARGE), count=5),
)


@pytest.mark.parametrize(
    ("counts", "resources", "expected"),
    [
        (False, False, [(7, [LARGE, LARGE]), (5, [LARGE])]),
        (True, False, [(3, [LARGE, LARGE]), (5, [LARGE])]),
        (False, True, [(7, [SMALL, LARGE]), (5, [LARGE])]),
        (True, True, [(3, [SMALL, LARGE]), (5, [LARGE])]),
    ],
)
def test_update_keeps_values_of_groups_and_tasks_in_both_versions(
    counts: bool, resources: bool, expected: object
) -> None:
    kept = preserve(WANTED, BEFORE, counts=counts, resources=resources)
    assert [
        (task_group.count, [each.resources for each in task_group.tasks or ()])
        for task_group in kept.task_groups or ()
    ] == expected


def test_new_job_has_no_values_to_preserve() -> None:
    assert preserve(WANTED, None, counts=True, resources=True) is WANTED

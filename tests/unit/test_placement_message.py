from typing import Any

import pytest

from daemon.text.placement_message import count_noun, describe_failures, describe_metric
from storage.records.evaluation import PlacementMetric
from storage.records.task import Resources
from tests.samples import evaluation, job


def metric(**fields: Any) -> PlacementMetric:
    given = {"nodes_evaluated": 1, "nodes_in_pool": 1, "nodes_available": {"dc1": 1}, **fields}
    return PlacementMetric(**given)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (
            metric(nodes_in_pool=0, node_pool="gpu"),
            'no eligible node is in pool "gpu" and in a datacenter of the job',
        ),
        (
            metric(constraint_filtered={"missing devices": 1}),
            "the only node lacks a device that its tasks need",
        ),
        (
            metric(nodes_evaluated=2, constraint_filtered={"missing compatible host volumes": 2}),
            "2 of 2 nodes lack a host volume that it needs",
        ),
        (
            metric(constraint_filtered={'missing host network "wan" for port "web"': 1}),
            'the only node lacks host network "wan" for port "web"',
        ),
        (metric(dimension_exhausted={"cores": 1}), "the only node has too few free cores"),
        (
            metric(dimension_exhausted={"devices: no devices match request": 1}),
            "the only node has too few free devices for its tasks",
        ),
        (
            metric(dimension_exhausted={"network: dynamic port selection failed": 1}),
            "the only node has too few free dynamic ports",
        ),
        (
            metric(nodes_evaluated=0, nodes_available={"dc2": 0, "dc3": 0}),
            "no ready node is in a datacenter of the job (dc2, dc3)",
        ),
        (
            metric(constraint_filtered={"${meta.zone} = zz": 1}),
            "the only node does not meet ${meta.zone} = zz",
        ),
        (
            metric(constraint_filtered={"missing drivers": 1}),
            "the only node lacks a driver of its tasks",
        ),
        (
            metric(
                dimension_exhausted={"memory": 1},
                resources_exhausted={"a": Resources(memory_mb=9000), "b": Resources(memory_mb=1)},
            ),
            "the only node has less than 9001 MiB of memory left",
        ),
        (metric(dimension_exhausted={"disk": 1}), "the only node has too little disk left"),
        (
            metric(dimension_exhausted={"network: reserved port collision http=80": 1}),
            "the only node has a port in use (reserved port collision http=80)",
        ),
        (
            metric(
                nodes_evaluated=5,
                constraint_filtered={"${attr.os.name} = plan9": 3},
                dimension_exhausted={"cpu": 1},
                quota_exhausted=["small"],
            ),
            "3 of 5 nodes do not meet ${attr.os.name} = plan9; "
            "1 of 5 nodes has too little cpu left; quota small is used up",
        ),
        (metric(), "none of 1 node is suitable"),
    ],
)
def test_placement_metric_is_described_in_one_sentence(found: PlacementMetric, reason: str) -> None:
    assert describe_metric(found) == reason


def test_each_unplaced_group_has_a_sentence() -> None:
    failed = {
        "web": metric(coalesced_failures=2, dimension_exhausted={"memory": 1}),
        "api": metric(constraint_filtered={"missing drivers": 1}),
    }
    assert describe_failures(evaluation(job(), failed_tg_allocs=failed)) == [
        'group "api": 1 allocation not placed, because the only node lacks a driver of its tasks',
        'group "web": 3 allocations not placed, because the only node has too little memory left',
    ]


def test_evaluation_that_placed_everything_has_no_message() -> None:
    assert describe_failures(evaluation(job())) == []


@pytest.mark.parametrize(("count", "words"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_noun_agrees_with_its_count(count: int, words: str) -> None:
    assert count_noun(count, "node") == words

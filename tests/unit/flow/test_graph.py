"""Graphs of jobs: needs, levels, order, and the errors of workflow keys."""

import itertools
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from daemon.flow import graph as flow
from daemon.flow.graph import (
    Step,
    again,
    count_problems,
    graph_of,
    predecessors,
    problems,
    shortest_cycle,
    successors,
    view,
    warnings,
)
from daemon.flow.lists import Reference
from daemon.flow.workflow_keys import is_workflow
from daemon.jobspec.steward_meta.check import problems as key_problems
from daemon.jobspec.steward_meta.step_values import BeginTime, When
from storage.errors import Malformed
from storage.records.group import TaskGroup
from storage.records.job import Job
from tests.samples import group, job
from tests.step_timing import slowness


def step(name: str, needs: str = "", count: int = 1, **keys: str) -> TaskGroup:
    meta = {f"steward_{key}": text for key, text in keys.items()}
    if needs:
        meta["steward_needs"] = needs
    return group(name, count=count, meta=meta or None)


def workflow(*groups: TaskGroup, type: str = "batch") -> Job:  # noqa: A002  # the job's word
    return job("etl", *groups, type=type)


def _unknown(number: int) -> str:
    return ",".join(f"{number:x}" for number in range(number))


MISSPELT = " and ".join(f"needs.b{number}.total == 1" for number in range(30))
DIAMOND = workflow(step("plan"), step("eu", "plan"), step("us", "plan"), step("sum", "eu, us"))


def test_steps_are_below_all_their_needs() -> None:
    graph = graph_of(DIAMOND)
    assert graph.levels == (("plan",), ("eu", "us"), ("sum",))
    assert [item.name for item in graph.order] == ["plan", "eu", "us", "sum"]
    assert graph.dependents["plan"] == ("eu", "us")
    assert graph.longest == ("plan", "eu", "sum")


def test_order_in_the_file_is_irrelevant() -> None:
    graph = graph_of(workflow(*reversed(DIAMOND.task_groups or ())))
    assert graph.levels == (("plan",), ("us", "eu"), ("sum",))


def test_star_needs_all_steps_that_do_not_follow() -> None:
    graph = graph_of(workflow(step("a"), step("page", "*"), step("b", "a"), step("after", "page")))
    assert graph.by_name["page"].needs == ("a", "b")


def test_two_stars_do_not_wait_for_each_other() -> None:
    graph = graph_of(workflow(step("a"), step("x", "*"), step("y", "*")))
    assert [graph.by_name[name].needs for name in "xy"] == [("a",), ("a",)]


def test_job_without_workflow_keys_is_no_workflow() -> None:
    plain = workflow(group("a"), group("b"))
    assert not is_workflow(plain)
    assert (list(problems(plain)), list(warnings(plain))) == ([], [])


@pytest.mark.parametrize(
    ("faulty", "expected"),
    [
        (
            workflow(step("load", "check"), step("check", "load")),
            "steps wait for each other: load -> check -> load",
        ),
        (
            workflow(step("a", "a")),
            "steps wait for each other: a -> a",
        ),
        (
            workflow(step("plan"), step("load", "plna")),
            'Task group load needs "plna", which is not a group of this job; did you mean "plan"?',
        ),
        (
            workflow(step("plan"), step("load", "zzz")),
            'Task group load needs "zzz", which is not a group of this job',
        ),
        (
            workflow(step("plan"), step("a.b", "plan")),
            'Task group "a.b" has needs, so its name may only have letters, digits, - and _',
        ),
        (
            workflow(group("a.b"), step("load", "a.b")),
            'Task group "a.b" is needed, so its name may only have letters, digits, - and _',
        ),
        (workflow(step("a"), step("b", "*, a")), '"*" in steward_needs must stand alone'),
        (
            workflow(step("a"), step("b", "a"), type="service"),
            "steward_needs needs a job of type batch",
        ),
        (
            workflow(step("a", when="failure")),
            "Task group a begins on failure, but needs no group",
        ),
        (
            workflow(step("a"), step("b", "a", **{"if": "needs.c.outcome == good"})),
            'Task group b: steward_if refers to "c", which the group does not need',
        ),
        (
            workflow(step("load"), step("b", "load", **{"if": "needs.laod.outcome == good"})),
            'Task group b: steward_if refers to "laod", which the group does not need; '
            'did you mean "load"?',
        ),
        (
            workflow(step("a"), step("b", "a", **{"if": "needs.a.outcom == good"})),
            "Task group b: steward_if is not a condition: needs.a.outcom: "
            'there is no field "outcom"; did you mean outcome?',
        ),
        (
            workflow(step("a"), step("b", "a", **{"if": "needs.a.exit_code < many"})),
            "Task group b: steward_if is not a condition: error getting match value in "
            'expression: strconv.ParseInt: parsing "many": invalid syntax',
        ),
    ],
)
def test_errors_name_the_group_and_the_fix(faulty: Job, expected: str) -> None:
    assert list(problems(faulty)) == [expected]
    with pytest.raises(Malformed, match=r"."):
        graph_of(faulty)


def test_limits_are_named() -> None:
    deep = workflow(step("s0"), *(step(f"s{n}", f"s{n - 1}") for n in range(1, 1001)))
    assert list(problems(deep)) == ["the workflow has 1001 levels; the maximum is 1000"]
    wide = workflow(*(step(f"s{number}") for number in range(2000)), step("end", "*"))
    assert list(problems(wide)) == ["the workflow has 2001 groups; the maximum is 2000"]
    names = [f"a{number}" for number in range(150)]
    tight = workflow(
        *map(step, names), *(step(f"b{number}", ", ".join(names)) for number in range(150))
    )
    assert list(problems(tight)) == ["the workflow has 22500 needs; the maximum is 20000"]


def test_counts_of_steps_are_limited() -> None:
    after = step("b", "a")
    assert list(problems(workflow(counted("a", 10_000), after))) == []
    message = "Task group a has count = 10001; the maximum of a step is 10000"
    wide = workflow(counted("a", 10_001), after)
    assert list(problems(wide)) == list(count_problems(wide)) == [message]
    plain = workflow(counted("a", 10_001))
    assert list(problems(plain)) == list(count_problems(plain)) == []


def test_elements_of_a_run_are_limited() -> None:
    full = [counted(f"s{number}", 10_000) for number in range(10)]
    assert list(problems(workflow(*full, counted("z", 0), step("b", when="always")))) == [
        "the workflow has 100001 elements; the maximum is 100000"
    ]
    copies = [step(f"c{number}", "s0[i]") for number in range(10)]
    inherited = workflow(counted("s0", 10_000), *copies)
    assert list(count_problems(inherited)) == [
        "the workflow has 110000 elements; the maximum is 100000"
    ]
    assert list(problems(workflow(counted("s0", 10_000), *copies[1:]))) == []


def test_keys_of_a_group_are_limited_in_bytes() -> None:
    text = '["' + "x" * 65_000 + '"]'
    fits = step("b", "a", for_each=text)
    assert list(problems(workflow(step("a"), fits))) == []
    long = step("b", "a", for_each=text, gate="ü" * 500)
    assert list(problems(workflow(step("a"), long))) == [
        "Task group b has workflow keys of 66005 bytes; the maximum is 65536"
    ]
    other = group("b", meta={**(fits.meta or {}), "note": "x" * 65_536})
    assert list(problems(workflow(step("a"), other))) == []


def counted(name: str, count: int) -> TaskGroup:
    return group(name, count=count)


def test_step_that_always_starts_should_name_all_needs() -> None:
    found = list(warnings(workflow(step("a"), step("b", "a", when="always"))))
    assert found == [
        "Task group b begins always, but only after a; to run it at the end of every run, "
        'write steward_needs = "*"'
    ]
    assert list(warnings(workflow(step("a"), step("b", "*", when="always")))) == []


def test_unreachable_step_is_named() -> None:
    found = list(warnings(workflow(step("a", count=0), step("b", "a"), step("c", "b, a"))))
    assert found == [
        'Task group b can never begin: it needs success of "a", which has no elements',
        'Task group c can never begin: it needs success of "b" and "a", which has no elements',
    ]


def brute_force(needs: Mapping[str, tuple[str, ...]]) -> int:
    """Return the length of the shortest cycle, 0 without one."""
    for length in range(1, len(needs) + 1):
        for path in itertools.permutations(needs, length):
            if all(path[(n + 1) % length] in needs[one] for n, one in enumerate(path)):
                return length
    return 0


@pytest.mark.parametrize("seed", range(80))
def test_reported_cycle_is_a_shortest_one(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"s{number}" for number in range(chance.randint(1, 6))]
    needs = {name: tuple(name for name in names if chance.random() < 0.25) for name in names}
    found = shortest_cycle(needs)
    assert max(len(found) - 1, 0) == brute_force(needs)
    assert all(after in needs[before] for before, after in itertools.pairwise(found))
    # The cycle begins with its first group in the order of the file.
    assert found[:1] == [name for name in names if name in found][:1]


def test_the_view_has_edges_levels_and_the_longest_chain() -> None:
    found = view(DIAMOND)
    assert [(edge.source, edge.to) for edge in found.edges] == [
        ("plan", "eu"),
        ("plan", "us"),
        ("eu", "sum"),
        ("us", "sum"),
    ]
    assert [(step.name, step.level) for step in found.steps] == [
        ("plan", 0),
        ("eu", 1),
        ("us", 1),
        ("sum", 2),
    ]
    assert (found.is_workflow, found.longest) == (True, ["plan", "eu", "sum"])


@pytest.mark.parametrize("key", flow.KEYS)
def test_job_with_any_workflow_key_is_a_workflow(key: str) -> None:
    assert is_workflow(workflow(group("a", meta={key: "1"})))


@pytest.mark.parametrize(("text", "allowed"), [("3", 3), ("10%", 2), ("100%", 25), ("0", 0)])
def test_some_elements_may_fail(text: str, allowed: int) -> None:
    (found,) = graph_of(workflow(step("a", count=25, failures_allowed=text))).steps
    assert found.allowance.of(25) == allowed


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (
            [*(step(f"s{number}") for number in range(1_999)), step("x", _unknown(13_000))],
            20,
        ),
        (
            [step("a"), *(step(f"s{number}", _unknown(10_001)) for number in range(100))],
            1,
        ),
        (
            [step("a"), *(step(f"s{number}", "*") for number in range(1_998)), step("z", "a")],
            0,
        ),
        (
            [
                *(step(f"s{number}", "*") for number in range(1_000)),
                step("e0", ", ".join(f"s{number}" for number in range(1_000))),
                *(
                    step(
                        f"e{number}",
                        ", ".join(f"e{number}" for number in range(max(number - 18, 0), number)),
                    )
                    for number in range(1, 999)
                ),
            ],
            0,
        ),
        ([step("a"), *(step(f"s{number}", "a", **{"if": MISSPELT}) for number in range(900))], 20),
    ],
)
def test_large_faulty_job_is_refused_quickly(groups: list[TaskGroup], expected: int) -> None:
    one = workflow(*groups)
    began = time.thread_time()
    found = list(problems(one))
    list(key_problems(one))
    assert time.thread_time() - began < 0.5 * slowness()
    assert len(found) == expected
    assert sum("did you mean" in text for text in found) <= 3


def test_duplicate_name_in_a_long_list_is_found_quickly() -> None:
    text = f"{_unknown(10_000)}, 5, 6"
    began = time.thread_time()
    (found,) = key_problems(workflow(step("a", text)))
    assert time.thread_time() - began < 0.5 * slowness()
    assert found.endswith('names "5" twice')


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (["c"], {"c"}),  # no step before c has `steward_redo`
        (["use"], {"up", "use", "down"}),
        (["down"], {"up", "use", "down"}),
        (["a"], {"a", "up", "use", "down", "c"}),
    ],
)
def test_step_with_redo_runs_again_with_all_later_steps(chosen: list[str], found: set[str]) -> None:
    redo = {"steward_needs": "a", "steward_redo": "true"}
    graph = graph_of(
        workflow(
            group("a"),
            group("up", meta=redo),
            group("use", meta={"steward_needs": "up"}),
            group("down", meta={"steward_needs": "use", "steward_when": "always"}),
            group("c", meta={"steward_needs": "a"}),
        )
    )
    assert again(graph, chosen) == found


@pytest.mark.parametrize(
    ("fields", "only_begins"),
    [
        ({}, True),
        ({"when": When.ALWAYS, "needs": ("b",)}, True),
        ({"when": When.FAILURE}, False),
        ({"condition": "run.number == 1"}, False),
        ({"gate": "Go?"}, False),
        ({"calendar": "c"}, False),
        ({"source": Reference("b", "x")}, False),
        ({"inherits": "b"}, False),
        ({"each_of": frozenset("b")}, False),
        ({"queues": ("q",)}, False),
        ({"not_before": BeginTime(delay=1)}, False),
        ({"not_after": BeginTime(delay=1)}, False),
    ],
)
def test_step_certainly_begins_unless_it_has_another_condition(
    fields: dict[str, Any], only_begins: bool
) -> None:
    assert Step(name="a", **fields).only_begins == only_begins


def test_possible_times_of_a_step_are_accepted() -> None:
    for first, last in (("2026-11-27T12:00:00Z", "2026-11-27T13:00:00Z"), ("+1h", "+2h")):
        timed = step("a", not_before=first, not_after=last)
        assert list(problems(workflow(timed))) == []


def test_queue_is_for_runs_or_for_steps() -> None:
    groups = [step("a", concurrency="db"), step("b", "a", concurrency="gpu")]
    queued = job("etl", *groups, type="batch", meta={"steward_run_concurrency": "db"})
    assert list(problems(queued)) == [
        'Task group a names the queue "db", which steward_run_concurrency also names; '
        "a queue is for runs or for steps"
    ]
    other = job("etl", *groups, type="batch", meta={"steward_run_concurrency": "runs"})
    assert list(problems(other)) == []


def test_only_a_batch_job_is_a_workflow() -> None:
    assert is_workflow(workflow(step("a", "b")))
    assert not is_workflow(workflow(step("a", "b"), type="service"))


def test_steps_that_many_paths_connect_are_visited_once() -> None:
    names = [f"{side}{number}" for number in range(30) for side in "ab"]
    needs = [", ".join(names[at : at + 2]) for at in range(0, len(names), 2) for _ in "ab"]
    first = [step(name) for name in names[:2]]
    graph = graph_of(workflow(*first, *map(step, names[2:], needs)))
    # There are 2**29 paths from the first step to the last ones.
    assert successors(graph, ["a0"]) == set(names[2:])
    assert predecessors(graph, ["a29"]) == set(names[:-2])

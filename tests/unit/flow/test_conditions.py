"""The evaluation of a step's condition takes a bounded amount of work."""

import time

import pytest

from daemon.flow.conditions import RunFacts, Undecidable, is_true, problems
from daemon.jobspec import filter as filters
from daemon.jobspec.filter import compile_filter
from storage.errors import Malformed
from storage.records.job import Job

MOST = 0.5  # seconds of CPU time
FACTS = RunFacts(meta={f"k{number}": "x" for number in range(10)})


def nested(depth: int, path: str) -> str:
    """Return an expression with `depth` nested loops over the map at `path`."""
    before = "".join(f"all {path} as n{number} {{ " for number in range(depth))
    return f"{before}n0 != none{' }' * depth}"


def test_nested_collections_are_refused() -> None:
    expected = (
        "has any or all inside another any or all; write the key of the inner any or all instead"
    )
    assert list(problems(nested(2, "run.meta"), ())) == [expected]
    hidden = f"run.number == 1 and (any run.meta as a {{ not ({nested(1, 'run.meta')}) }})"
    assert list(problems(hidden, ())) == [expected]
    flat = f"({nested(1, 'run.meta')}) or {nested(1, 'run.meta')}"
    assert list(problems(flat, ())) == []
    assert is_true(flat, FACTS, {})


def test_slow_stored_condition_is_undecidable() -> None:
    began = time.thread_time()
    with pytest.raises(Undecidable, match="the condition takes too long: more than 2000 steps"):
        is_true(nested(12, "run.meta"), FACTS, {})
    assert time.thread_time() - began < MOST


def test_slow_filter_of_a_listing_is_refused() -> None:
    document = {"Meta": {f"k{number}": "x" for number in range(10)}}
    few = compile_filter(nested(3, "Meta"), Job)
    assert few(document)
    many = compile_filter(nested(12, "Meta"), Job)
    began = time.thread_time()
    with pytest.raises(Malformed, match="the condition takes too long: more than 20000 steps"):
        many(document)
    assert time.thread_time() - began < 6 * MOST


def test_possibly_slow_pattern_is_refused_before_the_search() -> None:
    document = {"Meta": {"a": "x" * 140 * 1024}}
    assert compile_filter("Meta.a matches `^x+$`", Job)(document)
    pattern = "x[^y]{900}z|x[^w]{900}q"
    began = time.thread_time()
    with pytest.raises(
        Malformed,
        match=r"the condition takes too long: more than 20000 steps for one object; "
        r"use a shorter pattern than \"x\[\^y\]\{900\}z",
    ):
        compile_filter(f"Meta.a matches `{pattern}`", Job)(document)
    assert time.thread_time() - began < 6 * MOST


def test_all_objects_of_a_request_share_a_step_limit() -> None:
    documents = [{"Meta": {"a": "x" * 500}}] * 1_000
    began = time.thread_time()
    costly = compile_filter("Meta.a matches `x[^y]{300}z|q`", Job)
    with pytest.raises(
        Malformed, match="the filter takes too long: more than 2000000 steps for all objects"
    ):
        list(map(costly, documents * 10))
    assert time.thread_time() - began < 6 * MOST


def test_cheap_filter_can_select_from_a_long_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filters, "MAX_STEPS", 10)
    document = {"Meta": {f"k{number}": "x" for number in range(10)}}
    cheap = filters.compile_filter("Meta.k1 matches `^x$` and (any Meta as m { m == `k9` })", Job)
    assert all(cheap(document) for _ in range(5_000))


@pytest.mark.parametrize(
    ("text", "field", "word"),
    [
        ("needs.a.outcome == goood", "outcome", "goood"),
        ("run.number == 1 and not (needs.a.outcome != Good)", "outcome", "Good"),
        ("needs.a.state == running", "state", "running"),
        ("any needs as name, need { need.outcome == ok }", "outcome", "ok"),
    ],
)
def test_unknown_outcome_of_a_step_is_refused(text: str, field: str, word: str) -> None:
    (problem,) = problems(text, ["a"])
    assert problem.startswith(f'compares the {field} of a step with "{word}", but it is one of: ')


def test_known_outcomes_and_patterns_are_accepted() -> None:
    texts = (
        "needs.a.outcome == neutral or needs.a.state != canceled",
        "any needs as name, need { need.state == skipped }",
        'needs.a.reason == "goood" or needs.a.state matches "^s"',
    )
    assert [problem for text in texts for problem in problems(text, ["a"])] == []

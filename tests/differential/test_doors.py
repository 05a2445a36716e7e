"""The fast path and the HTTP server give the same responses in random sessions."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.differential.responses import (
    Difference,
    Response,
    comparable,
    decided,
    differences,
    is_decided,
)
from tests.differential.servers import compare
from tests.differential.sessions import session
from tests.http_clients import trusted
from tests.time_limits import HAPPENS_WITHIN
from tests.wire.scenarios import DOORS, daemon

SEEDS = range(2)  # `python -m bench.differential` runs more
LENGTH = 60  # requests of a session


@pytest.fixture(scope="module")
def doors() -> Iterator[tuple[httpx.Client, httpx.Client]]:
    with (
        daemon(environment=DOORS["lean"]) as one,
        daemon(environment=DOORS["wide"]) as two,
        httpx.Client(verify=trusted(), base_url=one, timeout=HAPPENS_WITHIN) as lean,
        httpx.Client(verify=trusted(), base_url=two, timeout=HAPPENS_WITHIN) as wide,
    ):
        yield lean, wide


@pytest.mark.parametrize("seed", SEEDS)
def test_random_session_has_the_same_responses_through_both_servers(
    doors: tuple[httpx.Client, httpx.Client], seed: int
) -> None:
    assert [*compare(*doors, session(seed, LENGTH))] == []


def test_session_is_repeatable_and_differs_by_seed() -> None:
    assert [*session(1, 50)] == [*session(1, 50)] != [*session(2, 50)]


ID = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"ID": ID, "ModifyIndex": 3}, {"ID": OTHER, "ModifyIndex": 40}),
        ({"SubmitTime": 17, "Name": "a"}, {"SubmitTime": 18, "Name": "a"}),
        ({"VaultToken": "x"}, {"SecretsToken": "x"}),
        ({"JobID": "a/dispatch-1700000000-ab12cd34"}, {"JobID": "a/dispatch-1800000000-ff12cd34"}),
        (f"eval {ID} at index 7", f"eval {OTHER} at index 8"),
        ("conflicting index: 7", "conflicting index: 8"),
    ],
)
def test_server_generated_values_are_no_difference(one: Any, two: Any) -> None:
    assert comparable(one) == comparable(two)


@pytest.mark.parametrize(
    ("one", "two", "where"),
    [
        ({"ModifyIndex": 0}, {"ModifyIndex": 3}, "/ModifyIndex"),
        ({"A": {"B": [1, 2]}}, {"A": {"B": [1, 3]}}, "/A/B/1"),
        ({"A": None}, {}, "/A"),
        ({"A": 1}, {"A": True}, "/A"),
        ([1], [1, 1], ""),
    ],
)
def test_every_other_difference_has_a_position(one: Any, two: Any, where: str) -> None:
    both = Response(200, one), Response(200, two)
    assert [item.where for item in differences("GET", "/v1/jobs", *both)] == [where]


def test_different_status_is_a_difference() -> None:
    (found,) = differences("GET", "/v1/jobs", Response(200, []), Response(400, "bad"))
    assert (found.where, found.first, found.second) == ("status", 200, 400)


def test_lists_without_order_are_compared_as_sets() -> None:
    one, two = ([{"Name": name} for name in names] for names in ("ab", "ba"))
    both = Response(200, one), Response(200, two)
    assert [*differences("GET", "/v1/job/a/allocations", *both)] == []
    assert [*differences("GET", "/v1/jobs", *both)] != []


def test_differences_on_purpose_match_a_pattern_with_a_heading() -> None:
    one = Difference("GET", "/v1/job/a", "/Stable", True, False)
    assert is_decided(one, {"GET /v1/job/* /Stable": "Marking a version does not change the job"})
    assert not is_decided(one, {"GET /v1/jobs /Stable": ""})
    assert all(decided().values())

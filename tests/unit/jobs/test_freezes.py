"""Freezes: patterns, scopes, times, and errors of requests."""

import fnmatch
import random

import pytest

from daemon.jobs.freezes import FreezeRequest, freeze_of
from storage.errors import Malformed
from storage.records.base import HOUR
from storage.records.freeze import Freeze, Strength, matches
from tests.samples import NOW


@pytest.mark.parametrize("seed", range(200))
def test_patterns_match_like_shell_patterns(seed: int) -> None:
    rng = random.Random(seed)
    pattern = "".join(rng.choices("ab*", k=rng.randint(0, 6)))
    text = "".join(rng.choices("ab", k=rng.randint(0, 8)))
    assert matches(pattern, text) == fnmatch.fnmatchcase(text, pattern)


@pytest.mark.parametrize(
    ("fields", "covered"),
    [
        ({}, True),
        ({"jobs": "etl-*"}, True),
        ({"jobs": "etl-a/dispatch-*"}, True),
        ({"jobs": "web"}, False),
        ({"queue": "db"}, True),
        ({"queue": "other"}, False),
        ({"queue": "db", "jobs": "web"}, False),
    ],
)
def test_a_freeze_covers_jobs_by_pattern_and_queue(fields: dict[str, str], covered: bool) -> None:
    freeze = Freeze(id="f", namespace="default", **fields)
    assert freeze.covers("etl-a/dispatch-1", "etl-a", "db") == covered


def test_freeze_applies_from_its_start_to_its_end() -> None:
    freeze = Freeze(id="f", namespace="*", begin=10, until=20)
    assert [freeze.holds_at(at) for at in (9, 10, 19, 20)] == [False, True, True, False]
    ended = Freeze(id="f", namespace="*", begin=10, until=20, ended=15)
    assert [ended.holds_at(at) for at in (14, 15)] == [True, False]
    assert Freeze(id="f", namespace="*", begin=10).holds_at(2**60)


def test_duration_counts_from_the_start() -> None:
    request = FreezeRequest(reason=" release ", until="+2h", strength="changes")
    freeze = freeze_of(request, "default", "f", NOW)
    assert (freeze.begin, freeze.until, freeze.reason) == (NOW, NOW + 2 * HOUR, "release")
    assert freeze.strength == Strength.CHANGES


def test_duration_may_have_as_many_days_as_a_time() -> None:
    request = FreezeRequest(reason="x", until=f"+{366 * 24}h")
    assert freeze_of(request, "default", "f", NOW).until == NOW + 366 * 24 * HOUR


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "Reason must have 1 to 500 characters, and not only spaces"),
        ({"reason": "x" * 501}, "Reason must have 1 to 500 characters, and not only spaces"),
        ({"reason": "x", "strength": "hard"}, "Strength = 'hard' must be one of begin, steps, ch"),
        ({"reason": "x", "jobs": "x" * 257}, "Jobs has 257 characters; the maximum is 256"),
        ({"reason": "x", "queue": "a b"}, "Queue = 'a b' must have 1 to 128 characters"),
        ({"reason": "x", "begin": "soon"}, "Begin = 'soon' must be a time such as 2026-12-24"),
        ({"reason": "x", "until": "+soon"}, "Until = '+soon' "),
        ({"reason": "x", "until": "+8785h"}, "Until = '+8785h' must be from 0s to 8784h"),
        (
            {"reason": "x", "until": "2020-01-01T00:00:00Z"},
            "must be later than both the start and the current time",
        ),
        ({"reason": "x", "until": "2190-01-01T00:00:00Z"}, "more than 366 days after the start"),
    ],
)
def test_invalid_requests_name_the_field(fields: dict[str, str], error: str) -> None:
    with pytest.raises(Malformed) as caught:
        freeze_of(FreezeRequest(**fields), "default", "f", NOW)
    assert error in str(caught.value)

"""What people are told: words for states, times, sizes; addresses and filters that mean what they should."""

from typing import Any

import pytest

from daemon.ui import words
from storage.records.base import HOUR, MINUTE, SECOND
from tests.samples import NOW


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (25 * 2**30, "25 GiB")]
)
def test_a_size_is_told_in_a_unit_that_fits(count: int, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0 s"),
        (59 * SECOND, "59 s"),
        (61 * SECOND, "1 min 1 s"),
        (HOUR, "1 h"),
        (24 * HOUR + 5 * MINUTE, "1 d"),
        (50 * HOUR, "2 d 2 h"),
    ],
)
def test_a_length_of_time_is_told_in_two_units(length: int, text: str) -> None:
    assert words.span(length) == text


@pytest.mark.parametrize(
    ("then", "text"),
    [(0, "-"), (NOW, "now"), (NOW - MINUTE, "1 min ago"), (NOW + MINUTE, "in 1 min")],
)
def test_a_moment_is_told_by_its_distance(then: int, text: str) -> None:
    assert words.ago(NOW, then) == text


def test_a_name_in_an_address_is_only_a_name() -> None:
    found = words.address("/ui/job/", "a/b?c#d", "/stop", namespace="n&m", empty="")
    assert found == "/ui/job/a%2Fb%3Fc%23d/stop?namespace=n%26m"


def test_a_command_can_be_pasted() -> None:
    assert words.command("job", "stop", "a; rm -rf /", "") == "steward job stop 'a; rm -rf /'"


@pytest.mark.parametrize(
    ("target", "ours"),
    [
        ("/ui/jobs?x=1", True),
        ("//evil", False),
        ("https://evil/ui/", False),
        ("/ui/\\evil", False),
        ("/ui/\n", False),
        ("/ui/ü", False),
        ("", False),
    ],
)
def test_only_pages_of_ours_are_gone_to(target: str, ours: bool) -> None:
    assert words.is_ours(target) == ours


def line(*statuses: str, **fields: Any) -> dict[str, Any]:
    allocations = [{"ClientStatus": one, "JobVersion": 1} for one in statuses]
    given = {"Status": "running", "Type": "service", "GroupCountSum": 1, "Version": 1}
    return {**given, "Stop": False, "ChildStatuses": None, "Allocs": allocations or None, **fields}


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (line("running"), "running"),
        (line("running", GroupCountSum=2), "degraded"),
        (line("pending"), "starting"),
        (line(Status="pending"), "waiting"),
        (line("running", Stop=True), "stopped"),
        (line("complete", Status="dead", Type="batch"), "finished"),
        (line("failed", Status="dead", Type="batch"), "failed"),
        (line("failed", "complete", Status="dead", Type="batch"), "finished"),
        (line(ChildStatuses=[]), "ready"),
    ],
)
def test_a_job_is_told_in_one_word(given: dict[str, Any], state: str) -> None:
    assert words.job_state(given) == state

"""The places of steps: how many elements begin, and the reasons of those that wait."""

import pytest

from daemon.flow.graph import Step
from daemon.flow.places import PlaceShare, count_without_place, has_no_place, share_of
from storage.records.flow import PARALLEL_REASON, RunStep


@pytest.mark.parametrize(
    ("parallel", "active", "missing", "free", "most", "begun", "reason"),
    [
        (None, 0, 3, None, None, 3, ""),
        (2, 0, 2, None, None, 2, ""),
        (2, 1, 3, None, None, 1, "2 elements wait until fewer than 2 of its elements are active"),
        (2, 1, 2, None, None, 1, "1 element waits until fewer than 2 of its elements are active"),
        (1, 1, 1, None, None, 0, "1 element waits until none of its elements is active"),
        (1, 3, 1, None, None, 0, "1 element waits until none of its elements is active"),
        (
            None,
            0,
            3,
            2,
            2,
            2,
            "1 element waits until fewer than 2 allocations of the run are active",
        ),
        (None, 1, 2, 0, 1, 0, "2 elements wait until no allocation of the run is active"),
        (None, 0, 2, 0, 1, 0, "it waits until no allocation of the run is active"),
        (None, 0, 2, -1, 3, 0, "it waits until fewer than 3 allocations of the run are active"),
        (1, 0, 2, 0, 3, 0, "it waits until fewer than 3 allocations of the run are active"),
        (1, 0, 2, 1, 3, 1, "1 element waits until none of its elements is active"),
    ],
)
def test_elements_begin_within_the_limits_of_step_and_run(
    parallel: int | None,
    active: int,
    missing: int,
    free: int | None,
    most: int | None,
    begun: int,
    reason: str,
) -> None:
    step = Step(name="a", parallel=parallel)
    share = share_of(step, active=active, missing=missing, free=free, most=most)
    has_none = reason.startswith("it waits")
    text = f"{PARALLEL_REASON}{reason}" if reason else ""
    assert share == PlaceShare(begun, text, has_none=has_none)
    row = RunStep(name="a", total=9, good=2, failed=1, reason=text)
    assert has_no_place(row) == has_none
    waiting = 0 if not reason else 6 if has_none else missing - begun
    assert count_without_place(row) == waiting

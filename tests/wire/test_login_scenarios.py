"""Steward's responses compared with Vault's captured ones, with an external fake cloud.

The lists `pending.txt` and `decided.txt` name scenarios and steps of this module with the prefix
`auth/`.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

import pytest

from tests.wire.login import cloud, play, reset, world
from tests.wire.scenarios import PATIENCE, Failures, login_scenarios, names_in, runs, wanted

AT_ONCE = 3
ALL = login_scenarios()
RUNS = runs(ALL)
PENDING = names_in("pending.txt")
KNOWN = PENDING | names_in("decided.txt")

Results = Mapping[tuple[str, str], Future[Failures]]  # by (scenario, door)


def run(name: str, door: str, free_clouds: SimpleQueue[str]) -> Failures:
    scenario, cloud_url = ALL[name], free_clouds.get()
    try:
        reset(cloud_url)
        with world(cloud_url, scenario.get("needs", []), door) as (url, token):
            failures = play(scenario, url, cloud_url, token)
    finally:
        free_clouds.put(cloud_url)
    return {f"{name}/{step}": text for step, text in failures.items()}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    free_clouds = SimpleQueue[str]()
    with ExitStack() as stack:
        # The key of a cloud takes as long as half of the daemon's start.
        for _ in range(AT_ONCE):
            free_clouds.put(stack.enter_context(cloud()))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        yield {
            (name, door): pool.submit(run, name, door, free_clouds)
            for name, door in wanted(request)
        }


@pytest.mark.parametrize(("door", "name"), RUNS)
def test_scenario_is_answered_as_captured(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    unexpected = {step: text for step, text in failures.items() if not {step, name} & KNOWN}
    assert unexpected == {}


@pytest.mark.parametrize(("door", "name"), RUNS)
def test_passing_scenario_is_not_listed_as_pending(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    listed = {step for step in KNOWN if step.startswith(f"{name}/")}
    assert listed - failures.keys() == set()
    assert name not in PENDING or failures

"""Steward's responses compared with captured Nomad responses, scenario by scenario.

`pending.txt` lists steps for a later issue. It only shrinks, and passing steps must be removed from
it. `decided.txt` lists intended differences; docs/compatibility.md gives the reasons.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.wire.scenarios import (
    PATIENCE,
    Failures,
    login_scenarios,
    names_in,
    run_scenario,
    runs,
    scenarios,
    wanted,
)

AT_ONCE = 4  # scenarios mostly wait
ALL = scenarios()
RUNS = runs(ALL)
PENDING = names_in("pending.txt")
DECIDED = names_in("decided.txt")

Results = Mapping[tuple[str, str], Future[Failures]]  # by (scenario, door)


def run(name: str, door: str) -> Failures:
    """Return the differences; if some are unexpected, return those of a second daemon.

    Some steps measure the time of a response, which a busy host can exceed once.
    """
    first = once(name, door)
    return once(name, door) if unexpected(name, first) else first


def once(name: str, door: str) -> Failures:
    return run_scenario(ALL[name], PENDING | DECIDED, door)


def unexpected(name: str, failures: Failures) -> Failures:
    known = PENDING | DECIDED
    return {step: text for step, text in failures.items() if not {step, name} & known}


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Iterator[Results]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {(name, door): pool.submit(run, name, door) for name, door in wanted(request)}


@pytest.mark.parametrize(("door", "name"), RUNS)
def test_scenario_is_answered_as_captured(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    assert unexpected(name, failures) == {}


@pytest.mark.parametrize(("door", "name"), RUNS)
def test_passing_scenario_is_not_listed_as_pending(name: str, door: str, results: Results) -> None:
    failures = results[name, door].result(timeout=PATIENCE)
    listed = {step for step in PENDING | DECIDED if step.startswith(f"{name}/")}
    assert listed - failures.keys() == set()
    assert name not in PENDING or failures


@pytest.mark.parametrize("entry", sorted(PENDING | DECIDED))
def test_listed_step_exists(entry: str) -> None:
    steps = {step["id"] for scenario in ALL.values() for step in scenario["steps"]}
    login = login_scenarios()
    steps |= {f"{name}/{step['id']}" for name, one in login.items() for step in one["steps"]}
    assert entry in steps | ALL.keys() | login.keys()
